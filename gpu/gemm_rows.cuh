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
// A warp holds a unit of four Hadamard blocks in registers; what is wider than a block's registers is read twice.
__host__ __device__ constexpr int row_units(int in) { return (in / 128 + 3) / 4; }
__host__ __device__ constexpr bool fits_registers(int in) { return row_units(in) <= most_row_threads / 32; }
inline int row_threads(int in) { return std::min(row_units(in), most_row_threads / 32) * 32; }

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

// Where a row goes.
struct row_target {
  uint8_t* at;  // its 128 bytes of the first 64 inputs
  int64_t step; // to those of the next
  float* scale;
  int in_group;
  __device__ row_target(const gemm_rows& to, const row_region& region, int64_t row, int in)
      : at(region.at(to.at, row / 8, in) + row % 8 * 128), step(region.groups * gemm_rows::atom_bytes),
        scale(to.scale + row), in_group(static_cast<int>(row % 8)) {}
  __device__ row_target(const gemm_rows& to, int64_t row, int in)
      : row_target(to, row_region{0, static_cast<int32_t>(to.groups)}, row, in) {}
};

// The largest of all threads of the block, in every thread. v is not negative. Once a kernel for each `largest`, or
// with a barrier of the block between two uses.
__device__ __forceinline__ float largest_of_block(float v, uint32_t (&largest)[most_row_threads / 32]) {
  const uint32_t lane = threadIdx.x % 32, top = __reduce_max_sync(0xFFFFFFFF, __float_as_uint(v));
  if (lane == 0) largest[threadIdx.x / 32] = top;
  __syncthreads();
  return __uint_as_float(__reduce_max_sync(0xFFFFFFFF, lane < blockDim.x / 32 ? largest[lane] : 0));
}

// Four 128-point transforms of a warp: lanes 8 b .. 8 b + 7 hold block b, lane l of them elements 64 i + 8 l + j in
// v[i][j]. Strides 1, 2 .. 64 as everywhere.
__device__ __forceinline__ void four_hadamards(float (&v)[2][8]) {
  const int lane = threadIdx.x % 32;
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

// What a lane holds of a unit.
struct lane_place {
  int block, first; // Hadamard block of the row, first element; the other eight are 64 on
  __device__ explicit lane_place(int unit) {
    const int lane = threadIdx.x % 32;
    block = unit * 4 + lane / 8;
    first = block * 128 + 8 * (lane % 8);
  }
};

// The elements of unit `unit` that a lane holds.
template <class Read>
__device__ __forceinline__ void read_raw_unit(float (&v)[2][8], int unit, int in, const Read& read) {
  const lane_place at(unit);
  const bool inside = at.block < in / 128;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int k = at.first + 64 * i;
    const float4 x[2] = {inside ? read(k) : float4{}, inside ? read(k + 4) : float4{}};
    v[i][0] = x[0].x, v[i][1] = x[0].y, v[i][2] = x[0].z, v[i][3] = x[0].w;
    v[i][4] = x[1].x, v[i][5] = x[1].y, v[i][6] = x[1].z, v[i][7] = x[1].w;
  }
}
// The part of suh that belongs to them.
__device__ __forceinline__ void read_signs(uint4 (&s)[2], int unit, int in, const uint16_t* suh) {
  const lane_place at(unit);
  const bool inside = at.block < in / 128;
#pragma unroll
  for (int i = 0; i < 2; ++i) s[i] = inside ? __ldg(reinterpret_cast<const uint4*>(suh + at.first + 64 * i)) : uint4{};
}
// to = v times suh.
__device__ __forceinline__ void sign_unit(float (&to)[2][8], const float (&v)[2][8], const uint4 (&s)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t pairs[4] = {s[i].x, s[i].y, s[i].z, s[i].w};
#pragma unroll
    for (int j = 0; j < 8; ++j) to[i][j] = v[i][j] * f16_bits(static_cast<uint16_t>(pairs[j / 2] >> (j % 2 * 16)));
  }
}
template <class Read>
__device__ __forceinline__ void read_unit(float (&v)[2][8], int unit, int in, const uint16_t* suh, const Read& read) {
  uint4 s[2];
  read_signs(s, unit, in, suh);
  float raw[2][8];
  read_raw_unit(raw, unit, in, read);
  sign_unit(v, raw, s);
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
__device__ __forceinline__ void write_unit(const row_target& to, const float (&v)[2][8], int unit, int in, float by) {
  const lane_place place(unit);
  if (place.block >= in / 128) return;
  by *= inverse_root_128;
  uint8_t* at = to.at + place.block * 2 * to.step + (threadIdx.x % 8 ^ to.in_group) * 16;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t pairs[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const __half2 two = __floats2half2_rn(v[i][2 * j] * by, v[i][2 * j + 1] * by);
      pairs[j] = *reinterpret_cast<const uint32_t*>(&two);
    }
    *reinterpret_cast<uint4*>(at + i * to.step) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

// What a row is multiplied with: the largest element goes to 2^11, so that no sum of 128 of them, over sqrt(128),
// reaches the end of f16; what is 2^-25 of it still has all bits.
struct row_power {
  int exponent;
  __device__ explicit row_power(float largest) {
    const int bits = __float_as_int(largest); // below 2^-126 any exponent gives 126
    exponent = largest > 0 && largest < INFINITY ? min(11 + 127 - (bits >> 23), 126) : 0;
  }
  __device__ float by() const { return __int_as_float((exponent + 127) << 23); }
  __device__ float inverse() const { return __int_as_float((127 - exponent) << 23); }
};
// Thread 0 notes the inverse.
__device__ __forceinline__ float scale_row(const row_target& to, float largest) {
  const row_power power(largest);
  if (threadIdx.x == 0) *to.scale = power.inverse();
  return power.by();
}

// What transform_row does for a row whose unit each warp holds: v, times suh. Once a kernel for each `largest`, or with
// a barrier of the block between two uses.
__device__ __forceinline__ void transform_held(const row_target& to, float (&v)[2][8], int in,
                                               uint32_t (&largest)[most_row_threads / 32]) {
  const float top = largest_of_unit(v);
  four_hadamards(v); // ahead of the barrier: what it is multiplied with is a power of two
  write_unit(to, v, threadIdx.x / 32, in, scale_row(to, largest_of_block(top, largest)));
}

// A block of row_threads(in) writes a row; `in` is a multiple of 128. read(k): elements k .. k + 3 for k % 4 == 0. Once
// a kernel for each `largest`, or with a barrier of the block between two uses.
template <class Read>
__device__ void transform_row(const row_target& to, int in, const uint16_t* suh, const Read& read,
                              uint32_t (&largest)[most_row_threads / 32]) {
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, units = row_units(in);
  float v[2][8], other[2][8];
  read_unit(v, warp, in, suh, read);
  float top = largest_of_unit(v);
  for (int unit = warp + warps; unit < units; unit += warps) {
    read_unit(other, unit, in, suh, read);
    top = fmaxf(top, largest_of_unit(other));
  }
  four_hadamards(v);
  const float by = scale_row(to, largest_of_block(top, largest));
  write_unit(to, v, warp, in, by);
  for (int unit = warp + warps; unit < units; unit += warps) {
    read_unit(other, unit, in, suh, read);
    four_hadamards(other);
    write_unit(to, other, unit, in, by);
  }
}

} // namespace troupe
