// Elements of unpacked formats on the device, exact in f32 as in gpu/formats.cpp.     Spec: model-tensors.md section 1.
#pragma once

#include "gpu/cuda_matrix.h"

#include <cuda_fp16.h>

namespace troupe {

__device__ __forceinline__ float e8m0_value(uint8_t code) {
  if (code == 255) return NAN;
  return __uint_as_float(code == 0 ? 0x00400000U : static_cast<uint32_t>(code) << 23);
}
__device__ __forceinline__ float bf16_value(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

// The exponent of e4m3 has 4 bits and bias 7: as the bits of an f32 it is off by a factor of 2^120, subnormals
// included.
__device__ __forceinline__ float e4m3_value(uint8_t code) {
  if ((code & 0x7F) == 0x7F) return NAN;
  const uint32_t bits = (static_cast<uint32_t>(code & 0x80) << 24) | (static_cast<uint32_t>(code & 0x7F) << 20);
  return __uint_as_float(bits) * 0x1p120F;
}
__device__ __forceinline__ float e2m1_value(uint32_t code) {
  // Twice the value as an integer: 0 1 2 3 4 6 8 12.
  const float magnitude = 0.5F * static_cast<float>((0xC8643210U >> (4 * (code & 7))) & 15);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

template <plain_view::format How>
constexpr int element_bits = How == plain_view::format::f32   ? 32
                             : How == plain_view::format::fp8 ? 8
                             : How == plain_view::format::fp4 ? 4
                                                              : 16;

// Four elements k .. k + 3 of row n, k a multiple of 4; zeros past `in`.
template <plain_view::format How>
__device__ __forceinline__ void load_four(float (&w)[4], const plain_view& m, int64_t in, int64_t n, int64_t k) {
  using format = plain_view::format;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (k + i >= in) {
      w[i] = 0;
      continue;
    }
    const int64_t at = n * in + k + i;
    if constexpr (How == format::f32) w[i] = static_cast<const float*>(m.weight)[at];
    if constexpr (How == format::bf16) w[i] = bf16_value(static_cast<const uint16_t*>(m.weight)[at]);
    if constexpr (How == format::f16) w[i] = __half2float(__ushort_as_half(static_cast<const uint16_t*>(m.weight)[at]));
    if constexpr (How == format::fp8)
      w[i] = e4m3_value(static_cast<const uint8_t*>(m.weight)[at]) *
             e8m0_value(m.scale[n / m.rows_a_scale * ((in + 31) / 32) + (k + i) / 32]);
    if constexpr (How == format::fp4) {
      const uint8_t pair = static_cast<const uint8_t*>(m.weight)[at / 2];
      w[i] = e2m1_value((at & 1) != 0 ? pair >> 4 : pair & 15) * e8m0_value(m.scale[n * (in / 32) + (k + i) / 32]);
    }
  }
}

// The same; Fours: `in` is a multiple of 4 and `weight` lies at one of 16 bytes, so that k < in reads them as one.
template <plain_view::format How, bool Fours>
__device__ __forceinline__ void load_weights(float (&w)[4], const plain_view& m, int in, int n, int k) {
  using format = plain_view::format;
  if constexpr (!Fours) return load_four<How>(w, m, in, n, k);
  const int64_t at = static_cast<int64_t>(n) * in + k;
  if constexpr (How == format::f32) {
    const float4 four = *reinterpret_cast<const float4*>(static_cast<const float*>(m.weight) + at);
    w[0] = four.x, w[1] = four.y, w[2] = four.z, w[3] = four.w;
  } else if constexpr (How == format::bf16 || How == format::f16) {
    const uint2 four = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(m.weight) + at);
    const uint16_t bits[4] = {static_cast<uint16_t>(four.x), static_cast<uint16_t>(four.x >> 16),
                              static_cast<uint16_t>(four.y), static_cast<uint16_t>(four.y >> 16)};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      w[i] = How == format::bf16 ? bf16_value(bits[i]) : __half2float(__ushort_as_half(bits[i]));
  } else if constexpr (How == format::fp8) {
    const uint32_t four = *reinterpret_cast<const uint32_t*>(static_cast<const uint8_t*>(m.weight) + at);
    const float by = e8m0_value(m.scale[static_cast<int64_t>(n / m.rows_a_scale) * ((in + 31) / 32) + k / 32]);
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = e4m3_value(static_cast<uint8_t>(four >> (8 * i))) * by;
  } else {
    const uint32_t four = *reinterpret_cast<const uint16_t*>(static_cast<const uint8_t*>(m.weight) + at / 2);
    const float by = e8m0_value(m.scale[static_cast<int64_t>(n) * (in / 32) + k / 32]);
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = e2m1_value(four >> (4 * i) & 15) * by;
  }
}

// sum_k x[r][k] W[n][k] of up to Rows rows by one warp: lane l takes k = 4 l .. 4 l + 3, then + 128; then the lanes'
// sums by halves. x(r, k) is the element.
template <plain_view::format How, int Rows, class X>
__device__ __forceinline__ void warp_dots(float (&sum)[Rows], const plain_view& m, int64_t in, int64_t n, int n_rows,
                                          const X& x) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (float& s : sum) s = 0;
  for (int64_t k = 4 * lane; k < in; k += 128) {
    float w[4];
    load_four<How>(w, m, in, n, k);
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      if (r >= n_rows) break;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (k + i < in) sum[r] = fmaf(x(r, k + i), w[i], sum[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < Rows; ++r)
#pragma unroll
    for (int half = 16; half > 0; half /= 2) sum[r] += __shfl_xor_sync(0xFFFFFFFF, sum[r], half);
}

// Calls `f` with the format as a template argument: f.template operator()<How>().
template <class F> auto with_format(plain_view::format how, const F& f) {
  using format = plain_view::format;
  switch (how) {
  case format::f32: return f.template operator()<format::f32>();
  case format::bf16: return f.template operator()<format::bf16>();
  case format::f16: return f.template operator()<format::f16>();
  case format::fp8: return f.template operator()<format::fp8>();
  case format::fp4: return f.template operator()<format::fp4>();
  }
}

} // namespace troupe
