// The one order in which the host twins sum a dot product: 16 partial sums, then a fixed tree.
#pragma once

#include <cmath>
#include <cstdint>

namespace troupe {

inline constexpr int dot_lanes = 16;

// Halves the lanes until one is left: lane i + lane i + 8, then + 4, + 2, + 1. What vector code does, bit for bit.
inline float sum_lanes(float (&lane)[dot_lanes]) {
  for (int half = dot_lanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
}

// sum_i a[i] * b[i]: lane i takes elements i, i + 16, ... with fused steps.
inline float row_dot(const float* a, const float* b, int64_t n) {
  float lane[dot_lanes] = {};
  int64_t i = 0;
  for (; i + dot_lanes <= n; i += dot_lanes)
    for (int k = 0; k < dot_lanes; ++k) lane[k] = std::fma(a[i + k], b[i + k], lane[k]);
  for (int k = 0; i < n; ++i, ++k) lane[k] = std::fma(a[i], b[i], lane[k]);
  return sum_lanes(lane);
}

// sum_i a[i], the same way.
inline float row_sum(const float* a, int64_t n) {
  float lane[dot_lanes] = {};
  for (int64_t i = 0; i < n; ++i) lane[i % dot_lanes] += a[i];
  return sum_lanes(lane);
}

} // namespace troupe
