// Rows made ready for trellis_gemm.h: times suh, Hadamard, f16 multiples of a power of two a row.      Spec:
// exl3.md 6.2.
//
// Bound by bytes: a row is read once and written once at half the width.
#pragma once

#include "gpu/trellis_block.cuh"
#include "gpu/trellis_gemm.h"

#include <algorithm>

namespace troupe {

constexpr int most_row_threads = 1024;
// A warp keeps a unit of four Hadamard blocks in registers; what is wider than 16384 is read twice.
inline int row_threads(int in) { return std::min((in / 128 + 3) / 4, most_row_threads / 32) * 32; }

// Four neighbours of a row of n f32 elements, zeros behind it.
struct row_reader {
  const float* x;
  int n;
  __device__ float4 operator()(int k) const {
    if (k + 4 <= n && reinterpret_cast<uintptr_t>(x) % 16 == 0) return *reinterpret_cast<const float4*>(x + k);
    float4 v;
    v.x = k < n ? x[k] : 0.0F;
    v.y = k + 1 < n ? x[k + 1] : 0.0F;
    v.z = k + 2 < n ? x[k + 2] : 0.0F;
    v.w = k + 3 < n ? x[k + 3] : 0.0F;
    return v;
  }
};

// The largest of all threads of the block, in every thread. v is not negative. Once a kernel for each `largest`.
__device__ __forceinline__ float largest_of_block(float v, uint32_t (&largest)[most_row_threads / 32]) {
  uint32_t top = __reduce_max_sync(0xFFFFFFFF, __float_as_uint(v));
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = top;
  __syncthreads();
  for (int i = 0; i < static_cast<int>(blockDim.x) / 32; ++i) top = max(top, largest[i]);
  return __uint_as_float(top);
}

// Four 128-point transforms of a warp: lanes 8 b .. 8 b + 7 hold block b, lane l of them elements 64 i + 8 l + j in
// v[i][j]. Strides 1, 2 .. 64 as everywhere.
__device__ __forceinline__ void four_hadamards(float (&v)[2][8], int lane) {
#pragma unroll
  for (int step = 1; step < 8; step *= 2)
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if ((j & step) == 0) {
          const float low = v[i][j], high = v[i][j + step];
          v[i][j] = low + high;
          v[i][j + step] = low - high;
        }
#pragma unroll
  for (int step = 1; step < 8; step *= 2) {
    const float sign = (lane & step) != 0 ? -1.0F : 1.0F;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) v[i][j] = fmaf(sign, v[i][j], __shfl_xor_sync(0xFFFFFFFF, v[i][j], step));
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float low = v[0][j], high = v[1][j];
    v[0][j] = low + high;
    v[1][j] = low - high;
  }
}

// The elements of unit `unit` (512 inputs) that a lane holds.
template <class Read>
__device__ __forceinline__ void read_raw_unit(float (&v)[2][8], int unit, int in, const Read& read) {
  const int lane = threadIdx.x % 32, block = unit * 4 + lane / 8;
  const bool inside = block < in / 128;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int k = block * 128 + 64 * i + 8 * (lane % 8);
    const float4 x[2] = {inside ? read(k) : float4{}, inside ? read(k + 4) : float4{}};
    v[i][0] = x[0].x, v[i][1] = x[0].y, v[i][2] = x[0].z, v[i][3] = x[0].w;
    v[i][4] = x[1].x, v[i][5] = x[1].y, v[i][6] = x[1].z, v[i][7] = x[1].w;
  }
}
// to = v times suh.
__device__ __forceinline__ void sign_unit(float (&to)[2][8], const float (&v)[2][8], int unit, int in,
                                          const uint16_t* suh) {
  const int lane = threadIdx.x % 32, block = unit * 4 + lane / 8;
  const bool inside = block < in / 128;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int k = block * 128 + 64 * i + 8 * (lane % 8);
    const uint4 s = inside ? *reinterpret_cast<const uint4*>(suh + k) : uint4{};
    const uint32_t pairs[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
    for (int j = 0; j < 8; ++j) to[i][j] = v[i][j] * f16_bits(static_cast<uint16_t>(pairs[j / 2] >> (j % 2 * 16)));
  }
}
template <class Read>
__device__ __forceinline__ void read_unit(float (&v)[2][8], int unit, int in, const uint16_t* suh, const Read& read) {
  float raw[2][8];
  read_raw_unit(raw, unit, in, read);
  sign_unit(v, raw, unit, in, suh);
}

// NaN counts as nothing: it comes out of the transform by itself.
__device__ __forceinline__ float largest_of_unit(const float (&v)[2][8]) {
  float top = 0;
#pragma unroll
  for (const auto& eight : v)
#pragma unroll
    for (const float f : eight) top = fmaxf(top, fabsf(f));
  return top;
}

// Whole warps: the transform of a unit, which `v` is, times `by`. Eight lanes write 128 bytes side by side.
__device__ __forceinline__ void write_unit(const gemm_rows& to, int64_t row, const float (&v)[2][8], int unit, int in,
                                           float by) {
  const int lane = threadIdx.x % 32, block = unit * 4 + lane / 8, r = static_cast<int>(row % 8);
  if (block >= in / 128) return;
  by *= inverse_root_128;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t pairs[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const __half2 two = __floats2half2_rn(v[i][2 * j] * by, v[i][2 * j + 1] * by);
      pairs[j] = *reinterpret_cast<const uint32_t*>(&two);
    }
    uint8_t* atom = to.at + ((block * 2 + i) * to.groups + row / 8) * gemm_rows::atom_bytes;
    *reinterpret_cast<uint4*>(atom + r * 128 + (lane % 8 ^ r) * 16) =
        make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

// What a row is multiplied with: the largest element goes to 2^11, so that no sum of 128 of them, over sqrt(128),
// reaches the end of f16; what is 2^-25 of it still has all bits. Thread 0 notes the inverse.
__device__ __forceinline__ float scale_row(const gemm_rows& to, int64_t row, float largest) {
  const int exponent = largest > 0 && largest < INFINITY ? min(11 - ilogbf(largest), 126) : 0;
  if (threadIdx.x == 0) to.scale[row] = __int_as_float((127 - exponent) << 23);
  return __int_as_float((exponent + 127) << 23);
}

// What transform_row does for a row whose unit `raw` each warp holds. v: for its use. Once a kernel for each `largest`.
__device__ __forceinline__ void transform_raw(const gemm_rows& to, int64_t row, const float (&raw)[2][8],
                                              float (&v)[2][8], int in, const uint16_t* suh,
                                              uint32_t (&largest)[most_row_threads / 32]) {
  const int warp = threadIdx.x / 32;
  sign_unit(v, raw, warp, in, suh);
  const float top = largest_of_unit(v);
  four_hadamards(v, threadIdx.x % 32); // ahead of the barrier: what it is multiplied with is a power of two
  write_unit(to, row, v, warp, in, scale_row(to, row, largest_of_block(top, largest)));
}
__host__ __device__ constexpr bool fits_registers(int in) { // one unit a warp
  return (in / 128 + 3) / 4 <= most_row_threads / 32;
}

// A block of row_threads(in) writes row `row` of `to`; `in` is a multiple of 128. read(k): elements k .. k + 3 for k %
// 4
// == 0. Once a kernel for each `largest`, or with a barrier of the block between two uses.
template <class Read>
__device__ void transform_row(const gemm_rows& to, int64_t row, int in, const uint16_t* suh, const Read& read,
                              uint32_t (&largest)[most_row_threads / 32]) {
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, units = (in / 128 + 3) / 4;
  float v[2][8], other[2][8];
  read_unit(v, warp, in, suh, read);
  float top = largest_of_unit(v);
  for (int unit = warp + warps; unit < units; unit += warps) {
    read_unit(other, unit, in, suh, read);
    top = fmaxf(top, largest_of_unit(other));
  }
  four_hadamards(v, threadIdx.x % 32);
  const float by = scale_row(to, row, largest_of_block(top, largest));
  write_unit(to, row, v, warp, in, by);
  for (int unit = warp + warps; unit < units; unit += warps) {
    read_unit(other, unit, in, suh, read);
    four_hadamards(other, threadIdx.x % 32);
    write_unit(to, row, other, unit, in, by);
  }
}

} // namespace troupe
