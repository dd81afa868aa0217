// The kernel of a byte product (byte_product.cuh) and its launch.
#pragma once

#include "gpu/byte_product.cuh"
#include "gpu/cuda_lane.h"

namespace troupe {

// Groups of eight rows stand side by side in the grid, with sums and counters of their own.
template <int Rate, int Groups, class Problem>
__global__ void __launch_bounds__(product_threads + 32) __maxnreg__((band_ring<Rate, Groups>::registers))
    byte_product_kernel(const __grid_constant__ Problem p, uint32_t* zeros) {
  extern __shared__ __align__(128) uint8_t memory[];
  using product = byte_product<Rate, Groups, Problem>;
  constexpr int block_ints = Problem::parts * product::part_ints;
  auto* sums = reinterpret_cast<int32_t*>(zeros) + static_cast<int64_t>(blockIdx.y) * gridDim.x * block_ints;
  uint32_t* counters = zeros + static_cast<int64_t>(gridDim.y) * gridDim.x * block_ints + blockIdx.y * gridDim.x;
  product(p, memory, sums, counters).run();
}

// Where a line of blocks runs: n_lines groups of eight rows, each a line of its own in blockIdx.y.
struct product_launch {
  product_shape shape;
  int n_lines;
  int multiprocessor_shared_bytes;
  uint32_t* zeros; // n_lines * shape.zeros_a_line(parts)
  cuda_stream on;
};

template <int Rate, int Groups, class Problem> void launch_product_groups(const Problem& p, const product_launch& l) {
  using product = byte_product<Rate, Groups, Problem>;
  static_assert(product::part_ints == Groups * product_shape::group_ints);
  const int bytes =
      std::max(product::shared_bytes(), l.shape.least_shared_bytes(l.n_lines, l.multiprocessor_shared_bytes));
  const auto kernel = byte_product_kernel<Rate, Groups, Problem>;
  // As much as a block may have, always: nodes of a graph with more must stay valid.
  const int most = l.multiprocessor_shared_bytes - product_shape::system_shared_bytes;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
             "byte product: shared memory");
  launch_early(kernel, dim3(l.shape.n_blocks, l.n_lines), product_threads + 32, bytes, l.on, "byte product", p,
               l.zeros);
}

template <int Rate, class Problem> void launch_byte_product(const Problem& p, const product_launch& l) {
  if (l.shape.n_groups == 1)
    launch_product_groups<Rate, 1>(p, l);
  else
    launch_product_groups<Rate, 2>(p, l);
}

} // namespace troupe
