// Records of gpu/cache_rows.h in kernels, four elements of a row at a time. For .cu files only.
#pragma once

#include "gpu/cache_rows.h"
#include "gpu/device_math.cuh"
#include "gpu/mma.cuh"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

namespace troupe::device {

// A row as its cache holds it, or none. fp8: of fp8_32, fp4: of fp4_e4m3_16. halves: attention_prompt.cuh alone has
// them.
enum class row_kind : uint32_t { none, floats, fp8, fp4, halves };
struct stored_row {
  const uint8_t* at;
  row_kind kind;
};

// The same in eight bytes: addresses take fewer than 56 bits.
__device__ inline uint64_t packed(stored_row row) {
  return reinterpret_cast<uint64_t>(row.at) | static_cast<uint64_t>(row.kind) << 56;
}
__device__ inline stored_row unpacked(uint64_t row) {
  return {reinterpret_cast<const uint8_t*>(row & 0xFFFFFFFFFFFFFFULL), static_cast<row_kind>(row >> 56)};
}

// Elements i .. i + 3 of a row of `dim` as they are there, zeros past its end: floats, or in x their codes and in y the
// code of their scale. Nothing here looks at what is read, so many reads can be under way. i is a multiple of 4. fours:
// rows of floats can be read 16 bytes at a time.
__device__ inline uint4 read_four(stored_row row, int i, int dim, bool fours) {
  uint4 v = make_uint4(0, 0, 0, 0);
  if (i >= dim) return v;
  if (row.kind == row_kind::floats) {
    const auto* from = reinterpret_cast<const uint32_t*>(row.at) + i;
    if (fours) return *reinterpret_cast<const uint4*>(from);
    return make_uint4(from[0], i + 1 < dim ? from[1] : 0, i + 2 < dim ? from[2] : 0, i + 3 < dim ? from[3] : 0);
  }
  if (row.kind == row_kind::fp8) {
    v.x = *reinterpret_cast<const uint32_t*>(row.at + i);
    v.y = row.at[dim + i / 32];
  } else if (row.kind == row_kind::fp4) {
    v.x = *reinterpret_cast<const uint16_t*>(row.at + i / 2);
    v.y = row.at[dim / 2 + i / 16];
  }
  return v;
}

__device__ inline __nv_bfloat162 as_bf16_pair(uint32_t bits) { return *reinterpret_cast<__nv_bfloat162*>(&bits); }
// Both halves 2^exponent.
__device__ inline uint32_t bf16_powers(int exponent) { return static_cast<uint32_t>(exponent + 127) * 0x00800080U; }

// Pairs of bf16, exact: codes moved to the bits of a bf16 are 2^-120 (e4m3) or 2^-126 (e2m1) of their value, and the
// product with a scale has six significant bits. A poisoned group: NaN, since its codes are zeros and its scale is
// infinite or NaN.
struct four_halves {
  uint32_t low, high; // elements 0 and 1, 2 and 3
};
__device__ inline four_halves scaled(uint32_t low, uint32_t high, uint32_t unit, uint32_t scale) {
  const __nv_bfloat162 u = as_bf16_pair(unit), s = as_bf16_pair(scale);
  return {bits_of(__hmul2(__hmul2(as_bf16_pair(low), u), s)), bits_of(__hmul2(__hmul2(as_bf16_pair(high), u), s))};
}
__device__ inline four_halves decode_fp8(uint32_t codes, uint32_t scale) {
  const uint32_t a = __byte_perm(codes, 0, 0x1404), b = __byte_perm(codes, 0, 0x3424); // a code on top of each half
  return scaled((a & 0x80008000U) | (a >> 4 & 0x07F007F0U), (b & 0x80008000U) | (b >> 4 & 0x07F007F0U),
                bf16_powers(120), scale * 0x00800080U); // e8m0 as the exponent of a bf16
}
__device__ inline uint32_t fp4_pair(uint32_t two_codes) { // in the low byte; elsewhere zeros
  return (two_codes * 0x00040040U & 0x01C001C0U) | (two_codes * 0x01001000U & 0x80008000U);
}
// In two steps, for several codes of a group: its e4m3 scale as both halves, exact, NaN stays; four codes by it.
__device__ __forceinline__ uint32_t fp4_scales(uint32_t code) {
  const float s = __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), __NV_E4M3)));
  return bits_of(__floats2bfloat162_rn(s, s));
}
__device__ __forceinline__ four_halves fp4_by_scales(uint32_t codes, uint32_t scales) {
  return scaled(fp4_pair(codes & 0xFFU), fp4_pair(codes >> 8), bf16_powers(126), scales);
}

// Four elements as pairs of bf16 with what bf16 leaves of a float: nothing where they come from a record.
struct split_four {
  split_pair first, second;
};
__device__ inline split_four split_raw(uint4 v, row_kind kind) {
  if (kind == row_kind::floats)
    return {split(__uint_as_float(v.x), __uint_as_float(v.y)), split(__uint_as_float(v.z), __uint_as_float(v.w))};
  four_halves h{0, 0};
  if (kind == row_kind::fp8) h = decode_fp8(v.x, v.y);
  if (kind == row_kind::fp4) h = fp4_by_scales(v.x, fp4_scales(v.y));
  return {{h.low, 0}, {h.high, 0}};
}

// The code of a group's scale and its value.                                                  As gpu/cache_rows.cpp
template <quantiser How> __device__ inline uint32_t scale_code(float amax, float& value) {
  if constexpr (How == quantiser::fp4_e4m3_16) {
    uint32_t code = f32_to_e4m3(fminf(fmaxf(amax, 6.0F * 0x1p-9F) / 6.0F, 448.0F));
    if (6.0F * e4m3_to_f32(static_cast<uint8_t>(code)) < amax && code < 0x7EU) ++code;
    value = e4m3_to_f32(static_cast<uint8_t>(code));
    return code;
  } else {
    const float in_units =
        How == quantiser::fp8_32 ? fmaxf(amax, 1e-4F) * (1.0F / 448.0F) : fmaxf(amax, 6.0F * 0x1p-126F) * (1.0F / 6.0F);
    value = round_up_to_power_of_two(in_units);
    return __float_as_uint(value) >> 23;
  }
}

// encode_record, elements i .. i + 3. The threads of a group are neighbours in an aligned part of a warp and call it
// together: thread (x, y) of a block has piece x, and blockDim.x is a power of two no smaller than the group.
template <quantiser How>
__device__ inline void store_four_of_record(uint8_t* record, int record_bytes, int i, int dim, float4 v) {
  constexpr int group = How == quantiser::fp4_e4m3_16 ? 16 : 32, lanes = group / 4;
  constexpr uint32_t magnitude = 0x7FFFFFFFU, infinity = 0x7F800000U;
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x), lane = thread % warp_lanes;
  const unsigned together = ((1U << lanes) - 1U) << (lane / lanes * lanes);
  uint32_t top = max(max(__float_as_uint(v.x) & magnitude, __float_as_uint(v.y) & magnitude),
                     max(__float_as_uint(v.z) & magnitude, __float_as_uint(v.w) & magnitude));
#pragma unroll
  for (int step = lanes / 2; step > 0; step /= 2) top = max(top, __shfl_xor_sync(together, top, step));
  const int n_codes = How == quantiser::fp8_32 ? dim : dim / 2;
  float scale;
  uint32_t code = scale_code<How>(__uint_as_float(top), scale);
  if (top >= infinity) {
    code = How == quantiser::fp4_e4m3_16 ? 0x7FU : 0xFFU;
    v = make_float4(0, 0, 0, 0), scale = 1;
  }
  const float x = v.x / scale, y = v.y / scale, z = v.z / scale, w = v.w / scale;
  if constexpr (How == quantiser::fp8_32) {
    *reinterpret_cast<uchar4*>(record + i) =
        make_uchar4(f32_to_e4m3(x), f32_to_e4m3(y), f32_to_e4m3(z), f32_to_e4m3(w));
  } else {
    *reinterpret_cast<uchar2*>(record + i / 2) =
        make_uchar2(static_cast<unsigned char>(f32_to_e2m1(x) | f32_to_e2m1(y) << 4),
                    static_cast<unsigned char>(f32_to_e2m1(z) | f32_to_e2m1(w) << 4));
  }
  if (i % group == 0) record[n_codes + i / group] = static_cast<uint8_t>(code);
  if (i + 4 < dim) return;
  for (int at = n_codes + dim / group; at < record_bytes; ++at) record[at] = 0;
}

} // namespace troupe::device
