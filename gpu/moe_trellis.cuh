// The two products of EXL3 experts and their dispatch over rates; a .cu file per codebook makes the instances.
//
// Bound by window extraction, as the product of one matrix is (trellis_block.cuh); the floor at K = 3 and six experts
// is 79.6 MB, 19 us on an H200.
#pragma once

#include "gpu/cuda_check.cuh"
#include "gpu/gated.cuh"
#include "gpu/moe_cuda.h"
#include "gpu/trellis_block.cuh"

#include <algorithm>

namespace troupe {

// Grid (chunks of the width, 2 * slices, runs): gate in the lower half of y, up in the upper one.
template <int Rate, stored_matrix::codebook Book>
__global__ void __launch_bounds__(256, 2) moe_gate_up_kernel(moe_args a) {
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ expert_run run;
  __shared__ int32_t row_of[max_run_rows];
  if (blockIdx.z >= *a.list.n_runs) return;
  using block_type = trellis_block<Rate, Book>;
  const block_type block(memory);
  const int chunk = blockIdx.x, n_chunks = gridDim.x, n_slices = gridDim.y / 2, which = blockIdx.y / n_slices,
            slice = blockIdx.y % n_slices;
  const int expert = a.list.runs[blockIdx.z].expert;
  const trellis_view w = a.table[expert * 3 + which].trellis;
  const int first_block = slice_begin(w.in, slice), n_blocks = slice_begin(w.in, slice + 1) - first_block;
  block.fetch(w.words, w.in / 16, chunk, first_block, n_blocks);
  if (threadIdx.x == 0) run = a.list.runs[blockIdx.z];
  __syncthreads();
  const int n = run.n_pairs;
  if (threadIdx.x < n) row_of[threadIdx.x] = run.pair[threadIdx.x] / a.k;
  __syncthreads();
  block.transform({a.x, a.dim, a.dim, n, row_of}, w.suh, first_block, n_blocks);
  block.multiply(n_blocks);

  const int n_parts = 2 * n_slices;
  const int64_t row_stride = static_cast<int64_t>(n_chunks) * n_parts * chunk_columns;
  float* partial = a.partial + run.first * row_stride + static_cast<int64_t>(chunk) * n_parts * chunk_columns;
  if (!hand_in(block, partial + blockIdx.y * chunk_columns, row_stride, n, a.counters + blockIdx.z * n_chunks + chunk,
               n_parts))
    return;
  const uint16_t* gate_svh = a.table[expert * 3].trellis.svh + chunk * chunk_columns;
  const uint16_t* up_svh = a.table[expert * 3 + 1].trellis.svh + chunk * chunk_columns;
  for (int r = block.warp; r < n; r += block_warps) {
    float g[4], u[4];
    chunk_result(g, partial + r * row_stride, n_slices, gate_svh, block.lane);
    chunk_result(u, partial + r * row_stride + n_slices * chunk_columns, n_slices, up_svh, block.lane);
    const int column = chunk * chunk_columns + 4 * block.lane;
    float* to = a.hidden + static_cast<int64_t>(run.pair[r]) * a.width + column;
    const float weight = a.weights[run.pair[r]];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (column + i < a.width) to[i] = gated(g[i], u[i], weight, a.limit);
  }
}

// Grid (chunks of the model's width, slices, runs).
template <int Rate, stored_matrix::codebook Book>
__global__ void __launch_bounds__(256, 2) moe_down_kernel(moe_args a) {
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ expert_run run;
  if (blockIdx.z >= *a.list.n_runs) return;
  using block_type = trellis_block<Rate, Book>;
  const block_type block(memory);
  const int chunk = blockIdx.x, n_chunks = gridDim.x, n_slices = gridDim.y, slice = blockIdx.y;
  const trellis_view w = a.table[a.list.runs[blockIdx.z].expert * 3 + 2].trellis;
  const int first_block = slice_begin(w.in, slice), n_blocks = slice_begin(w.in, slice + 1) - first_block;
  block.fetch(w.words, w.in / 16, chunk, first_block, n_blocks);
  if (threadIdx.x == 0) run = a.list.runs[blockIdx.z];
  __syncthreads();
  const int n = run.n_pairs;
  block.transform({a.hidden, a.width, a.width, n, run.pair}, w.suh, first_block, n_blocks);
  block.multiply(n_blocks);

  const int64_t row_stride = static_cast<int64_t>(n_chunks) * n_slices * chunk_columns;
  float* partial = a.partial + run.first * row_stride + static_cast<int64_t>(chunk) * n_slices * chunk_columns;
  if (!hand_in(block, partial + slice * chunk_columns, row_stride, n, a.counters + blockIdx.z * n_chunks + chunk,
               n_slices))
    return;
  for (int r = block.warp; r < n; r += block_warps) {
    float v[4];
    chunk_result(v, partial + r * row_stride, n_slices, w.svh + chunk * chunk_columns, block.lane);
    const int column = chunk * chunk_columns + 4 * block.lane;
    float* to = a.outputs + static_cast<int64_t>(run.pair[r]) * a.dim + column;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (column + i < a.dim) to[i] = v[i];
  }
}

template <class Kernel>
void launch_moe(const Kernel& kernel, int bytes, int chunks, int parts, const moe_args& a, cuda_stream on) {
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "experts: shared memory");
  kernel<<<dim3(chunks, parts, most_runs(a)), 256, bytes, on>>>(a);
  cuda_check_launch("experts");
}

template <int Rate, stored_matrix::codebook Book> void launch_gate_up(const moe_args& a, cuda_stream on) {
  const int in = padded_chunks(a.dim) * 128, slices = slices_of(in);
  launch_moe(moe_gate_up_kernel<Rate, Book>, trellis_block<Rate, Book>::shared_bytes((in / 128 + slices - 1) / slices),
             padded_chunks(a.width), 2 * slices, a, on);
}
template <int Rate, stored_matrix::codebook Book> void launch_down(const moe_args& a, cuda_stream on) {
  const int in = padded_chunks(a.width) * 128, slices = slices_of(in);
  launch_moe(moe_down_kernel<Rate, Book>, trellis_block<Rate, Book>::shared_bytes((in / 128 + slices - 1) / slices),
             padded_chunks(a.dim), slices, a, on);
}

} // namespace troupe
