// Activations of a product with a mul1 matrix as two int8 terms: x suh H = q (i + r / 254).          Spec:
// exl3.md 13.4.
#pragma once

#include "gpu/trellis_block.cuh"

namespace troupe {

constexpr int pack_threads = 1024;    // a block packs one row for one matrix; bound by its latency, not by bytes
constexpr int most_packed_in = 16384; // inputs: exact int32 sums hold up to 16,576 (exl3.md 9.4)

// What a row is multiplied with afterwards.
struct packed_row {
  float scale; // q; NaN if the row held a value that is no finite number
  int32_t sum; // of 254 i + r
};

// Codes of up to eight rows for one matrix: (in / 16 tile rows, groups of four rows, 128 bytes), a group's bytes as
// lane l's fragment of four at 4 l: main terms of row j for lanes 8 j .. 8 j + 3, rests for 8 j + 4 .. 8 j + 7, the
// columns k = 0 1 8 9, 2 3 10 11, 4 5 12 13, 6 7 14 15 of the tile row.
__host__ __device__ constexpr int64_t packed_bytes(int in) { return static_cast<int64_t>(in) / 16 * 256; }

// One block packs row `x` (in_real elements, zeros behind) as row `place` of `codes`. One scale for the whole row, so
// that sums over any part of k are exact integers in one unit.
__device__ __forceinline__ void pack_row(const float* x, int in_real, int in, const uint16_t* suh, uint8_t* codes,
                                         int groups, int place, packed_row* to) {
  static_assert(pack_threads == 1024, "a lane a warp");
  constexpr int n_warps = pack_threads / 32, most_jobs = most_packed_in / 128 / n_warps;
  __shared__ uint32_t tops[n_warps];
  __shared__ int32_t sums[n_warps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_blocks = in / 128;
  const bool in_fours = in_real == in && reinterpret_cast<uintptr_t>(x) % 16 == 0;
  float v[most_jobs][4];
  uint2 signs[most_jobs]; // suh of the same elements
  uint32_t top = 0;
#pragma unroll
  for (int j = 0; j < most_jobs; ++j) {
    const int block = warp + j * n_warps, first = block * 128 + lane * 4;
    if (block >= n_blocks) break;
    if (in_fours) {
      const float4 four = *reinterpret_cast<const float4*>(x + first);
      v[j][0] = four.x, v[j][1] = four.y, v[j][2] = four.z, v[j][3] = four.w;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) v[j][i] = first + i < in_real ? x[first + i] : 0.0F;
    }
    signs[j] = *reinterpret_cast<const uint2*>(suh + first);
  }
#pragma unroll
  for (int j = 0; j < most_jobs; ++j) {
    if (warp + j * n_warps >= n_blocks) break;
    v[j][0] *= f16_bits(static_cast<uint16_t>(signs[j].x));
    v[j][1] *= f16_bits(static_cast<uint16_t>(signs[j].x >> 16));
    v[j][2] *= f16_bits(static_cast<uint16_t>(signs[j].y));
    v[j][3] *= f16_bits(static_cast<uint16_t>(signs[j].y >> 16));
    warp_hadamard(v[j], lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) top = max(top, __float_as_uint(v[j][i]) & 0x7FFFFFFFU);
  }
  top = __reduce_max_sync(0xFFFFFFFF, top);
  if (lane == 0) tops[warp] = top;
  __syncthreads();
  top = __reduce_max_sync(0xFFFFFFFF, tops[lane]);
  const float largest = __uint_as_float(top);
  const bool finite = largest < INFINITY; // false for NaN too
  const float by = finite && largest > 0 ? 127.0F / largest : 0.0F;
  int32_t sum = 0;
#pragma unroll
  for (int j = 0; j < most_jobs; ++j) {
    const int block = warp + j * n_warps;
    if (block >= n_blocks) break;
    uint32_t main = 0, rest = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float t = finite ? v[j][i] * by : 0.0F;
      const int32_t a = max(-127, min(127, __float2int_rn(t)));
      const int32_t r = max(-127, min(127, __float2int_rn((t - static_cast<float>(a)) * 254.0F)));
      sum += 254 * a + r;
      main |= static_cast<uint32_t>(a & 255) << (8 * i);
      rest |= static_cast<uint32_t>(r & 255) << (8 * i);
    }
    const int tile = block * 8 + lane / 4, quarter = lane % 4;
    uint8_t* at = codes + (tile * groups + place / 4) * 128 + place % 4 * 32 + 8 * (quarter & 1) + 2 * (quarter / 2);
    *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(main);
    *reinterpret_cast<uint16_t*>(at + 4) = static_cast<uint16_t>(main >> 16);
    *reinterpret_cast<uint16_t*>(at + 16) = static_cast<uint16_t>(rest);
    *reinterpret_cast<uint16_t*>(at + 20) = static_cast<uint16_t>(rest >> 16);
  }
  sum = __reduce_add_sync(0xFFFFFFFF, sum);
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    sum = __reduce_add_sync(0xFFFFFFFF, sums[lane]);
    if (lane == 0) *to = {finite ? largest / 127.0F : NAN, sum};
  }
}

} // namespace troupe
