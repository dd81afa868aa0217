// Random stored linears of every format.
#pragma once

#include "gpu/backend.h"
#include "gpu/codebook.h"
#include "gpu/formats.h"

#include <fmt/format.h>

#include <random>
#include <string>
#include <vector>

namespace troupe::test {

// A stored linear and the memory its tensors lie in.
struct stored_sample {
  stored_matrix m;
  std::vector<uint16_t> words, suh, svh;
  std::vector<uint8_t> bytes, scales;
  std::vector<float> floats, bias;
};

// Any bits are a valid trellis. Scales near those of real packs, both signs, and a dead output.
inline stored_sample trellis_sample(stored_matrix::codebook book, int rate, int64_t in, int64_t out, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  stored_sample s;
  s.words.resize(static_cast<size_t>(in / 16 * out / 16 * 8 * rate));
  for (uint16_t& w : s.words) w = static_cast<uint16_t>(random());
  const auto scales = [&](std::vector<uint16_t>& v, int64_t n) {
    for (int64_t i = 0; i < n; ++i)
      v.push_back(f32_to_f16((0.5F + 0.2F * normal(random)) * (random() % 2 == 0 ? 1.0F : -1.0F)));
  };
  scales(s.suh, in);
  scales(s.svh, out);
  s.svh[static_cast<size_t>(out / 2)] = 0;
  s.m.how = stored_matrix::format::exl3;
  s.m.book = book;
  s.m.in = in;
  s.m.out = out;
  s.m.name = fmt::format("EXL3 {} K={} {}x{}", name(book), rate / 2.0, in, out);
  s.m.trellis = tensor(s.words.data(), dtype::i16, {in / 16, out / 16, 8 * rate});
  s.m.suh = tensor(s.suh.data(), dtype::f16, {in});
  s.m.svh = tensor(s.svh.data(), dtype::f16, {out});
  return s;
}

// f32, bf16, f16, fp8 in blocks, fp8 in rows, fp4. in % 32 == 0.
inline std::vector<stored_sample> plain_samples(int64_t out, int64_t in) {
  using format = stored_matrix::format;
  std::vector<stored_sample> all;
  std::mt19937 random(77);
  std::normal_distribution<float> normal(0, 0.3F);
  const auto start = [&](const char* name, format how) -> stored_sample& {
    stored_sample& s = all.emplace_back();
    s.m.how = how;
    s.m.out = out;
    s.m.in = in;
    s.m.name = name;
    return s;
  };
  all.reserve(6);
  stored_sample& f32 = start("f32", format::dense);
  for (int64_t i = 0; i < out * in; ++i) f32.floats.push_back(normal(random));
  f32.m.weight = tensor(f32.floats.data(), dtype::f32, {out, in});
  for (const dtype type : {dtype::bf16, dtype::f16}) {
    stored_sample& s = start(type == dtype::bf16 ? "bf16" : "f16", format::dense);
    for (int64_t i = 0; i < out * in; ++i)
      s.words.push_back(type == dtype::bf16 ? f32_to_bf16(normal(random)) : f32_to_f16(normal(random)));
    s.m.weight = tensor(s.words.data(), type, {out, in});
  }
  for (const format how : {format::fp8_block, format::fp8_row, format::fp4}) {
    const char* name = how == format::fp8_block ? "fp8 in blocks" : how == format::fp8_row ? "fp8 in rows" : "fp4";
    stored_sample& s = start(name, how);
    const int64_t n = how == format::fp4 ? out * in / 2 : out * in;
    for (int64_t i = 0; i < n; ++i) {
      const auto code = static_cast<uint8_t>(random());
      s.bytes.push_back(how != format::fp4 && (code & 0x7F) == 0x7F ? 0x30 : code);
    }
    const int64_t scale_rows = how == format::fp8_block ? (out + 31) / 32 : out, scale_columns = (in + 31) / 32;
    for (int64_t i = 0; i < scale_rows * scale_columns; ++i)
      s.scales.push_back(static_cast<uint8_t>(118 + random() % 6));
    s.m.weight = how == format::fp4 ? tensor(s.bytes.data(), dtype::i8, {out, in / 2})
                                    : tensor(s.bytes.data(), dtype::f8_e4m3, {out, in});
    s.m.scale = tensor(s.scales.data(), dtype::f8_e8m0, {scale_rows, scale_columns});
  }
  return all;
}

} // namespace troupe::test
