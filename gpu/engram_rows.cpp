// Plain loops over records and copies.
#include "gpu/engram_rows.h"

#include "gpu/dot.h"
#include "gpu/exp.h"
#include "gpu/formats.h"

#include <algorithm>
#include <cmath>

namespace troupe {
namespace {

int64_t code_bytes(engram_format format, int64_t width) {
  switch (format) {
  case engram_format::fp8: return width;
  case engram_format::mxint4: return width / 2;
  case engram_format::mxint3: return width * 3 / 8;
  case engram_format::bf16: return width * 2;
  }
  TROUPE_CHECK(false, "every Engram format has a size");
}

int signed_code(const uint8_t* codes, int64_t i, engram_format format) {
  if (format == engram_format::mxint4) {
    const int nibble = (i & 1) != 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
    return nibble >= 8 ? nibble - 16 : nibble;
  }
  const uint8_t* group = codes + i / 8 * 3;
  const uint32_t word = group[0] | (group[1] << 8) | (static_cast<uint32_t>(group[2]) << 16);
  const int three = static_cast<int>((word >> (3 * (i % 8))) & 7);
  return three >= 4 ? three - 8 : three;
}

} // namespace

int64_t engram_record_bytes(engram_format format, int64_t width, int64_t block) {
  return code_bytes(format, width) + (format == engram_format::bf16 ? 0 : width / block);
}

void dequant_rows_host(tensor y, tensor records, engram_format format, int64_t width) {
  const int64_t n_bytes = records.shape[records.rank - 1], n_codes = code_bytes(format, width);
  if (format == engram_format::bf16) {
    TROUPE_CHECK(n_bytes == n_codes, "a record of plain numbers holds nothing else");
    to_f32(y.f32(), tensor(records.data, dtype::bf16, {records.n_elements() / 2}), "Engram rows");
    return;
  }
  const int64_t n_scales = n_bytes - n_codes;
  TROUPE_CHECK(n_scales > 0 && width % n_scales == 0, "a record holds codes and whole blocks of scales");
  const int64_t block = width / n_scales;
  TROUPE_CHECK(block == 32 || (block == 16 && format != engram_format::fp8),
               "a scale covers 32 columns, MXINT also 16");
  const int64_t n_records = n_bytes == 0 ? 0 : records.n_elements() / n_bytes;
  for (int64_t r = 0; r < n_records; ++r) {
    const uint8_t* codes = records.as<uint8_t>() + r * n_bytes;
    const uint8_t* scales = codes + n_codes;
    float* out = y.f32() + r * width;
    for (int64_t c = 0; c < width; ++c)
      out[c] = format == engram_format::fp8
                   ? e4m3_to_f32(codes[c]) * e8m0_to_f32(scales[c / block])
                   : static_cast<float>(signed_code(codes, c, format)) * (e4m3_to_f32(scales[c / block]) / 8.0F);
  }
}

void engram_gate_host(tensor h, tensor kv, tensor q_weight, tensor k_weight, tensor dead, tensor gates, float eps) {
  const int64_t n_rows = h.shape[0], copies = h.shape[1], dim = h.shape[2];
  const float norm = 1.0F / std::sqrt(static_cast<float>(dim));
  for (int64_t r = 0; r < n_rows; ++r) {
    const bool is_dead = dead && dead.i32()[r] != 0;
    const float* value = kv.f32() + (r * (copies + 1) + copies) * dim;
    for (int64_t m = 0; m < copies; ++m) {
      float* hm = h.f32() + (r * copies + m) * dim;
      const float* key = kv.f32() + (r * (copies + 1) + m) * dim;
      const float *qw = q_weight.f32() + m * dim, *kw = k_weight.f32() + m * dim;
      float lane[dot_lanes] = {};
      for (int64_t i = 0; i < dim; ++i)
        lane[i % dot_lanes] = std::fma(hm[i] * qw[i], kw[i] * key[i], lane[i % dot_lanes]);
      const float mean_h = row_dot(hm, hm, dim) / static_cast<float>(dim);
      const float mean_key = row_dot(key, key, dim) / static_cast<float>(dim);
      const float dot = sum_lanes(lane) / std::sqrt(mean_h + eps) / std::sqrt(mean_key + eps) * norm;
      const float root = std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6F)), dot);
      const float gate = is_dead ? 0.0F : sigmoid_f32(root);
      if (gates) gates.f32()[r * copies + m] = gate;
      if (is_dead) continue;
      for (int64_t i = 0; i < dim; ++i) hm[i] = std::fma(gate, value[i], hm[i]);
    }
  }
}

} // namespace troupe
