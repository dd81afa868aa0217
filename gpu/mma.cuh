// Products of f32 matrices on tensor cores: a float is split into two bf16, whose products are summed in f32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace troupe::device {

// Two neighbours of a row as bf16 pairs, the first in the low half: value = high + low, off by 2^-18 of it at most.
// Numbers of eight significant bits (what the cache quantisers make) have low = 0.
struct split_pair {
  uint32_t high, low;
};

__device__ inline uint32_t bits_of(__nv_bfloat162 pair) { return *reinterpret_cast<uint32_t*>(&pair); }

__device__ inline split_pair split(float a, float b) {
  const uint32_t high = bits_of(__floats2bfloat162_rn(a, b));
  const float rest_a = a - __uint_as_float(high << 16), rest_b = b - __uint_as_float(high & 0xFFFF0000U);
  return {high, bits_of(__floats2bfloat162_rn(rest_a, rest_b))};
}

// The first, or the second, numbers of two pairs as a pair.
__device__ inline split_pair firsts(split_pair a, split_pair b) {
  return {__byte_perm(a.high, b.high, 0x5410), __byte_perm(a.low, b.low, 0x5410)};
}
__device__ inline split_pair seconds(split_pair a, split_pair b) {
  return {__byte_perm(a.high, b.high, 0x7632), __byte_perm(a.low, b.low, 0x7632)};
}

// c (16 x 8) += a (16 x 16) b (16 x 8). Of lane l, g = l / 4, t = l % 4: a holds the pairs of columns 2t of rows g and
// g + 8, then of columns 2t + 8; b the pairs of rows 2t and 2t + 8 of column g; c columns 2t, 2t + 1 of rows g, g + 8.
__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c += (a_high + a_low) (b_high + b_low) without the product of both low parts; `with_low`: some b_low is not zero. A
// skipped product of zeros changes no bit.
template <int N>
__device__ inline void multiply_add_split(float (&c)[N][4], const uint32_t (&a_high)[4], const uint32_t (&a_low)[4],
                                          const uint32_t (&b_high)[N][2], const uint32_t (&b_low)[N][2],
                                          bool with_low) {
#pragma unroll
  for (int n = 0; n < N; ++n) multiply_add(c[n], a_high, b_high[n]);
#pragma unroll
  for (int n = 0; n < N; ++n) multiply_add(c[n], a_low, b_high[n]);
  if (!with_low) return;
#pragma unroll
  for (int n = 0; n < N; ++n) multiply_add(c[n], a_high, b_low[n]);
}

// Four words of a high and a low tile.
__device__ inline void store_words(uint32_t* high, uint32_t* low, const split_pair (&v)[4]) {
  *reinterpret_cast<uint4*>(high) = make_uint4(v[0].high, v[1].high, v[2].high, v[3].high);
  *reinterpret_cast<uint4*>(low) = make_uint4(v[0].low, v[1].low, v[2].low, v[3].low);
}

// A block multiplies HeadWarps * HeadTiles * 16 heads by OtherWarps * OtherTiles * 8 keys or dims, Depth dims or keys
// at a time; while one part is multiplied, registers wait for the next.
template <int HeadWarps, int OtherWarps, int HeadTiles, int OtherTiles, int Depth> struct tile {
  static constexpr int other_warps = OtherWarps, head_tiles = HeadTiles, other_tiles = OtherTiles, depth = Depth;
  static constexpr int threads = HeadWarps * OtherWarps * 32;
  static constexpr int heads = HeadWarps * HeadTiles * 16, others = OtherWarps * OtherTiles * 8;
  static constexpr int words = Depth / 2;
  static constexpr int stride = words + 4;       // rows of pairs: 4 modulo 8, so a fragment meets every bank once
  static constexpr int wide_stride = others + 8; // rows of columns: 8 modulo 32, likewise
};

// acc += a b for a warp's part of a tile. a and b point at the warp's first fragment words of this lane; a in rows of
// T::stride words, b's next column group is ColumnStep words on, its next pair of rows PairStep.
template <class T, int ColumnStep, int PairStep>
__device__ inline void multiply_tiles(float (&acc)[T::head_tiles][T::other_tiles][4], const uint32_t* a_high,
                                      const uint32_t* a_low, const uint32_t* b_high, const uint32_t* b_low,
                                      bool with_low) {
#pragma unroll
  for (int word = 0; word < T::words; word += 8) {
    uint32_t bh[T::other_tiles][2], bl[T::other_tiles][2] = {};
#pragma unroll
    for (int n = 0; n < T::other_tiles; ++n) {
      const int at = n * ColumnStep + word * PairStep;
      bh[n][0] = b_high[at], bh[n][1] = b_high[at + 4 * PairStep];
      if (with_low) bl[n][0] = b_low[at], bl[n][1] = b_low[at + 4 * PairStep]; // shared memory is the narrowest part
    }
#pragma unroll
    for (int m = 0; m < T::head_tiles; ++m) {
      const int at = m * 16 * T::stride + word, below = at + 8 * T::stride;
      const uint32_t ah[4] = {a_high[at], a_high[below], a_high[at + 4], a_high[below + 4]};
      const uint32_t al[4] = {a_low[at], a_low[below], a_low[at + 4], a_low[below + 4]};
      multiply_add_split(acc[m], ah, al, bh, bl, with_low);
    }
  }
}

} // namespace troupe::device
