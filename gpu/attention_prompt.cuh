// The filling side of attention_prompt.cu: queries in two bf16 and keys in one, in shared memory. For .cu files only.
#pragma once

#include "gpu/attention_keys.cuh"
#include "gpu/copy_ring.cuh"

#include <cstdint>

namespace troupe::device {

constexpr int prompt_heads = 64, prompt_dim = 512, prompt_keys = 64; // keys of a tile
constexpr int prompt_readers = 256, prompt_fillers = 128;            // threads: two warp groups and one
constexpr int filler_warps = prompt_fillers / warp_lanes, reader_warps = prompt_readers / warp_lanes;
constexpr int band_keys = 16, n_bands = prompt_keys / band_keys; // a tile is filled anew band after band
constexpr int warp_keys = band_keys / filler_warps;              // of a warp in a band
constexpr int eights = prompt_dim / 8 / warp_lanes;              // pieces of eight elements of a key that a lane has

// 64 rows (heads or keys) of 64 elements of bf16, 128 bytes a row, the 16-byte piece c of row r at place c ^ (r & 7).
using bf16_square = uint8_t[8192];
__device__ __forceinline__ uint32_t square_at(int row, int column) { // byte of an element
  return static_cast<uint32_t>(row * 128 + (((column / 8) ^ (row & 7)) * 16) + column % 8 * 2);
}

struct prompt_shared {
  bf16_square query[2][prompt_dim / 64]; // high and low parts, dims 64 by 64
  bf16_square key[prompt_dim / 64];
  bf16_square weight[2];                        // columns: keys
  float4 partial[2][4][prompt_readers / 2];     // scores over half of the dims, by the group that hands them over
  float factor[prompt_heads], by[prompt_heads]; // of the sums so far; of the sums at the end
  uint8_t seen[4][16];                          // 1: the tile has the key; a lane's own together, see place_of_key
  uint64_t query_full, query_empty, key_full, band_empty[n_bands];
  int32_t n_tiles;

  // Lane l of a quad has columns 8 j + 2 l and 8 j + 2 l + 1 of its row.
  static __device__ __forceinline__ uint32_t place_of_key(int key) {
    return static_cast<uint32_t>(key % 8 / 2 * 16 + key / 8 * 2 + key % 2);
  }
  __device__ void begin() {
    init_barrier(&query_full, filler_warps);
    init_barrier(&query_empty, reader_warps);
    init_barrier(&key_full, filler_warps);
    for (uint64_t& band : band_empty) init_barrier(&band, reader_warps);
    fence_barriers();
  }
};

// Eight elements of a record, still coded, or of floats, as bf16.
struct eight_codes {
  uint2 codes;
  uint32_t scale;
};
template <row_kind Kind> __device__ __forceinline__ eight_codes read_eight(const uint8_t* at, int eighth) {
  if constexpr (Kind == row_kind::fp8)
    return {*reinterpret_cast<const uint2*>(at + eighth * 8), at[prompt_dim + eighth / 4]};
  else
    return {make_uint2(*reinterpret_cast<const uint32_t*>(at + eighth * 4), 0), at[prompt_dim / 2 + eighth / 2]};
}
template <row_kind Kind> __device__ __forceinline__ uint4 decode_eight(eight_codes v) {
  four_halves a, b;
  if constexpr (Kind == row_kind::fp8) {
    a = decode_fp8(v.codes.x, v.scale), b = decode_fp8(v.codes.y, v.scale);
  } else {
    const uint32_t by = fp4_scales(v.scale);
    a = fp4_by_scales(v.codes.x & 0xFFFFU, by), b = fp4_by_scales(v.codes.x >> 16, by);
  }
  return make_uint4(a.low, a.high, b.low, b.high);
}
__device__ __forceinline__ uint4 eight_floats(const uint8_t* at, int eighth) {
  const float4 x = __ldg(reinterpret_cast<const float4*>(at) + 2 * eighth),
               y = __ldg(reinterpret_cast<const float4*>(at) + 2 * eighth + 1);
  return make_uint4(bits_of(__floats2bfloat162_rn(x.x, x.y)), bits_of(__floats2bfloat162_rn(x.z, x.w)),
                    bits_of(__floats2bfloat162_rn(y.x, y.y)), bits_of(__floats2bfloat162_rn(y.z, y.w)));
}

// A warp's keys of a band, a lane's pieces of each: pieces lane and lane + 32.
using band_part = uint4[warp_keys][eights];

template <row_kind Kind>
__device__ __forceinline__ void read_part(band_part& part, const stored_row (&key)[warp_keys]) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  eight_codes coded[warp_keys][eights]; // all reads are under way before the first is decoded
#pragma unroll
  for (int k = 0; k < warp_keys; ++k)
#pragma unroll
    for (int i = 0; i < eights; ++i) coded[k][i] = read_eight<Kind>(key[k].at, i * warp_lanes + lane);
#pragma unroll
  for (int k = 0; k < warp_keys; ++k)
#pragma unroll
    for (int i = 0; i < eights; ++i) part[k][i] = decode_eight<Kind>(coded[k][i]);
}

// Most often all keys are of one kind. What is no key is zeros: its weight is zero, and zero times what is not finite
// would be NaN.
__device__ __forceinline__ void read_part(band_part& part, const stored_row (&key)[warp_keys]) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  bool one_kind = true;
#pragma unroll
  for (int k = 1; k < warp_keys; ++k) one_kind = one_kind && key[k].kind == key[0].kind;
  if (one_kind && key[0].kind == row_kind::fp4) return read_part<row_kind::fp4>(part, key);
  if (one_kind && key[0].kind == row_kind::fp8) return read_part<row_kind::fp8>(part, key);
  if (one_kind && key[0].kind == row_kind::floats) {
#pragma unroll
    for (int k = 0; k < warp_keys; ++k)
#pragma unroll
      for (int i = 0; i < eights; ++i) part[k][i] = eight_floats(key[k].at, i * warp_lanes + lane);
    return;
  }
#pragma unroll
  for (int k = 0; k < warp_keys; ++k)
#pragma unroll
    for (int i = 0; i < eights; ++i) {
      const int eighth = i * warp_lanes + lane;
      part[k][i] = make_uint4(0, 0, 0, 0);
      if (key[k].kind == row_kind::floats) part[k][i] = eight_floats(key[k].at, eighth);
      if (key[k].kind == row_kind::fp8)
        part[k][i] = decode_eight<row_kind::fp8>(read_eight<row_kind::fp8>(key[k].at, eighth));
      if (key[k].kind == row_kind::fp4)
        part[k][i] = decode_eight<row_kind::fp4>(read_eight<row_kind::fp4>(key[k].at, eighth));
    }
}

// Keys up to the last that is one: selections that end early cost nothing. All lanes of a warp call it.
__device__ inline int64_t n_present(const attention_view& a, int64_t r, const key_span& s) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const int32_t* selected = a.selected + r * a.n_selected;
  int64_t n = a.n_selected;
  while (n > 0) {
    bool any[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t at = n - 1 - i * warp_lanes - lane;
      any[i] = at >= 0 && selected[at] >= 0;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned which = __ballot_sync(all_lanes, any[i]);
      if (which != 0) return s.n_window + s.n_block + n - i * warp_lanes - (__ffs(static_cast<int>(which)) - 1);
    }
    n -= 4 * warp_lanes;
  }
  return s.n_window + s.n_block;
}

// The queries of a row, split. A warp has sixteen heads.
__device__ __forceinline__ void fill_queries(prompt_shared& s, const float* q) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const int first = static_cast<int>(threadIdx.x) / warp_lanes % filler_warps * (prompt_heads / filler_warps);
  const auto* from = reinterpret_cast<const float4*>(q + first * prompt_dim) + lane;
  constexpr int steps = prompt_dim / 128; // four floats a lane
#pragma unroll 2
  for (int i = 0; i < prompt_heads / filler_warps; ++i) {
    float4 v[steps];
#pragma unroll
    for (int u = 0; u < steps; ++u) v[u] = __ldg(from + (i * steps + u) * warp_lanes);
#pragma unroll
    for (int u = 0; u < steps; ++u) {
      const split_pair x = split(v[u].x, v[u].y), y = split(v[u].z, v[u].w);
      const int dim = u * 128 + lane * 4;
      const uint32_t at = square_at(first + i, dim % 64);
      *reinterpret_cast<uint2*>(s.query[0][dim / 64] + at) = make_uint2(x.high, y.high);
      *reinterpret_cast<uint2*>(s.query[1][dim / 64] + at) = make_uint2(x.low, y.low);
    }
  }
}

// This thread's writes to shared memory are for products.
__device__ __forceinline__ void show_writes() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
__device__ __forceinline__ void prefetch_bytes(const void* at, uint32_t n_bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at), "r"(n_bytes) : "memory");
#endif
}

// Everything that the rows of the block read, in turn.
__device__ inline void fill_rows(prompt_shared& s, const attention_view& a, int64_t n_rows) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const int warp = static_cast<int>(threadIdx.x) / warp_lanes % filler_warps;
  uint32_t row_round = 0, tile_round = 0;
  for (int64_t i = blockIdx.x; i < n_rows; i += gridDim.x, row_round ^= 1) {
    const int64_t r = a.first + i;
    const key_span span = span_of(a, r);
    const int64_t n = n_present(a, r, span);
    const int n_tiles = max(static_cast<int>((n + prompt_keys - 1) / prompt_keys), 1);
    wait(&s.query_empty, row_round ^ 1);
    if (threadIdx.x == prompt_readers) s.n_tiles = n_tiles;
    fill_queries(s, a.q + r * (prompt_heads * prompt_dim));
    show_writes();
    __syncwarp();
    if (lane == 0) arrive(&s.query_full);
    if (i + gridDim.x < n_rows && lane == 0) { // the next row's, a quarter a warp
      constexpr int64_t part = prompt_heads * prompt_dim / filler_warps;
      prefetch_bytes(a.q + (r + gridDim.x) * (prompt_heads * prompt_dim) + warp * part, part * sizeof(float));
    }
    for (int tile = 0; tile < n_tiles; ++tile, tile_round ^= 1) {
      // Lane l looks for the warp's key l % 4 of band l / 4 % 4.
      const int in_tile = lane / warp_keys % n_bands * band_keys + warp * warp_keys + lane % warp_keys;
      const int64_t at = static_cast<int64_t>(tile) * prompt_keys + in_tile;
      const uint64_t mine = at < n ? packed(key_of(a, r, span, at)) : 0;
#pragma unroll 1
      for (int band = 0; band < n_bands; ++band) {
        stored_row key[warp_keys];
#pragma unroll
        for (int k = 0; k < warp_keys; ++k) key[k] = unpacked(__shfl_sync(all_lanes, mine, band * warp_keys + k));
        band_part part;
        read_part(part, key);
        wait(&s.band_empty[band], tile_round ^ 1);
#pragma unroll
        for (int k = 0; k < warp_keys; ++k)
#pragma unroll
          for (int u = 0; u < eights; ++u) {
            const int row = band * band_keys + warp * warp_keys + k, eighth = u * warp_lanes + lane;
            *reinterpret_cast<uint4*>(s.key[eighth / 8] + square_at(row, eighth % 8 * 8)) = part[k][u];
          }
      }
      if (lane < n_bands * warp_keys) (&s.seen[0][0])[prompt_shared::place_of_key(in_tile)] = mine >> 56 != 0;
      show_writes();
      __syncwarp();
      if (lane == 0) arrive(&s.key_full);
    }
  }
}

} // namespace troupe::device
