// What the warps of attention_prompt.cu share, and how queries and keys lie in shared memory as f16. For .cu files
// only.
#pragma once

#include "gpu/attention_keys.cuh"
#include "gpu/attention_prompt.h"
#include "gpu/copy_ring.cuh"

#include <cstdint>

namespace troupe::device {

constexpr int prompt_keys = 64;                           // of a tile
constexpr int reader_threads = 256, filler_threads = 256; // two warp groups each
constexpr int reader_warps = reader_threads / warp_lanes;
constexpr int filler_warps = filler_threads / warp_lanes - 1; // one looks for keys
constexpr int tiles_ahead = 4;                                // that the looking warp may be ahead
// Records of fp4 on their way to a filling warp: pairs of keys, see staged_pairs.
constexpr int group_pairs = 3, fp4_bytes = prompt_dim / 2 + prompt_dim / 16, stage_bytes = 2 * fp4_bytes;

// 64 rows (heads or keys) of 64 elements of f16, 128 bytes a row, the 16-byte piece c of row r at place c ^ (r & 7).
using f16_square = uint8_t[8192];
__device__ __forceinline__ uint32_t piece_at(int row, int piece) {
  return static_cast<uint32_t>(row * 128 + ((piece ^ (row & 7)) * 16));
}

// Dims of queries and keys lie in an order that suits the codes of records. Chunk c of a row is its dims 32 c .. 32 c +
// 31; dim 8 k + i + 4 h of it (k, i < 4, h < 2) is element 2 k + h of piece c % 8 of square 4 (c / 8) + i. So a lane
// that has a chunk writes a whole piece to each of four squares, eight lanes all of a row of a square.
template <class Pair> // pair(i, k): both h
__device__ __forceinline__ void store_chunk(f16_square* squares, int row, int c, const Pair& pair) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    *reinterpret_cast<uint4*>(squares[c / 8 * 4 + i] + piece_at(row, c % 8)) =
        make_uint4(pair(i, 0), pair(i, 1), pair(i, 2), pair(i, 3));
}
__device__ __forceinline__ uint32_t bits_of(__half2 pair) { return *reinterpret_cast<uint32_t*>(&pair); }
__device__ __forceinline__ __half2 as_f16_pair(uint32_t bits) { return *reinterpret_cast<__half2*>(&bits); }
// Eight floats, dims 8 `eighth` .. 8 `eighth` + 7 of a row, times `by`: a word of each of four squares. What f16 does
// not hold becomes infinite.
struct eight_pairs {
  uint32_t of_square[4];
  __device__ __forceinline__ eight_pairs(float4 x, float4 y, float by)
      : of_square{bits_of(__floats2half2_rn(x.x * by, y.x * by)), bits_of(__floats2half2_rn(x.y * by, y.y * by)),
                  bits_of(__floats2half2_rn(x.z * by, y.z * by)), bits_of(__floats2half2_rn(x.w * by, y.w * by))} {}
};
__device__ __forceinline__ void store_eight(f16_square* squares, int row, int eighth, const eight_pairs& pairs) {
  const uint32_t at = piece_at(row, eighth / 4 % 8) + eighth % 4 * 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) *reinterpret_cast<uint32_t*>(squares[eighth / 32 * 4 + i] + at) = pairs.of_square[i];
}

// A row of the step in f16, 1 KB: piece p of square i at (8 i + p) * 16, so that filling is copying.
constexpr int step_row_bytes = prompt_dim * 2;

// What the kernel is given. What lies in scratch of attention_view is not there.
struct prompt_view {
  attention_view a;
  prompt_products to;  // none: o is written
  const uint8_t* step; // (R) rows of the step
};

// Lane 2 m gives b for a of lane 2 m + 1. So two reads or writes of neighbouring lanes side by side are of whole
// sectors of 32 bytes, where each lane by itself has to do with a sector alone.
__device__ __forceinline__ void swap_with_neighbour(float4& a, float4& b, unsigned lanes = all_lanes) {
  const bool odd = threadIdx.x % 2 != 0;
  const auto swap = [odd, lanes](float& x, float& y) {
    const float other = __shfl_xor_sync(lanes, odd ? x : y, 1);
    x = odd ? other : x, y = odd ? y : other;
  };
  swap(a.x, b.x), swap(a.y, b.y), swap(a.z, b.z), swap(a.w, b.w);
}

// What the looking warp found for a tile.
struct tile_keys {
  uint64_t key[prompt_keys]; // packed
  uint64_t seen;             // bit k: key k is one
  int32_t n_tiles;           // of the row; 0: there are no more rows
  uint32_t plain;            // 1: all are records of fp4
};

// Two tiles of keys: one is filled while the other is multiplied. Warp group g has the scores of tiles in place g.
struct prompt_shared {
  f16_square query[prompt_dim / 64];
  f16_square key[2][prompt_dim / 64];
  f16_square weight[2]; // columns: keys
  uint8_t stage[filler_warps][group_pairs][stage_bytes];
  tile_keys found[tiles_ahead];
  uint64_t seen[2];
  float query_by[prompt_heads];                   // a score of a head by this, what queries were scaled by undone
  float top[2][prompt_heads];                     // what weights are relative to from this tile on
  float sum[2][2][prompt_heads];                  // of weights; by row of the block, modulo 2, and group
  float2 turn[2][prompt_turned];                  // of o, by row of the block, modulo 2: cosine and sine
  uint32_t largest[2][prompt_products::n_groups]; // of o, by group of readers
  uint64_t key_full[2], key_empty[2], top_full[2], weight_full[2];
  uint64_t found_full[tiles_ahead], found_empty[tiles_ahead];
  int32_t n_tiles[2]; // of the row

  __device__ void begin() {
    for (int i = 0; i < 2; ++i) {
      init_barrier(&key_full[i], filler_warps);
      init_barrier(&key_empty[i], reader_warps);
      init_barrier(&top_full[i], reader_warps / 2);
      init_barrier(&weight_full[i], reader_warps / 2);
    }
    for (int i = 0; i < tiles_ahead; ++i) {
      init_barrier(&found_full[i], 1);
      init_barrier(&found_empty[i], filler_warps);
    }
    fence_barriers();
  }
};

// This thread's writes to shared memory are for products.
__device__ __forceinline__ void show_writes() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// All lanes of the warp have done what they do before it.
__device__ __forceinline__ void warp_arrives(uint64_t* barrier) {
  __syncwarp();
  if (threadIdx.x % warp_lanes == 0) arrive(barrier);
}

} // namespace troupe::device
