// One function a storage format, plain loops.
#include "gpu/dequantise.h"

#include "gpu/formats.h"
#include "gpu/trellis.h"

#include <fmt/format.h>
#include <stdexcept>

namespace troupe {
namespace {

constexpr int64_t scale_block = 32;

void expect(const stored_matrix& m, const tensor& t, const char* which, dtype type, int64_t rows, int64_t columns) {
  const bool fits = t && t.rank == 2 && t.shape[0] == rows && t.shape[1] == columns && t.type == type;
  if (!fits)
    throw std::runtime_error(fmt::format("{}.{} is expected as ({}, {}) {}, found ({}, {}) {}", m.name, which, rows,
                                         columns, name(type), t ? t.shape[0] : 0, t ? t.shape[1] : 0,
                                         t ? name(t.type) : "nothing"));
}

void check_dense(const stored_matrix& m) {
  const bool is_float = m.weight.type == dtype::f32 || m.weight.type == dtype::bf16 || m.weight.type == dtype::f16;
  expect(m, m.weight, "weight", is_float ? m.weight.type : dtype::bf16, m.out, m.in);
}

// rows_a_scale: how many rows of the weight share one scale byte, 32 for blocks and 1 for rows.
void check_fp8(const stored_matrix& m, int64_t rows_a_scale) {
  expect(m, m.weight, "weight", dtype::f8_e4m3, m.out, m.in);
  expect(m, m.scale, "scale", dtype::f8_e8m0, (m.out + rows_a_scale - 1) / rows_a_scale,
         (m.in + scale_block - 1) / scale_block);
}

void check_fp4(const stored_matrix& m) {
  if (m.in % scale_block != 0)
    throw std::runtime_error(fmt::format("{}: {} inputs are no whole number of 32", m.name, m.in));
  expect(m, m.weight, "weight", dtype::i8, m.out, m.in / 2);
  expect(m, m.scale, "scale", dtype::f8_e8m0, m.out, m.in / scale_block);
}

stored_matrix check_padded(const stored_matrix& m) {
  stored_matrix padded = m;
  if (m.trellis.rank == 3) {
    const auto stored = [](int64_t real, int64_t tiles) {
      const int64_t n = tiles * 16;
      return n > real && n - real < 128 ? n : real;
    };
    padded.in = stored(m.in, m.trellis.shape[0]);
    padded.out = stored(m.out, m.trellis.shape[1]);
  }
  check_trellis(padded);
  return padded;
}

std::vector<float> dense(const stored_matrix& m) {
  std::vector<float> w(static_cast<size_t>(m.out * m.in));
  to_f32(w.data(), m.weight, m.name.c_str());
  return w;
}

std::vector<float> fp8(const stored_matrix& m, int64_t rows_a_scale) {
  const int64_t columns = (m.in + scale_block - 1) / scale_block;
  std::vector<float> w(static_cast<size_t>(m.out * m.in));
  to_f32(w.data(), m.weight, m.name.c_str());
  const uint8_t* scale = m.scale.as<uint8_t>();
  for (int64_t r = 0; r < m.out; ++r)
    for (int64_t c = 0; c < m.in; ++c)
      w[r * m.in + c] *= e8m0_to_f32(scale[r / rows_a_scale * columns + c / scale_block]);
  return w;
}

std::vector<float> fp4(const stored_matrix& m) {
  std::vector<float> w(static_cast<size_t>(m.out * m.in));
  for (int64_t i = 0; i < m.out * m.in; ++i) {
    const uint8_t pair = m.weight.as<uint8_t>()[i / 2];
    w[i] = e2m1_to_f32((i & 1) != 0 ? pair >> 4 : pair & 15) * e8m0_to_f32(m.scale.as<uint8_t>()[i / scale_block]);
  }
  return w;
}

// Padded inputs are never read, padded outputs are dropped.
std::vector<float> exl3(const stored_matrix& m, const stored_matrix& padded) {
  const std::vector<float> input_major = decode_exl3(padded);
  std::vector<float> w(static_cast<size_t>(m.out * m.in));
  for (int64_t i = 0; i < m.in; ++i)
    for (int64_t o = 0; o < m.out; ++o) w[o * m.in + i] = input_major[i * padded.out + o];
  return w;
}

} // namespace

stored_matrix check_stored(const stored_matrix& m) {
  if (m.out <= 0 || m.in <= 0)
    throw std::runtime_error(fmt::format("{}: a linear of {} outputs and {} inputs", m.name, m.out, m.in));
  if (m.bias && (m.bias.type != dtype::f32 || m.bias.n_elements() != m.out))
    throw std::runtime_error(fmt::format("{}.bias is expected as ({}) F32, found ({}) {}", m.name, m.out,
                                         m.bias.n_elements(), name(m.bias.type)));
  switch (m.how) {
  case stored_matrix::format::dense: check_dense(m); break;
  case stored_matrix::format::fp8_block: check_fp8(m, scale_block); break;
  case stored_matrix::format::fp8_row: check_fp8(m, 1); break;
  case stored_matrix::format::fp4: check_fp4(m); break;
  case stored_matrix::format::exl3: return check_padded(m);
  }
  return m;
}

std::vector<float> dequantise(const stored_matrix& m) {
  const stored_matrix stored = check_stored(m);
  switch (m.how) {
  case stored_matrix::format::dense: return dense(m);
  case stored_matrix::format::fp8_block: return fp8(m, scale_block);
  case stored_matrix::format::fp8_row: return fp8(m, 1);
  case stored_matrix::format::fp4: return fp4(m);
  case stored_matrix::format::exl3: return exl3(m, stored);
  }
  TROUPE_CHECK(false, "every storage format has a decoder");
}

} // namespace troupe
