// The forms a tensor can have, told from what exists (model-tensors.md, exl3.md sections 3, 7, 14 and 15).
#include "model/deepseek_v41/resolve.h"

#include <bit>
#include <cstring>

namespace troupe::deepseek_v41 {
namespace {

constexpr uint32_t mul1_marker = 0x83DCD12D, mcg_marker = 0xCBAC1FED; // exl3.md section 3
constexpr int64_t hadamard = 128;

int64_t blocks(int64_t n) { return (n + 31) / 32; }
bool is_float(dtype t) { return t == dtype::f32 || t == dtype::bf16 || t == dtype::f16; }

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string s = "[";
  for (const int64_t d : shape) s += (s.size() > 1 ? ", " : "") + std::to_string(d);
  return s + "]";
}

bool has_shape(const tensor_info* t, const std::vector<int64_t>& shape) { return t->shape == shape; }

} // namespace

std::string describe(const tensor_info& t) { return std::string(name(t.type)) + " " + shape_text(t.shape); }

void resolver::begin() {
  problems_.clear();
  missing_ = false;
}

void resolver::fail(const std::string& name, const std::string& expected, const std::string& found) {
  problems_.push_back(name + ": expected " + expected + ", found " + found);
}

const tensor_info* resolver::use(const std::string& name) {
  const tensor_info* t = from_.find(name);
  if (t != nullptr) used_.insert(t);
  return t;
}

bool resolver::fits(const tensor_info* t, const std::string& expected, bool holds) {
  if (!holds) fail(t->name, expected, describe(*t));
  return holds;
}

void resolver::plain(const std::string& name, const std::vector<int64_t>& shape) {
  begin();
  const tensor_info* t = use(name);
  if (t == nullptr) {
    missing_ = true;
    return fail(name, shape_text(shape), "nothing");
  }
  fits(t, "F32, BF16 or F16 " + shape_text(shape), is_float(t->type) && has_shape(t, shape));
}

found_matrix resolver::matrix(const std::string& stem, int64_t out, int64_t in, bias_rule bias) {
  begin();
  found_matrix m;
  m.name = stem;
  m.out = out;
  m.in = in;
  const bool is_packed = from_.find(stem + ".trellis") != nullptr;
  const bool is_native = from_.find(stem + ".weight") != nullptr;
  if (!is_packed && !is_native) {
    for (const char* part : {".scale", ".suh", ".svh"}) // a part without the rest is worth a word
      if (use(stem + part) != nullptr) fail(stem, ".weight or .trellis beside " + std::string(part), "neither");
    if (problems_.empty()) {
      missing_ = true;
      fail(stem, "a matrix " + shape_text({out, in}), "nothing");
    }
    return m;
  }
  if (is_packed && is_native) {
    fail(stem, "one form", "both .weight and .trellis");
    for (const char* part : {".weight", ".scale"}) use(stem + part); // known, if one too many
  }
  if (is_packed)
    packed(m, stem);
  else
    native(m, stem);
  if (bias == bias_rule::none) return m;
  m.bias = use(stem + ".bias");
  if (m.bias != nullptr) {
    const bool padded = is_packed && m.trellis != nullptr && m.bias->shape.size() == 1 && m.bias->shape[0] >= out;
    fits(m.bias, "F32, BF16 or F16 " + shape_text({out}),
         is_float(m.bias->type) && (padded || has_shape(m.bias, {out})));
  } else if (bias == bias_rule::needed) {
    fail(stem + ".bias", shape_text({out}), "nothing");
  }
  return m;
}

void resolver::native(found_matrix& m, const std::string& stem) {
  using format = stored_matrix::format;
  const int64_t out = m.out, in = m.in;
  m.weight = use(stem + ".weight");
  m.scale = use(stem + ".scale");
  const bool by_row = m.scale == nullptr && from_.find(stem + ".weight_scale") != nullptr;
  if (by_row) m.scale = use(stem + ".weight_scale");
  switch (m.weight->type) {
  case dtype::f32:
  case dtype::bf16:
  case dtype::f16:
    fits(m.weight, shape_text({out, in}), has_shape(m.weight, {out, in}));
    if (m.scale != nullptr)
      fail(m.scale->name, "no scale beside a " + describe(*m.weight) + " weight", describe(*m.scale));
    return;
  case dtype::f8_e4m3:
    m.how = format::fp8_block;
    fits(m.weight, "F8_E4M3 " + shape_text({out, in}), has_shape(m.weight, {out, in}));
    if (m.scale == nullptr) return fail(stem + ".scale", "F8_E8M0 " + shape_text({blocks(out), blocks(in)}), "nothing");
    if (by_row || (blocks(out) != out && has_shape(m.scale, {out, blocks(in)}))) {
      m.how = format::fp8_row;
      fits(m.scale, "F8_E8M0 " + shape_text({out, blocks(in)}),
           m.scale->type == dtype::f8_e8m0 && has_shape(m.scale, {out, blocks(in)}));
      return;
    }
    fits(m.scale, "F8_E8M0 " + shape_text({blocks(out), blocks(in)}),
         m.scale->type == dtype::f8_e8m0 && has_shape(m.scale, {blocks(out), blocks(in)}));
    return;
  case dtype::i8:
  case dtype::u8:
    m.how = format::fp4;
    fits(m.weight, "I8 " + shape_text({out, in / 2}), in % 32 == 0 && has_shape(m.weight, {out, in / 2}));
    if (m.scale == nullptr) return fail(stem + ".scale", "F8_E8M0 " + shape_text({out, in / 32}), "nothing");
    fits(m.scale, "F8_E8M0 " + shape_text({out, in / 32}),
         m.scale->type == dtype::f8_e8m0 && has_shape(m.scale, {out, in / 32}));
    return;
  default: fail(m.weight->name, "F32, BF16, F16, F8_E4M3 or I8", describe(*m.weight));
  }
}

void resolver::packed(found_matrix& m, const std::string& stem) {
  m.how = stored_matrix::format::exl3;
  m.trellis = use(stem + ".trellis");
  m.suh = use(stem + ".suh");
  m.svh = use(stem + ".svh");
  const bool legacy_in = m.suh == nullptr, legacy_out = m.svh == nullptr;
  if (legacy_in) m.suh = use(stem + ".su");
  if (legacy_out) m.svh = use(stem + ".sv");
  if (const tensor_info* scale = use(stem + ".scale"); scale != nullptr && from_.find(stem + ".weight") == nullptr)
    fail(scale->name, "no scale beside a trellis", describe(*scale));
  marker(m, stem);
  const auto& s = m.trellis->shape;
  if (!fits(m.trellis, "I16 [in / 16, out / 16, 16 K]", m.trellis->type == dtype::i16 && s.size() == 3)) return;
  const int64_t k = 16 * s[0], n = 16 * s[1];
  const bool half = s[2] == 24 || s[2] == 40 || s[2] == 56;
  fits(m.trellis, "16 K with K 1..8, or 1.5, 2.5, 3.5 with mul1",
       (s[2] % 16 == 0 && s[2] >= 16 && s[2] <= 128) || (half && m.book == stored_matrix::codebook::mul1));
  const auto padded = [](int64_t real) { return (real + hadamard - 1) / hadamard * hadamard; };
  fits(m.trellis, "the matrix " + shape_text({m.out, m.in}) + " padded to multiples of 128",
       k == padded(m.in) && n == padded(m.out));
  const auto vector = [&](const tensor_info* t, const char* part, bool legacy, int64_t length) {
    const dtype type = legacy ? dtype::i16 : dtype::f16;
    const std::vector<int64_t> shape{legacy ? length / 16 : length};
    if (t == nullptr) return fail(stem + part, "F16 " + shape_text({length}), "nothing");
    fits(t, std::string(name(type)) + " " + shape_text(shape), t->type == type && has_shape(t, shape));
  };
  vector(m.suh, ".suh", legacy_in, k);
  vector(m.svh, ".svh", legacy_out, n);
}

void resolver::marker(found_matrix& m, const std::string& stem) {
  const auto check = [&](const tensor_info* t, uint32_t expected) {
    const bool scalar = t->shape.empty() || has_shape(t, {1});
    if (!fits(t, "an I32 scalar", scalar && t->type == dtype::i32)) return;
    const std::vector<std::byte> bytes = from_.files().read(*t);
    int32_t found = 0;
    std::memcpy(&found, bytes.data(), sizeof found);
    if (std::bit_cast<uint32_t>(found) != expected)
      fail(t->name, "the codebook marker " + std::to_string(std::bit_cast<int32_t>(expected)), std::to_string(found));
  };
  const tensor_info *mul1 = use(stem + ".mul1"), *mcg = use(stem + ".mcg");
  if (mul1 != nullptr && mcg != nullptr) fail(stem, "one codebook marker", "both .mul1 and .mcg");
  m.book = mul1 != nullptr  ? stored_matrix::codebook::mul1
           : mcg != nullptr ? stored_matrix::codebook::mcg
                            : stored_matrix::codebook::inst3;
  if (mul1 != nullptr) check(mul1, mul1_marker);
  if (mcg != nullptr) check(mcg, mcg_marker);
}

found_table resolver::table(const std::string& stem, int64_t rows, int64_t width) {
  begin();
  found_table t;
  t.rows = rows;
  t.width = width;
  t.weight = use(stem + ".weight");
  t.scale = use(stem + ".scale");
  if (t.weight != nullptr && t.scale == nullptr && t.weight->type == dtype::bf16) {
    fits(t.weight, "BF16 " + shape_text({rows, width}), has_shape(t.weight, {rows, width}));
    t.format = engram_format::bf16;
    t.record_bytes = 2 * width;
    return t;
  }
  if (t.weight == nullptr || t.scale == nullptr) {
    missing_ = t.weight == nullptr && t.scale == nullptr;
    fail(stem, "a table of " + shape_text({rows, width}), "no .weight and .scale");
    return t;
  }
  const int64_t codes = t.weight->shape.size() == 2 ? t.weight->shape[1] : 0;
  const bool fp8 = codes == width && t.weight->type == dtype::f8_e4m3;
  const bool packed = t.weight->type == dtype::u8 && (codes == width / 2 || codes == width * 3 / 8);
  t.format = fp8 ? engram_format::fp8 : codes == width / 2 ? engram_format::mxint4 : engram_format::mxint3;
  if (!fits(t.weight, "F8_E4M3 " + shape_text({rows, width}) + ", or U8 of half or 3/8 that width",
            (fp8 || packed) && t.weight->shape[0] == rows))
    return t;
  const dtype scale_type = fp8 ? dtype::f8_e8m0 : dtype::f8_e4m3;
  const bool by_32 = has_shape(t.scale, {rows, width / 32}), by_16 = !fp8 && has_shape(t.scale, {rows, width / 16});
  if (!fits(t.scale, std::string(name(scale_type)) + " " + shape_text({rows, width / 32}),
            t.scale->type == scale_type && (by_32 || by_16)))
    return t;
  t.record_bytes = codes + t.scale->shape[1];
  return t;
}

std::string resolver::encoding(const found_matrix& m) {
  using format = stored_matrix::format;
  switch (m.how) {
  case format::dense: return std::string(name(m.weight->type));
  case format::fp8_block: return "FP8 32x32";
  case format::fp8_row: return "FP8 by row";
  case format::fp4: return "FP4";
  case format::exl3: break;
  }
  const int64_t doubled = m.trellis->shape[2] / 8; // 2 K
  const char* book = m.book == stored_matrix::codebook::mul1  ? "mul1"
                     : m.book == stored_matrix::codebook::mcg ? "mcg"
                                                              : "3inst";
  return "EXL3 " + std::string(book) + " K=" + std::to_string(doubled / 2) + (doubled % 2 != 0 ? ".5" : "");
}

} // namespace troupe::deepseek_v41
