// What one thread block does for a product with an EXL3 matrix in the f16 form: 128 output columns (a chunk), one slice
// of the inputs, up to eight rows. Kernels put chunks, slices and epilogues together.  Spec: exl3.md
// 6, 9.3, 13.2, 13.3.
//
// Decoded f16 weights are the A operand, activations as f16 multiples of a power of two the B operand, sums f32. It
// serves the codebooks mcg and 3inst; mul1 has a faster form (byte_product.cuh) and comes here when it is too wide for
// that or when that form was parked. Order of sums, the same for any number of rows: in a warp over its tile rows;
// warps 0 .. 7; slices ascending.
//
// Bound by instructions on Hopper: window extraction and the codebook take about 60 issue slots for a tile of 256.
#pragma once

#include "gpu/async_copy.cuh"
#include "gpu/backend.h"
#include "gpu/trellis_windows.cuh"

#include <cuda_fp16.h>

namespace troupe {

constexpr int block_warps = 8;      // each takes an eighth of the tile rows of the slice
constexpr int chunk_columns = 128;  // one Hadamard block of outputs
constexpr int max_block_rows = 8;   // rows of x a block takes together
constexpr int max_slice_blocks = 5; // 128-input blocks of a slice
constexpr float inverse_root_128 = 0.088388347648F;
constexpr float mul1_step = 0.00676727294921875F, mul1_bias = -10.3828125F;

__host__ __device__ constexpr int slices_of(int in) {
  const int n = in / 128;
  return (n + max_slice_blocks - 1) / max_slice_blocks;
}
__host__ __device__ constexpr int slice_begin(int in, int slice) { return in / 128 * slice / slices_of(in); }

// A 128-point Hadamard transform of a warp's values, lane l holding elements 4 l .. 4 l + 3; strides 1, 2, 4 .. 64.
__device__ __forceinline__ void warp_hadamard(float (&v)[4], int lane) {
  const float s0 = v[0] + v[1], d0 = v[0] - v[1], s1 = v[2] + v[3], d1 = v[2] - v[3];
  v[0] = s0 + s1;
  v[1] = d0 + d1;
  v[2] = s0 - s1;
  v[3] = d0 - d1;
#pragma unroll
  for (int w = 1; w < 32; w *= 2)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float other = __shfl_xor_sync(0xFFFFFFFF, v[i], w);
      v[i] = (lane & w) != 0 ? other - v[i] : v[i] + other;
    }
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] *= inverse_root_128;
}

__device__ __forceinline__ float f16_bits(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }

template <stored_matrix::codebook Book> __device__ __forceinline__ uint16_t decode_state(uint32_t s) {
  if constexpr (Book == stored_matrix::codebook::mul1) {
    const uint32_t sum = __dp4a(s * 0x83DCD12DU, 0x01010101U, 0x6400U);
    return __half_as_ushort(
        __hfma(__ushort_as_half(static_cast<uint16_t>(sum)), __ushort_as_half(0x1EEE), __ushort_as_half(0xC931)));
  } else {
    uint32_t x = Book == stored_matrix::codebook::mcg ? s * 0xCBAC1FEDU : s * 89226354U + 64248484U;
    x = (x & 0x8FFF8FFFU) ^ 0x3B603B60U;
    return __half_as_ushort(
        __hadd(__ushort_as_half(static_cast<uint16_t>(x)), __ushort_as_half(static_cast<uint16_t>(x >> 16))));
  }
}

__device__ __forceinline__ void mma_bytes(int4& c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                          uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c.x), "+r"(c.y), "+r"(c.z), "+r"(c.w)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_halves(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                           uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Rows of the input of one block: row r is at x + index(r) * stride, `in` real elements, zeros behind them.
struct block_rows {
  const float* x = nullptr;
  int64_t stride = 0;
  int32_t in = 0;
  int32_t n = 0;                  // 1 .. 8
  const int32_t* index = nullptr; // in shared memory; nullptr: 0, 1, ..
  __device__ __forceinline__ const float* row(int r) const { return x + (index != nullptr ? index[r] : r) * stride; }
};

template <int Rate, stored_matrix::codebook Book> struct trellis_block {
  static constexpr int rows = max_block_rows;
  static constexpr int band_bytes = 128 * Rate; // eight tiles of one tile row
  static constexpr int x_bytes = 256;           // of one tile row

  struct shared {
    uint64_t barriers[block_warps];
    float scale[max_block_rows];                        // q of each row
    uint32_t largest[max_block_rows][max_slice_blocks]; // bits of max |x|
    alignas(16) uint8_t x[max_slice_blocks * 8 * x_bytes];
  };
  static __host__ __device__ constexpr int words_bytes(int n_blocks) {
    const int weights = n_blocks * 8 * band_bytes, reduction = block_warps * rows * chunk_columns * 4;
    return weights > reduction ? weights : reduction;
  }
  static __host__ __device__ constexpr int shared_bytes(int n_blocks) {
    return static_cast<int>(sizeof(shared)) + words_bytes(n_blocks);
  }

  shared& s;
  uint8_t* words; // the slice's bands, warp by warp; later the warps' sums
  int lane, warp;

  __device__ trellis_block(uint8_t* memory)
      : s(*reinterpret_cast<shared*>(memory)), words(memory + sizeof(shared)), lane(threadIdx.x % 32),
        warp(threadIdx.x / 32) {}

  // Warp w loads tile rows w * n_blocks .. + n_blocks - 1 of the slice. tiles_k: tile rows of the matrix.
  __device__ void fetch(const uint32_t* matrix, int tiles_k, int chunk, int first_block, int n_blocks) const {
    const warp_copies copies{&s.barriers[warp]};
    copies.begin(lane, n_blocks * band_bytes);
    const int64_t band = static_cast<int64_t>(chunk) * tiles_k + first_block * 8 + warp * n_blocks;
    copies.copy(lane, words + warp * n_blocks * band_bytes, matrix + band * (band_bytes / 4), n_blocks * band_bytes);
  }

  // x * suh, Hadamard, then the form's activations in fragment order. Ends with a block barrier.
  __device__ void transform(const block_rows& x, const uint16_t* suh, int first_block, int n_blocks) const {
    float v[max_slice_blocks][4]; // at most 8 rows x 5 blocks over 8 warps
    const int n_jobs = x.n * n_blocks;
#pragma unroll
    for (int j = 0; j < max_slice_blocks; ++j) {
      const int job = warp + j * block_warps;
      if (job >= n_jobs) break;
      const int row = job / n_blocks, block = job % n_blocks;
      const int first = (first_block + block) * 128 + lane * 4;
      const float* from = x.row(row);
#pragma unroll
      for (int i = 0; i < 4; ++i) v[j][i] = first + i < x.in ? from[first + i] * f16_bits(suh[first + i]) : 0.0F;
      warp_hadamard(v[j], lane);
      uint32_t top = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) top = max(top, __float_as_uint(v[j][i]) & 0x7FFFFFFFU);
      top = __reduce_max_sync(0xFFFFFFFF, top);
      if (lane == 0) s.largest[row][block] = top;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < max_slice_blocks; ++j) {
      const int job = warp + j * block_warps;
      if (job >= n_jobs) break;
      const int row = job / n_blocks, block = job % n_blocks;
      uint32_t top = 0;
      for (int b = 0; b < n_blocks; ++b) top = max(top, s.largest[row][b]);
      store(v[j], row, block, __uint_as_float(top));
    }
    __syncthreads();
  }

  // Rows past x.n: nothing reads their sums, so their activations stay undefined; a NaN stays in its own column.
  __device__ void store(const float (&v)[4], int row, int block, float top) const {
    const int tile = lane / 4, j = lane % 4; // elements 4 j .. 4 j + 3 of tile row `tile` of the block
    // The largest power of two of the row to 2^13: far from overflow, and small values keep their bits.
    const int exponent = top > 0 && top < INFINITY ? 13 - ilogbf(top) : 0;
    if (lane == 0 && block == 0) s.scale[row] = exp2f(static_cast<float>(-exponent));
    const float by = exp2f(static_cast<float>(exponent));
    const __half2 low = __floats2half2_rn(v[0] * by, v[1] * by), high = __floats2half2_rn(v[2] * by, v[3] * by);
    // Element order of a row of a tile: k = 0 1 8 9, 2 3 10 11, 4 5 12 13, 6 7 14 15.
    uint8_t* to = s.x + ((block * 8 + tile) * 8 + row) * 32 + 16 * (j & 1) + 4 * (j / 2);
    *reinterpret_cast<__half2*>(to) = low;
    *reinterpret_cast<__half2*>(to + 8) = high;
  }

  // This warp's part of the product, then the block's, in `words` as (warps, rows, 128) f32 sums.
  __device__ void multiply(int n_blocks) const {
    float c[8][4] = {};
    const lane_windows<Rate> windows(lane);
    warp_copies{&s.barriers[warp]}.wait();
    for (int b = 0; b < n_blocks; ++b) {
      const uint2 x = reinterpret_cast<const uint2*>(s.x)[(warp * n_blocks + b) * 32 + lane];
      const auto* band = reinterpret_cast<const uint32_t*>(words + (warp * n_blocks + b) * band_bytes);
#pragma unroll
      for (int t = 0; t < 8; ++t) {
        uint32_t w[8];
        windows.states(band + t * (4 * Rate), w);
#pragma unroll
        for (uint32_t& p : w) p = decode_state<Book>(p);
        mma_halves(c[t], w[0] | w[1] << 16, w[4] | w[5] << 16, w[2] | w[3] << 16, w[6] | w[7] << 16, x.x, x.y);
      }
    }
    __syncthreads(); // every warp has read its words
    float* out = reinterpret_cast<float*>(words) + warp * rows * chunk_columns;
    const int column = lane / 4, pair = lane % 4;
#pragma unroll
    for (int t = 0; t < 8; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* to = out + 2 * pair * chunk_columns + 16 * t + 8 * half + column;
        to[0] = c[t][2 * half];
        to[chunk_columns] = c[t][2 * half + 1];
      }
    __syncthreads();
  }

  // The block's sum of row r, column c of the chunk, in the units of Q x.
  __device__ float block_sum(int r, int c) const {
    const float* from = reinterpret_cast<const float*>(words) + r * chunk_columns + c;
    float all = 0;
#pragma unroll
    for (int w = 0; w < block_warps; ++w) all += from[w * rows * chunk_columns];
    return all * s.scale[r];
  }
};

// Writes the sums of row r of a block to partial + r * row_stride (128 columns) and tells whether this block is the
// last of the n_parts that share the counter, which is left at zero.
template <class Block>
__device__ bool hand_in(const Block& block, float* partial, int64_t row_stride, int n_rows, uint32_t* counter,
                        uint32_t n_parts) {
  __shared__ bool is_last;
  for (int i = threadIdx.x; i < n_rows * chunk_columns; i += blockDim.x) {
    const int r = i / chunk_columns, c = i % chunk_columns;
    __stcg(partial + r * row_stride + c, block.block_sum(r, c));
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(counter, 1U) == n_parts - 1;
    if (is_last) *counter = 0;
  }
  __syncthreads();
  if (is_last) __threadfence();
  return is_last;
}

// Sum over n_slices parts of 128 columns at `partial`, Hadamard and svh: columns 4 * lane .. + 3 of the chunk. One warp
// calls it.
__device__ __forceinline__ void chunk_result(float (&v)[4], const float* partial, int n_slices, const uint16_t* svh,
                                             int lane) {
  v[0] = v[1] = v[2] = v[3] = 0;
  for (int slice = 0; slice < n_slices; ++slice) {
    const float4 p = __ldcg(reinterpret_cast<const float4*>(partial + slice * chunk_columns + 4 * lane));
    v[0] += p.x;
    v[1] += p.y;
    v[2] += p.z;
    v[3] += p.w;
  }
  warp_hadamard(v, lane);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] *= f16_bits(svh[4 * lane + i]);
}

} // namespace troupe
