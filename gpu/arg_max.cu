// The largest of sums along rows: the greedy choice of a draft token from two terms of its logits.
#include "gpu/cuda_check.cuh"
#include "gpu/cuda_ops.h"
#include "gpu/early_launch.cuh"
#include "gpu/order.cuh"

#include <algorithm>

namespace troupe {
namespace {

using namespace device;

constexpr int threads = 512;
constexpr int64_t part_width = 4096; // of a row: 32 blocks for the real vocabulary

struct sums {
  int32_t* ids;
  const float *x, *y;
  const int32_t* x_rows;
  int64_t n_x_rows, width;
  uint64_t* best;     // (rows, parts)
  uint32_t* finished; // (rows), zero before and after
};

// A warp's largest, in lane 0.
__device__ uint64_t largest_of_warp(uint64_t v) {
  for (int step = 16; step > 0; step /= 2) v = max(v, __shfl_down_sync(0xFFFFFFFFU, v, step));
  return v;
}

__device__ uint64_t largest_of_block(uint64_t v, uint64_t* of_warp) {
  v = largest_of_warp(v);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
  __syncthreads();
  return threadIdx.x < 32 ? largest_of_warp(threadIdx.x < threads / 32 ? of_warp[threadIdx.x] : 0) : 0;
}

// Grid (parts, rows): a block owns a part, the last one to finish a row compares its parts. Bound by the bytes of both
// terms, which the matrices before left in L2, and by its launch.
__global__ void __launch_bounds__(threads) arg_max_kernel(sums s) {
  begin_in_turn();
  __shared__ uint64_t of_warp[threads / 32];
  __shared__ bool is_last;
  const int64_t row = blockIdx.y, from = s.x_rows[row], first = blockIdx.x * part_width;
  if (from < 0 || from >= s.n_x_rows) __trap();
  const int64_t end = min(s.width, first + part_width);
  uint64_t best = 0; // of (order of the sum, complement of the index): the lower index of equals
  for (int64_t i = first + threadIdx.x; i < end; i += threads) {
    const uint32_t order = order_of(s.x[from * s.width + i] + s.y[row * s.width + i]);
    best = max(best, static_cast<uint64_t>(order) << 32 | (0xFFFFFFFFU - static_cast<uint32_t>(i)));
  }
  best = largest_of_block(best, of_warp);
  uint64_t* parts = s.best + row * gridDim.x;
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = best;
    __threadfence();
    is_last = atomicInc(s.finished + row, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  best = 0;
  for (unsigned p = threadIdx.x; p < gridDim.x; p += threads) best = max(best, __ldcg(parts + p));
  best = largest_of_block(best, of_warp);
  if (threadIdx.x == 0) s.ids[row] = static_cast<int32_t>(0xFFFFFFFFU - static_cast<uint32_t>(best));
}

} // namespace

void arg_max_cuda(tensor ids, tensor x, tensor x_rows, tensor y, const cuda_lane& lane) {
  const int64_t rows = y.rows(), width = y.row_elements();
  if (rows == 0) return;
  TROUPE_CHECK(ids.n_elements() == rows && x_rows.n_elements() >= rows && x.row_elements() == width && width > 0,
               "every sum has a row of both terms");
  const int64_t parts = (width + part_width - 1) / part_width;
  TROUPE_CHECK(rows <= std::min<int64_t>(65535, lane.n_counters) && rows * parts * 8 <= lane.scratch_bytes,
               "the scratch of a lane holds the parts of every row");
  const sums s{ids.i32(),    x.f32(), y.f32(), x_rows.i32(), x.rows(), width, reinterpret_cast<uint64_t*>(lane.scratch),
               lane.counters};
  launch_early(arg_max_kernel, dim3(static_cast<unsigned>(parts), static_cast<unsigned>(rows)), threads, 0, lane.on,
               "arg_max", s);
}

} // namespace troupe
