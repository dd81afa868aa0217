// Arithmetic that kernels share: the exponential of gpu/exp.h and the conversions of gpu/formats.h with the same bits,
// and sums over a warp or a block in one fixed order. For .cu files only.
#pragma once

#include "gpu/exp.h"

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace troupe::device {

inline constexpr unsigned all_lanes = 0xFFFFFFFFU;
inline constexpr int warp_lanes = 32;
inline constexpr int max_warps = 32; // of a block

__device__ inline float quiet_nan() { return __uint_as_float(0x7FC00000U); }
__device__ inline bool is_nan(float x) { return (__float_as_uint(x) & 0x7FFFFFFFU) > 0x7F800000U; }

// exp_f32 of gpu/exp.h, step by step; the named roundings keep it so whatever the compiler's flags are.
__device__ inline float exp_f32(float x) {
  using c = exp_constants;
  constexpr float s0 = c::series[0], s1 = c::series[1], s2 = c::series[2], s3 = c::series[3], s4 = c::series[4],
                  s5 = c::series[5];
  if (is_nan(x)) return x;
  if (x < c::lowest) return 0.0F;
  if (x > c::highest) return __uint_as_float(0x7F800000U);
  const float n = __fsub_rn(__fadd_rn(__fmul_rn(x, c::log2_e), c::round), c::round);
  const float r = __fmaf_rn(-n, c::ln2_low, __fmaf_rn(-n, c::ln2_high, x));
  float p = __fmaf_rn(s0, r, s1);
  p = __fmaf_rn(p, r, s2);
  p = __fmaf_rn(p, r, s3);
  p = __fmaf_rn(p, r, s4);
  p = __fmaf_rn(p, r, s5);
  p = __fadd_rn(__fmaf_rn(__fmul_rn(p, r), r, r), 1.0F);
  const int32_t whole = static_cast<int32_t>(n), half = whole >> 1;
  const float low = __int_as_float((half + 127) << 23), high = __int_as_float((whole - half + 127) << 23);
  return __fmul_rn(__fmul_rn(p, low), high);
}

__device__ inline float sigmoid_f32(float x) { return __fdiv_rn(1.0F, __fadd_rn(1.0F, exp_f32(-x))); }
__device__ inline float silu_f32(float x) { return __fdiv_rn(x, __fadd_rn(1.0F, exp_f32(-x))); }

// Formats. Bits as gpu/formats.cpp, NaN included.
__device__ inline float bf16_to_f32(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }
__device__ inline uint16_t f32_to_bf16(float x) {
  const uint32_t u = __float_as_uint(x);
  if (is_nan(x)) return static_cast<uint16_t>((u >> 16) | 0x40U);
  return static_cast<uint16_t>((u + 0x7FFFU + ((u >> 16) & 1U)) >> 16);
}

__device__ inline float f16_to_f32(uint16_t bits) {
  if ((bits & 0x7FFFU) > 0x7C00U) // NaN: the instruction need not keep its bits
    return __uint_as_float((static_cast<uint32_t>(bits & 0x8000U) << 16) | 0x7F800000U |
                           (static_cast<uint32_t>(bits & 0x3FFU) << 13));
  return __half2float(__ushort_as_half(bits));
}
__device__ inline uint16_t f32_to_f16(float x) {
  if (is_nan(x)) return static_cast<uint16_t>(((__float_as_uint(x) >> 16) & 0x8000U) | 0x7E00U);
  return __half_as_ushort(__float2half_rn(x));
}
__device__ inline float round_to_f16(float x) { return f16_to_f32(f32_to_f16(x)); }

__device__ inline float e4m3_to_f32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80U) << 24, magnitude = code & 0x7FU;
  if (magnitude == 0x7FU) return quiet_nan();
  if (magnitude >= 8) return __uint_as_float(sign | ((magnitude << 20) + (120U << 23)));
  return __uint_as_float(sign | __float_as_uint(static_cast<float>(magnitude) * 0x1p-9F));
}
__device__ inline uint8_t f32_to_e4m3(float x) {
  if (is_nan(x)) return 0x7F;
  const uint32_t sign = (__float_as_uint(x) >> 24) & 0x80U;
  const float magnitude = fminf(fabsf(x), 448.0F);
  if (magnitude < 0x1p-6F) // steps of 2^-9; rounded up to eight of them it is the code of 2^-6
    return static_cast<uint8_t>(sign | static_cast<uint32_t>(rintf(magnitude * 512.0F)));
  const uint32_t u = __float_as_uint(magnitude);
  return static_cast<uint8_t>(sign | (((u + 0x7FFFFU + ((u >> 20) & 1U)) >> 20) - (120U << 3)));
}
__device__ inline float e5m2_to_f32(uint8_t code) { return f16_to_f32(static_cast<uint16_t>(code << 8)); }
__device__ inline float e8m0_to_f32(uint8_t code) {
  if (code == 255) return quiet_nan();
  return __uint_as_float(code == 0 ? 0x00400000U : static_cast<uint32_t>(code) << 23);
}
__device__ inline float e2m1_to_f32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 8U) << 28, magnitude = code & 7U;
  // An exponent of bias 1 and one bit: 0, .5, then (2 + bit) 2^(exponent - 2).
  if (magnitude < 2) return __uint_as_float(sign | (magnitude == 0 ? 0U : 0x3F000000U));
  return __uint_as_float(sign | ((magnitude << 22) + (126U << 23)));
}
__device__ inline uint8_t f32_to_e2m1(float x) {
  const uint32_t sign = (__float_as_uint(x) >> 28) & 8U;
  const float m = fabsf(x);
  // The number of midpoints below m; a tie goes to the even code, NaN to 7.
  const int code =
      !(m <= 0.25F) + !(m < 0.75F) + !(m <= 1.25F) + !(m < 1.75F) + !(m <= 2.5F) + !(m < 3.5F) + !(m <= 5.0F);
  return static_cast<uint8_t>(sign | static_cast<uint32_t>(code));
}
__device__ inline float round_up_to_power_of_two(float v) {
  return __uint_as_float((__float_as_uint(v) + 0x7FFFFFU) & 0x7F800000U);
}

// The sum over the `n` lanes of an aligned part of a warp (n a power of two), the same bits in each of them. All lanes
// of the warp call it.
__device__ inline float lanes_sum(float x, int n = warp_lanes) {
  for (int step = n / 2; step > 0; step /= 2) x += __shfl_xor_sync(all_lanes, x, step);
  return x;
}
__device__ inline float lanes_max(float x, int n = warp_lanes) {
  for (int step = n / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, step));
  return x;
}

// The sums of N values over a one-dimensional block of whole warps, the same bits in every thread: a tree in each warp,
// then warp after warp. All threads call it; `shared` may be used again after the next barrier.
template <int N> __device__ inline void block_sums(float (&x)[N], float (&shared)[N][max_warps]) {
  const int warp = static_cast<int>(threadIdx.x) / warp_lanes, n_warps = static_cast<int>(blockDim.x) / warp_lanes;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    x[i] = lanes_sum(x[i]);
    if (threadIdx.x % warp_lanes == 0) shared[i][warp] = x[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; ++i) {
    x[i] = shared[i][0];
    for (int w = 1; w < n_warps; ++w) x[i] += shared[i][w];
  }
}

} // namespace troupe::device
