// The activation of a gated product for many elements of a thread at once: the bits of gated.cuh without a branch, so
// that the elements' operations overlap and no division's rare case costs registers.
#pragma once

#include "gpu/gated.cuh"

namespace troupe {

// fminf and fmaxf that keep a NaN.
__device__ __forceinline__ float least_of(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
__device__ __forceinline__ float most_of(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

// x / (1 + e^-x) as silu_f32 rounds it: all that is divided is 2^-64 of its value, so that quotient and remainders stay
// clear of both ends of the format and Newton's steps round correctly.
__device__ __forceinline__ float straight_silu(float x) {
  using c = exp_constants;
  constexpr float s0 = c::series[0], s1 = c::series[1], s2 = c::series[2], s3 = c::series[3], s4 = c::series[4],
                  s5 = c::series[5], round = c::round - 64;
  const float t = least_of(most_of(-x, -40.0F), 100.0F); // beyond: 1 + e^t is 1, or infinity
  const float shifted = __fadd_rn(__fmul_rn(t, c::log2_e), round), n = __fsub_rn(shifted, round);
  const float r = __fmaf_rn(-n, c::ln2_low, __fmaf_rn(-n, c::ln2_high, t));
  float p = __fmaf_rn(s0, r, s1);
  p = __fmaf_rn(p, r, s2);
  p = __fmaf_rn(p, r, s3);
  p = __fmaf_rn(p, r, s4);
  p = __fmaf_rn(p, r, s5);
  p = __fadd_rn(__fmaf_rn(__fmul_rn(p, r), r, r), 1.0F);
  // The low bits of `shifted` are n - 64.
  const float e = __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23)), d = __fadd_rn(0x1p-64F, e);
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(d));
  inverse = __fmaf_rn(inverse, __fmaf_rn(-d, inverse, 1.0F), inverse);
  float q = __fmul_rn(x, inverse);
  q = __fmaf_rn(__fmaf_rn(-d, q, x), inverse, q);
  q = __fmul_rn(__fmaf_rn(__fmaf_rn(-d, q, x), inverse, q), 0x1p-64F);
  if (x > 40.0F) q = x;
  if (!(e < 0x1p64F)) q = __fmul_rn(x, 0.0F); // NaN stays NaN
  return __uint_as_float((__float_as_uint(q) & 0x7FFFFFFFU) | (__float_as_uint(x) & 0x80000000U));
}

__device__ __forceinline__ float4 gated_four(float4 g, float4 u, float weight, float limit) {
  return make_float4(gated(g.x, u.x, weight, limit), gated(g.y, u.y, weight, limit), gated(g.z, u.z, weight, limit),
                     gated(g.w, u.w, weight, limit));
}

// g = gated(g, u, weight, limit).
__device__ __forceinline__ void gated_unit(float (&g)[2][8], const float (&u)[2][8], float weight, float limit) {
  const float most = limit > 0 ? limit : INFINITY;
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j)
      g[i][j] = straight_silu(least_of(g[i][j], most)) * least_of(most_of(u[i][j], -most), most) * weight;
}

} // namespace troupe
