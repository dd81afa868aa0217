// What one thread block does for a product with an EXL3 matrix: 128 output columns (a chunk), one slice of the inputs,
// up to eight rows. Kernels put chunks, slices and epilogues together.              Spec: exl3.md 6, 9.4, 13.2 - 13.5.
//
// Two numeric forms, chosen by the codebook so that a matrix has one form for every number of rows:
//   mul1         the byte form: the product P = s * 0x83DCD12D is fed as four u8 to integer mma; activations are two
//                int8 terms, x = q (i + r / 254), q one scale per row and slice. Sums are exact integers in a warp.
//   mcg, 3inst   the f16 form: decoded f16 weights, activations as f16 multiples of a power of two, f32 sums.
// Order of sums (the same for any number of rows): in a warp over its tile rows; warps 0 .. 7; slices ascending.
//
// Bound by instructions on Hopper: about 30 issue slots per 256-weight tile in the byte form at K = 3 (two shifts per
// window on two pipes, one multiply, two mma), while the packed bytes need half of that time.
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

enum class trellis_form : uint8_t { bytes, halves };

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

__device__ __forceinline__ void mma_bytes(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                          uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
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

// Groups: groups of four rows (bytes: 1 or 2; halves: always 2, one mma takes eight rows).
template <int Rate, stored_matrix::codebook Book, int Groups> struct trellis_block {
  static constexpr trellis_form form =
      Book == stored_matrix::codebook::mul1 ? trellis_form::bytes : trellis_form::halves;
  static constexpr int rows = form == trellis_form::bytes ? 4 * Groups : 8;
  static constexpr int band_bytes = 128 * Rate;                                    // eight tiles of one tile row
  static constexpr int x_bytes = form == trellis_form::bytes ? 128 * Groups : 256; // of one tile row
  using sum = std::conditional_t<form == trellis_form::bytes, int, float>;

  struct shared {
    uint64_t barriers[block_warps];
    float scale[max_block_rows];                        // q of each row
    float total[max_block_rows];                        // sum of i + r / 254 of each row, in units of q
    uint32_t largest[max_block_rows][max_slice_blocks]; // bits of max |x|
    int32_t sums[max_block_rows][max_slice_blocks];     // sum of 254 i + r
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
    if (form == trellis_form::bytes && threadIdx.x < x.n) {
      int64_t all = 0;
      for (int b = 0; b < n_blocks; ++b) all += s.sums[threadIdx.x][b];
      s.total[threadIdx.x] = static_cast<float>(all) / 254.0F;
    }
  }

  // Rows past x.n: zeros would cost time and nothing reads their sums, so their activations stay undefined. In the byte
  // form any bits are numbers; in the f16 form a NaN stays in its own column of the product.
  __device__ void store(const float (&v)[4], int row, int block, float top) const {
    const int tile = lane / 4, j = lane % 4; // elements 4 j .. 4 j + 3 of tile row `tile` of the block
    if constexpr (form == trellis_form::bytes) {
      const bool finite = top < INFINITY; // false for NaN too
      const float by = top > 0 ? 127.0F / top : 0.0F;
      int32_t sum = 0;
      uint32_t main = 0, rest = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float t = finite ? v[i] * by : 0.0F;
        const int32_t a = max(-127, min(127, __float2int_rn(t)));
        const int32_t r = max(-127, min(127, __float2int_rn((t - static_cast<float>(a)) * 254.0F)));
        sum += 254 * a + r;
        main |= static_cast<uint32_t>(a & 255) << (8 * i);
        rest |= static_cast<uint32_t>(r & 255) << (8 * i);
      }
      sum = __reduce_add_sync(0xFFFFFFFF, sum);
      if (lane == 0) s.sums[row][block] = sum;
      if (lane == 0 && block == 0) s.scale[row] = finite ? top / 127.0F : NAN;
      // Byte order of a row of a tile: k = 0 1 8 9, 2 3 10 11, 4 5 12 13, 6 7 14 15.
      const int at = 8 * (j & 1) + 2 * (j / 2);
      uint8_t* to = s.x + (((block * 8 + tile) * Groups + row / 4) * 8 + row % 4 * 2) * 16 + at;
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(main);
      *reinterpret_cast<uint16_t*>(to + 4) = static_cast<uint16_t>(main >> 16);
      *reinterpret_cast<uint16_t*>(to + 16) = static_cast<uint16_t>(rest);
      *reinterpret_cast<uint16_t*>(to + 20) = static_cast<uint16_t>(rest >> 16);
    } else {
      // The largest power of two of the row to 2^13: far from overflow, and small values keep their bits.
      const int exponent = top > 0 && top < INFINITY ? 13 - ilogbf(top) : 0;
      if (lane == 0 && block == 0) s.scale[row] = exp2f(static_cast<float>(-exponent));
      const float by = exp2f(static_cast<float>(exponent));
      const __half2 low = __floats2half2_rn(v[0] * by, v[1] * by), high = __floats2half2_rn(v[2] * by, v[3] * by);
      const int at = 16 * (j & 1) + 4 * (j / 2);
      uint8_t* to = s.x + ((block * 8 + tile) * 8 + row) * 32 + at;
      *reinterpret_cast<__half2*>(to) = low;
      *reinterpret_cast<__half2*>(to + 8) = high;
    }
  }

  // This warp's part of the product, then the block's, in `words` as (warps, rows, 128) f32 sums. Used: groups of four
  // rows that hold any.
  template <int Used = Groups> __device__ void multiply(int n_blocks) const {
    constexpr int sets = form == trellis_form::bytes ? Used : 1;
    sum c[sets][8][4] = {};
    const lane_windows<Rate> windows(lane);
    warp_copies{&s.barriers[warp]}.wait();
    for (int b = 0; b < n_blocks; ++b) {
      uint32_t x[sets][4];
      load_x(x, warp * n_blocks + b);
      const auto* band = reinterpret_cast<const uint32_t*>(words + (warp * n_blocks + b) * band_bytes);
#pragma unroll
      for (int t = 0; t < 8; ++t) {
        uint32_t w[8];
        windows.states(band + t * (4 * Rate), w);
        if constexpr (form == trellis_form::bytes) {
#pragma unroll
          for (uint32_t& p : w) p *= 0x83DCD12DU;
#pragma unroll
          for (int g = 0; g < sets; ++g) {
            mma_bytes(c[g][t], w[0], w[4], w[1], w[5], x[g][0], x[g][1]);
            mma_bytes(c[g][t], w[2], w[6], w[3], w[7], x[g][2], x[g][3]);
          }
        } else {
#pragma unroll
          for (uint32_t& p : w) p = decode_state<Book>(p);
          mma_halves(c[0][t], w[0] | w[1] << 16, w[4] | w[5] << 16, w[2] | w[3] << 16, w[6] | w[7] << 16, x[0][0],
                     x[0][1]);
        }
      }
    }
    __syncthreads(); // every warp has read its words
    float* out = reinterpret_cast<float*>(words) + warp * rows * chunk_columns;
    const int column = lane / 4, pair = lane % 4;
#pragma unroll
    for (int g = 0; g < sets; ++g)
#pragma unroll
      for (int t = 0; t < 8; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const sum first = c[g][t][2 * half], second = c[g][t][2 * half + 1];
          float* to = out + 16 * t + 8 * half + column;
          if constexpr (form == trellis_form::bytes) {
            to[(4 * g + pair) * chunk_columns] =
                fmaf(static_cast<float>(second), 1.0F / 254.0F, static_cast<float>(first));
          } else {
            to[2 * pair * chunk_columns] = first;
            to[(2 * pair + 1) * chunk_columns] = second;
          }
        }
    __syncthreads();
  }

  template <int Sets> __device__ __forceinline__ void load_x(uint32_t (&x)[Sets][4], int row) const {
    if constexpr (form == trellis_form::bytes) {
#pragma unroll
      for (int g = 0; g < Sets; ++g) {
        const uint32_t four = reinterpret_cast<const uint32_t*>(s.x)[(row * Groups + g) * 32 + lane];
        x[g][0] = __byte_perm(four, 0, 0x0000);
        x[g][1] = __byte_perm(four, 0, 0x1111);
        x[g][2] = __byte_perm(four, 0, 0x2222);
        x[g][3] = __byte_perm(four, 0, 0x3333);
      }
    } else {
      const uint2 four = reinterpret_cast<const uint2*>(s.x)[row * 32 + lane];
      x[0][0] = four.x;
      x[0][1] = four.y;
    }
  }

  // The block's sum of row r, column c of the chunk, in the units of Q x.
  __device__ float block_sum(int r, int c) const {
    const float* from = reinterpret_cast<const float*>(words) + r * chunk_columns + c;
    float all = 0;
#pragma unroll
    for (int w = 0; w < block_warps; ++w) all += from[w * rows * chunk_columns];
    if constexpr (form == trellis_form::bytes) all = fmaf(1024.0F * mul1_step + mul1_bias, s.total[r], mul1_step * all);
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
