// Reading one linear out of its files, whole or cut along outputs or inputs (exl3.md 8.1, model.md section 6).
#include "model/deepseek_v41/stored_part.h"

#include <cmath>
#include <cstring>

namespace troupe::deepseek_v41 {
namespace {

using bytes = std::vector<std::byte>;

// Rows [r0, r0 + rn) and, of each, bytes [c0, c0 + cn) of a row-major (.., row_bytes) tensor.
bytes window(const checkpoint_files& files, const tensor_info& t, uint64_t row_bytes, uint64_t r0, uint64_t rn,
             uint64_t c0, uint64_t cn) {
  bytes band(rn * row_bytes);
  files.read_range(t, r0 * row_bytes, band);
  if (cn == row_bytes) return band;
  bytes part(rn * cn);
  for (uint64_t r = 0; r < rn; ++r) std::memcpy(part.data() + r * cn, band.data() + r * row_bytes + c0, cn);
  return part;
}

float half_to_float(uint16_t h) {
  const int exponent = h >> 10 & 31;
  const float mantissa = static_cast<float>(h & 1023);
  const float v = exponent == 0    ? std::ldexp(mantissa, -24)
                  : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                   : std::ldexp(mantissa + 1024, exponent - 25);
  return (h & 0x8000) != 0 ? -v : v;
}

// One side vector of an EXL3 matrix as F16; the legacy sign words su, sv become +-1 (exl3.md section 3).
bytes side_vector(const checkpoint_files& files, const tensor_info& t, int64_t first, int64_t count) {
  bytes part(static_cast<size_t>(count) * 2);
  if (t.type == dtype::f16) {
    files.read_range(t, static_cast<uint64_t>(first) * 2, part);
    for (int64_t i = 0; i < count; ++i) {
      uint16_t h = 0;
      std::memcpy(&h, part.data() + i * 2, 2);
      if ((h & 0x7C00) == 0x7C00)
        throw checkpoint_error(t.name + ": expected finite numbers, found none at " + std::to_string(first + i));
    }
    return part;
  }
  const bytes words = files.read(t);
  for (int64_t i = 0; i < count; ++i) {
    uint16_t word = 0;
    std::memcpy(&word, words.data() + (first + i) / 16 * 2, 2);
    const uint16_t one = (word >> ((first + i) % 16) & 1) != 0 ? 0xBC00 : 0x3C00;
    std::memcpy(part.data() + i * 2, &one, 2);
  }
  return part;
}

struct span_of {
  int64_t first, count;
};

tensor keep(stored_part& p, bytes b, dtype type, std::initializer_list<int64_t> shape) {
  p.bytes.push_back(std::move(b));
  return tensor(p.bytes.back().data(), type, shape);
}

void read_packed(stored_part& p, const found_matrix& m, const checkpoint_files& files, span_of out, span_of in) {
  const auto& s = m.trellis->shape;
  // An uncut side keeps its padding: the backend sees the stored sizes and trims (exl3.md section 7).
  const int64_t k = in.count == m.in ? 16 * s[0] : in.count, n = out.count == m.out ? 16 * s[1] : out.count;
  const auto tile = static_cast<uint64_t>(s[2]) * 2;
  p.matrix.trellis = keep(p,
                          window(files, *m.trellis, static_cast<uint64_t>(s[1]) * tile,
                                 static_cast<uint64_t>(in.first / 16), static_cast<uint64_t>(k / 16),
                                 static_cast<uint64_t>(out.first / 16) * tile, static_cast<uint64_t>(n / 16) * tile),
                          dtype::i16, {k / 16, n / 16, s[2]});
  p.matrix.suh = keep(p, side_vector(files, *m.suh, in.first, k), dtype::f16, {k});
  bytes svh = side_vector(files, *m.svh, out.first, n);
  for (int64_t i = out.count; i < n; ++i) {
    uint16_t h = 0;
    std::memcpy(&h, svh.data() + i * 2, 2);
    if ((h & 0x7FFF) != 0)
      throw checkpoint_error(m.svh->name + ": expected 0 in the padding, found another value at " + std::to_string(i));
  }
  p.matrix.svh = keep(p, std::move(svh), dtype::f16, {n});
}

void read_native(stored_part& p, const found_matrix& m, const checkpoint_files& files, span_of out, span_of in) {
  using format = stored_matrix::format;
  const auto u = [](int64_t v) { return static_cast<uint64_t>(v); };
  const auto blocks = [](int64_t v) { return (v + 31) / 32; };
  const int64_t size = size_bytes(m.weight->type), per = m.how == format::fp4 ? 2 : 1; // elements a stored item
  p.matrix.weight = keep(p,
                         window(files, *m.weight, u(m.in / per * size), u(out.first), u(out.count),
                                u(in.first / per * size), u(in.count / per * size)),
                         m.weight->type == dtype::u8 ? dtype::i8 : m.weight->type, {out.count, in.count / per});
  if (m.how == format::dense) return;
  const bool by_block = m.how == format::fp8_block;
  const int64_t rows = by_block ? blocks(out.count) : out.count, first = by_block ? out.first / 32 : out.first;
  p.matrix.scale =
      keep(p, window(files, *m.scale, u(blocks(m.in)), u(first), u(rows), u(in.first / 32), u(blocks(in.count))),
           dtype::f8_e8m0, {rows, blocks(in.count)});
}

} // namespace

std::vector<float> read_floats(const checkpoint_files& files, const tensor_info& t) {
  const bytes raw = files.read(t);
  std::vector<float> v(raw.size() / static_cast<size_t>(size_bytes(t.type)));
  for (size_t i = 0; i < v.size(); ++i) {
    uint32_t bits = 0;
    if (t.type == dtype::f32) std::memcpy(&bits, raw.data() + 4 * i, 4);
    uint16_t half = 0;
    if (t.type != dtype::f32) std::memcpy(&half, raw.data() + 2 * i, 2);
    if (t.type == dtype::bf16) bits = static_cast<uint32_t>(half) << 16;
    std::memcpy(&v[i], &bits, 4);
    if (t.type == dtype::f16) v[i] = half_to_float(half);
  }
  return v;
}

stored_part read_part(const checkpoint_files& files, const found_matrix& m, matrix_cut cut) {
  const span_of out{cut.out_first, cut.out_count < 0 ? m.out : cut.out_count};
  const span_of in{cut.in_first, cut.in_count < 0 ? m.in : cut.in_count};
  const int64_t unit = m.cut_unit();
  const auto cuttable = [&](span_of s, int64_t whole) {
    return s.first % unit == 0 && ((s.first + s.count) % unit == 0 || s.first + s.count == whole);
  };
  if (!cuttable(out, m.out) || !cuttable(in, m.in))
    throw checkpoint_error(m.name + ": expected a cut at multiples of " + std::to_string(unit) + ", found outputs " +
                           std::to_string(out.first) + " + " + std::to_string(out.count) + ", inputs " +
                           std::to_string(in.first) + " + " + std::to_string(in.count));
  stored_part p;
  p.matrix.how = m.how;
  p.matrix.book = m.book;
  p.matrix.name = m.name;
  p.matrix.out = out.count;
  p.matrix.in = in.count;
  if (m.how == stored_matrix::format::exl3)
    read_packed(p, m, files, out, in);
  else
    read_native(p, m, files, out, in);
  if (m.bias == nullptr) return p;
  const std::vector<float> bias = read_floats(files, *m.bias);
  bytes part(static_cast<size_t>(out.count) * 4);
  std::memcpy(part.data(), bias.data() + out.first, part.size());
  if (cut.in_first == 0) p.matrix.bias = keep(p, std::move(part), dtype::f32, {out.count}); // once over the ranks
  return p;
}

} // namespace troupe::deepseek_v41
