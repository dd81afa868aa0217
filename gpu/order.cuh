// Scores as unsigned numbers of the same order, for selection.
#pragma once

#include "gpu/device_math.cuh"

namespace troupe::device {

inline constexpr uint32_t order_of_infinity = 0xFF800000U;

// Ascending with the score and never 0; both zeros are one, what is no number is minus infinity.
__device__ inline uint32_t order_of(float score) {
  const uint32_t bits = is_nan(score) ? 0xFF800000U : __float_as_uint(score + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

} // namespace troupe::device
