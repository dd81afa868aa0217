// What the kernels of the mixing coefficients share: from the product of a row and its sum of squares on. For .cu files
// only.
#pragma once

#include "gpu/device_math.cuh"

namespace troupe {

struct mix_pointers {
  float *pre, *post, *comb;
  const float *h, *z, *scale, *base;
  int64_t width; // M D
  int m, iterations;
  float eps, hc_eps;
};

// Element `f` of a small matrix that the lanes of a warp hold, lane l elements l and l + 32.
template <int Held> __device__ float element_of(const float (&c)[Held], int f) {
  const float low = __shfl_sync(device::all_lanes, c[0], f % 32);
  if constexpr (Held == 1) return low;
  const float high = __shfl_sync(device::all_lanes, c[Held - 1], f % 32);
  return f < 32 ? low : high;
}

// Divides each element by eps plus the sum over first[i], first[i] + step, ..: m of them, ascending, as the twin adds.
template <int M, int Held>
__device__ void normalise(float (&c)[Held], const int (&first)[Held], int step, int m, float eps) {
  float sum[Held];
#pragma unroll
  for (int i = 0; i < Held; ++i) {
    sum[i] = 0;
#pragma unroll
    for (int k = 0; k < (M > 0 ? M : m); ++k) sum[i] += element_of(c, first[i] + k * step);
  }
#pragma unroll
  for (int i = 0; i < Held; ++i) c[i] /= sum[i] + eps;
}

// A warp makes the comb of one row, or of one in each half (Lanes = 16, M = 4): Sinkhorn on (m, m), a lane an element
// (two with M = 6 and more). A chain of 2 * iterations sums and divisions, so bound by latency: about 90 cycles each.
// Lanes past the matrix repeat element 0.
template <int M, int Held, int Lanes = 32>
__device__ void make_comb(const mix_pointers& a, const float* z, float by, float* comb) {
  static_assert(Lanes == 32 || (Held == 1 && M * M <= Lanes));
  const int m = M > 0 ? M : a.m, lane = static_cast<int>(threadIdx.x) % Lanes;
  const int own = static_cast<int>(threadIdx.x) % 32 - lane; // first lane of the row
  float c[Held];
  int row[Held], column[Held];
#pragma unroll
  for (int i = 0; i < Held; ++i) {
    const int e = lane + 32 * i < m * m ? lane + 32 * i : 0;
    row[i] = own + e / m * m;
    column[i] = own + e % m;
    c[i] = z[2 * m + e] * by * a.scale[2] + a.base[2 * m + e];
  }
  float top[Held];
#pragma unroll
  for (int i = 0; i < Held; ++i) {
    top[i] = element_of(c, row[i]);
    for (int k = 1; k < m; ++k) top[i] = fmaxf(top[i], element_of(c, row[i] + k));
  }
#pragma unroll
  for (int i = 0; i < Held; ++i) c[i] = device::exp_f32(c[i] - top[i]);
  normalise<M>(c, row, 1, m, 0.0F);
#pragma unroll
  for (int i = 0; i < Held; ++i) c[i] += a.hc_eps;
  normalise<M>(c, column, m, m, a.hc_eps);
  for (int n = 1; n < a.iterations; ++n) {
    normalise<M>(c, row, 1, m, a.hc_eps);
    normalise<M>(c, column, m, m, a.hc_eps);
  }
#pragma unroll
  for (int i = 0; i < Held; ++i)
    if (lane + 32 * i < m * m) comb[lane + 32 * i] = c[i];
}

// The gates of row r, lane l < 2 m one of them: m of pre, m of post.
__device__ inline void make_gate(const mix_pointers& a, const float* z, float by, int64_t r, int m, int lane) {
  const int part = lane < m ? 0 : 1;
  const float gate = device::sigmoid_f32(z[lane] * by * a.scale[part] + a.base[lane]);
  if (part == 0)
    a.pre[r * m + lane] = gate + a.hc_eps;
  else
    a.post[r * m + lane - m] = 2.0F * gate;
}

} // namespace troupe
