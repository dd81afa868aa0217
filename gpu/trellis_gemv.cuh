// The kernel behind trellis_gemv.h and its dispatch over rates; a .cu file per codebook makes the instances.
#pragma once

#include "gpu/cuda_check.cuh"
#include "gpu/trellis_block.cuh"
#include "gpu/trellis_gemv.h"

namespace troupe {

// Grid (chunks, slices, groups of 8 rows).
template <int Rate, stored_matrix::codebook Book>
__global__ void __launch_bounds__(256, 2) trellis_gemv_kernel(gemv_args a) {
  extern __shared__ __align__(16) uint8_t memory[];
  using block_type = trellis_block<Rate, Book>;
  const block_type block(memory);
  const int chunk = blockIdx.x, slice = blockIdx.y, n_slices = gridDim.y, n_chunks = gridDim.x;
  const int first_row = blockIdx.z * max_block_rows, n_rows = min(max_block_rows, a.n_rows - first_row);
  const int first_block = slice_begin(a.w.in, slice), n_blocks = slice_begin(a.w.in, slice + 1) - first_block;

  block.fetch(a.w.words, a.w.in / 16, chunk, first_block, n_blocks);
  block_rows x;
  x.x = a.x + first_row * a.x_stride;
  x.stride = a.x_stride;
  x.in = a.in;
  x.n = n_rows;
  block.transform(x, a.w.suh, first_block, n_blocks);
  block.multiply(n_blocks);

  // (rows, chunks, slices, 128)
  const int64_t row_stride = static_cast<int64_t>(n_chunks) * n_slices * chunk_columns;
  float* partial = a.partial + first_row * row_stride + static_cast<int64_t>(chunk) * n_slices * chunk_columns;
  uint32_t* counter = a.counters + blockIdx.z * n_chunks + chunk;
  if (!hand_in(block, partial + slice * chunk_columns, row_stride, n_rows, counter, n_slices)) return;
  for (int r = block.warp; r < n_rows; r += block_warps) {
    float v[4];
    chunk_result(v, partial + r * row_stride, n_slices, a.w.svh + chunk * chunk_columns, block.lane);
    const int column = chunk * chunk_columns + 4 * block.lane;
    float* y = a.y + (first_row + r) * a.y_stride + column;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (column + i < a.out) y[i] = v[i] + (a.bias != nullptr ? a.bias[column + i] : 0.0F);
  }
}

template <int Rate, stored_matrix::codebook Book> void launch_trellis_gemv(const gemv_args& a, cuda_stream on) {
  const int n_slices = slices_of(a.w.in), n_blocks = (a.w.in / 128 + n_slices - 1) / n_slices;
  const int bytes = trellis_block<Rate, Book>::shared_bytes(n_blocks);
  const auto kernel = trellis_gemv_kernel<Rate, Book>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "trellis_gemv: shared memory");
  const dim3 grid(a.w.out / 128, n_slices, (a.n_rows + max_block_rows - 1) / max_block_rows);
  kernel<<<grid, 256, bytes, on>>>(a);
  cuda_check_launch("trellis_gemv");
}

template <stored_matrix::codebook Book> void launch_trellis_book(const gemv_args& a, cuda_stream on) {
  with_rate<Book>(a.w.rate, [&]<int Rate>() { launch_trellis_gemv<Rate, Book>(a, on); });
}

} // namespace troupe
