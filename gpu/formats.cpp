// Scalar conversions, written from the bit layouts, and the quantisers in plain loops.
#include "gpu/formats.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace troupe {
namespace {

constexpr float nan_f32 = std::numeric_limits<float>::quiet_NaN();

// |x| rounded to the grid of that format: a multiple of 2^(e - mantissa), e at least the lowest exponent.
float round_to_grid(float magnitude, int mantissa, int lowest_exponent) {
  int e = 0;
  std::frexp(magnitude, &e); // magnitude = f * 2^e, f in [0.5, 1)
  const int step = std::max(e - 1, lowest_exponent) - mantissa;
  return std::ldexp(std::nearbyint(std::ldexp(magnitude, -step)), step);
}

float amax(const float* x, int n) {
  float m = 0;
  for (int i = 0; i < n; ++i) m = std::max(m, std::fabs(x[i]));
  return m;
}

bool all_finite(const float* x, int n) {
  return std::all_of(x, x + n, [](float v) { return std::isfinite(v); });
}

void quantise_group(float* x, int n, quantiser how) {
  if (!all_finite(x, n)) { // a poisoned row stays visibly poisoned
    std::fill(x, x + n, nan_f32);
    return;
  }
  switch (how) {
  case quantiser::fp8_32: {
    const float s = round_up_to_power_of_two(std::max(amax(x, n), 1e-4F) * (1.0F / 448.0F));
    for (int i = 0; i < n; ++i) x[i] = e4m3_to_f32(f32_to_e4m3(x[i] / s)) * s;
    break;
  }
  case quantiser::fp4_e8m0_32: {
    const float floor = std::ldexp(6.0F, -126);
    const float s = round_up_to_power_of_two(std::max(amax(x, n), floor) * (1.0F / 6.0F));
    for (int i = 0; i < n; ++i) x[i] = e2m1_to_f32(f32_to_e2m1(x[i] / s)) * s;
    break;
  }
  case quantiser::fp4_e4m3_16: {
    const float floor = std::ldexp(6.0F, -9);
    const float s = e4m3_to_f32(f32_to_e4m3(std::min(std::max(amax(x, n), floor) / 6.0F, 448.0F)));
    for (int i = 0; i < n; ++i) x[i] = e2m1_to_f32(f32_to_e2m1(x[i] / s)) * s;
    break;
  }
  }
}

} // namespace

uint16_t f32_to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return static_cast<uint16_t>((u >> 16) | 0x40);
  return static_cast<uint16_t>((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1F, fraction = bits & 0x3FF;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000 | (fraction << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

uint16_t f32_to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (u >> 16) & 0x8000, magnitude = u & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);  // NaN
  if (magnitude >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00); // 65520 and above: infinity
  if (magnitude < 0x38800000) {                                             // below 2^-14: steps of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p24F;
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(scaled)));
  }
  const uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

float e4m3_to_f32(uint8_t code) {
  if ((code & 0x7F) == 0x7F) return nan_f32;
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24, magnitude = code & 0x7F;
  // An exponent of bias 7 and three bits; below the first exponent, steps of 2^-9.
  if (magnitude >= 8) return std::bit_cast<float>(sign | ((magnitude << 20) + (120U << 23)));
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9F));
}

uint8_t f32_to_e4m3(float x) {
  if (std::isnan(x)) return 0x7F;
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float magnitude = round_to_grid(std::min(std::fabs(x), 448.0F), 3, -6);
  if (magnitude == 0) return sign;
  int e = 0;
  std::frexp(magnitude, &e);
  e -= 1;
  if (e < -6) return static_cast<uint8_t>(sign | static_cast<int>(magnitude * 512.0F)); // steps of 2^-9
  const int fraction = static_cast<int>(std::ldexp(magnitude, 3 - e)) & 7;
  return static_cast<uint8_t>(sign | ((e + 7) << 3) | fraction);
}

float e5m2_to_f32(uint8_t code) { return f16_to_f32(static_cast<uint16_t>(code << 8)); }

float e8m0_to_f32(uint8_t code) {
  if (code == 255) return nan_f32;
  return std::bit_cast<float>(code == 0 ? 0x00400000U : static_cast<uint32_t>(code) << 23); // 2^-127 has no exponent
}

float e2m1_to_f32(uint8_t code) {
  constexpr float grid[16] = {0, .5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -.5F, -1, -1.5F, -2, -3, -4, -6};
  return grid[code & 15];
}

uint8_t f32_to_e2m1(float x) {
  const uint8_t sign = std::signbit(x) ? 8 : 0;
  const float m = std::fabs(x);
  // Midpoints of the grid; a tie goes to the even code.
  uint8_t code = 7;
  if (m <= 0.25F)
    code = 0;
  else if (m < 0.75F)
    code = 1;
  else if (m <= 1.25F)
    code = 2;
  else if (m < 1.75F)
    code = 3;
  else if (m <= 2.5F)
    code = 4;
  else if (m < 3.5F)
    code = 5;
  else if (m <= 5.0F)
    code = 6;
  return sign | code;
}

float round_up_to_power_of_two(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  return std::bit_cast<float>((u + 0x7FFFFF) & 0x7F800000);
}

void to_f32(float* out, const tensor& t, const char* what) {
  const int64_t n = t.n_elements();
  const auto each = [&](auto* in, auto convert) {
    for (int64_t i = 0; i < n; ++i) out[i] = convert(in[i]);
  };
  switch (t.type) {
  case dtype::f32: std::copy_n(t.f32(), n, out); return;
  case dtype::f64: return each(t.as<double>(), [](double v) { return static_cast<float>(v); });
  case dtype::bf16: return each(t.as<uint16_t>(), bf16_to_f32);
  case dtype::f16: return each(t.as<uint16_t>(), f16_to_f32);
  case dtype::f8_e4m3: return each(t.as<uint8_t>(), e4m3_to_f32);
  case dtype::f8_e5m2: return each(t.as<uint8_t>(), e5m2_to_f32);
  case dtype::f8_e8m0: return each(t.as<uint8_t>(), e8m0_to_f32);
  default:
    throw std::runtime_error(std::string(what) + " has type " + std::string(name(t.type)) +
                             ", expected a floating-point type");
  }
}

void quantise_host(tensor x, quantiser how) {
  const int group = how == quantiser::fp4_e4m3_16 ? 16 : 32;
  const int64_t width = x.rank == 0 ? 0 : x.shape[x.rank - 1];
  TROUPE_CHECK(width % group == 0, "the last dimension is a whole number of quantiser groups");
  const int64_t n = x.n_elements();
  for (int64_t i = 0; i < n; i += group) quantise_group(x.f32() + i, group, how);
}

} // namespace troupe
