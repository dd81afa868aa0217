// The exponential of the host kernels: one sequence of operations for the twins and the vector forms, so both give the
// same bits. Within 1 ulp of e^x; 0 below -87.3, infinity above 88.8, NaN of NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace troupe {

// e^x = 2^n e^r, n the integer nearest to x / ln 2; e^r by its series to r^7 / 7!, which is exact to 6e-9 on |r| <=
// .35.
struct exp_constants {
  static constexpr float lowest = -87.3F, highest = 88.8F;
  static constexpr float log2_e = 1.44269504F;
  static constexpr float ln2_high = 0x1.62e4p-1F,
                         ln2_low = 0x1.7f7d1cp-20F; // high has bits to spare: n * high is exact
  static constexpr float round = 12582912.0F;       // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  static constexpr float series[6] = {1.0F / 5040, 1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 0.5F};
};

inline float exp_f32(float x) {
  using c = exp_constants;
  if (std::isnan(x)) return x;
  if (x < c::lowest) return 0;
  if (x > c::highest) return std::numeric_limits<float>::infinity();
  const float n = (x * c::log2_e + c::round) - c::round;
  const float r = std::fma(-n, c::ln2_low, std::fma(-n, c::ln2_high, x));
  float p = c::series[0];
  for (int i = 1; i < 6; ++i) p = std::fma(p, r, c::series[i]);
  p = std::fma(p * r, r, r) + 1.0F;
  const auto whole = static_cast<int32_t>(n), half = whole >> 1; // two steps: 2^128 is no float
  const auto power = [](int32_t e) { return std::bit_cast<float>((e + 127) << 23); };
  return p * power(half) * power(whole - half);
}

inline float sigmoid_f32(float x) { return 1.0F / (1.0F + exp_f32(-x)); }
inline float silu_f32(float x) { return x / (1.0F + exp_f32(-x)); }

} // namespace troupe
