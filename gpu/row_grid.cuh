// How kernels walk over rows: launch shapes, and four elements at a time whatever the width is. For .cu files only.
#pragma once

#include "gpu/tensor.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

namespace troupe {

// Blocks of 128 threads over (rows, pieces of a row): one row of 5120 floats in fours is ten blocks, short rows share
// one. A kernel takes piece `piece_of_row()` of rows `first_of_rows()`, then + `step_of_rows()`: threads past the last
// row have none.
struct row_grid {
  dim3 grid, block;
};
inline row_grid cover_rows(int64_t n_rows, int64_t n_pieces) {
  constexpr unsigned n_threads = 128;
  constexpr int64_t max_grid_y = 65535;
  unsigned x = 1;
  while (x < n_threads && x < n_pieces) x *= 2;
  const unsigned y = n_threads / x;
  return {dim3(static_cast<unsigned>((n_pieces + x - 1) / x),
               static_cast<unsigned>(std::min<int64_t>((n_rows + y - 1) / y, max_grid_y))),
          dim3(x, y)};
}

// For work on elements whatever their rows, where thread `element_piece()` alone has a piece. A grid of one short row
// would give it to many, and in place one of them reads what another has written: hence a type of its own.
struct element_grid {
  unsigned grid, block;
};
inline element_grid cover_elements(int64_t n_pieces) {
  constexpr unsigned n_threads = 128;
  return {static_cast<unsigned>((n_pieces + n_threads - 1) / n_threads), n_threads};
}

// Threads of a block that owns a row: each takes as many fours as the others, at most 768 threads so that two blocks
// share a multiprocessor. Told by the width alone, hence so is the order of the sum.
inline unsigned threads_of_row(int64_t width) {
  const int64_t n = (width + 3) / 4, rounds = (n + 767) / 768;
  return static_cast<unsigned>(((n + rounds - 1) / rounds + 31) / 32 * 32);
}

// Whether rows of `width` floats can be moved 16 bytes at a time.
inline bool in_fours(int64_t width, std::initializer_list<const void*> starts) {
  return width % 4 == 0 && std::all_of(starts.begin(), starts.end(),
                                       [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; });
}

namespace device {

__device__ inline int64_t element_piece() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t piece_of_row() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t first_of_rows() { return static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; }
__device__ inline int64_t step_of_rows() { return static_cast<int64_t>(gridDim.y) * blockDim.y; }

// Elements i .. i + 3 of a row of n floats, zeros past its end. Fours: one access, see in_fours. Both forms give a
// kernel the same numbers in the same places, so its bits do not depend on the form.
template <bool Fours> __device__ inline float4 load_four(const float* row, int64_t i, int64_t n) {
  if constexpr (Fours) return *reinterpret_cast<const float4*>(row + i);
  return make_float4(row[i], i + 1 < n ? row[i + 1] : 0.0F, i + 2 < n ? row[i + 2] : 0.0F,
                     i + 3 < n ? row[i + 3] : 0.0F);
}
template <bool Fours> __device__ inline void store_four(float* row, int64_t i, int64_t n, float4 v) {
  if constexpr (Fours) {
    *reinterpret_cast<float4*>(row + i) = v;
    return;
  }
  row[i] = v.x;
  if (i + 1 < n) row[i + 1] = v.y;
  if (i + 2 < n) row[i + 2] = v.z;
  if (i + 3 < n) row[i + 3] = v.w;
}

// op(x) of each of four elements; op(x, y) of each pair of two fours.
template <class Op> __device__ inline float4 each_of(float4 a, Op op) {
  return make_float4(op(a.x), op(a.y), op(a.z), op(a.w));
}
template <class Op> __device__ inline float4 each_of(float4 a, float4 b, Op op) {
  return make_float4(op(a.x, b.x), op(a.y, b.y), op(a.z, b.z), op(a.w, b.w));
}
__device__ inline float4 fused(float by, float4 x, float4 sum) {
  return make_float4(fmaf(by, x.x, sum.x), fmaf(by, x.y, sum.y), fmaf(by, x.z, sum.z), fmaf(by, x.w, sum.w));
}
__device__ inline float fused_squares(float4 x, float sum) {
  return fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, fmaf(x.x, x.x, sum))));
}

} // namespace device
} // namespace troupe
