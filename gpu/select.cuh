// The k best items of each row under (order descending, number ascending), listed by ascending number. For .cu files.
//
// Items: count(row), order(row, i) (0: does not exist), number(row, i) ascending with i, and exist_all(row): all
// `count` items are taken and order() must not be asked. Orders compare like those of order_of. Long rows are cut into
// segments whose k best are selected first: the best of all are among them.
#pragma once

#include "gpu/cuda_check.cuh"
#include "gpu/early_launch.cuh"
#include "gpu/order.cuh"

#include <algorithm>

namespace troupe::device {

inline constexpr int select_threads = 512;
inline constexpr int select_bins = 2048; // of a histogram: 11, 11, then 10 bits of an order
inline constexpr int items_a_thread = 8; // neighbours, when the list is written
inline constexpr int64_t segment_items = 16384;

inline int64_t segment_of(int64_t k) { return std::max(segment_items, k); }
// How many items the segments of a row of n leave, 0: one segment is enough.
inline int64_t survivors(int64_t n, int64_t k) {
  const int64_t n_segments = (n + segment_of(k) - 1) / segment_of(k);
  return n_segments <= 1 ? 0 : n_segments * k;
}

// The sum of x over the threads before this one; `total` over all. Blocks of select_threads.
__device__ inline uint32_t sum_before(uint32_t x, uint32_t& total, uint32_t* shared) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, warp = static_cast<int>(threadIdx.x) / warp_lanes;
  uint32_t sum = x;
  for (int step = 1; step < warp_lanes; step *= 2) {
    const uint32_t other = __shfl_up_sync(all_lanes, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == warp_lanes - 1) shared[warp] = sum;
  __syncthreads();
  constexpr int n_warps = select_threads / warp_lanes;
  uint32_t sums = shared[lane % n_warps]; // of warps up to the lane's, as above
  for (int step = 1; step < n_warps; step *= 2) {
    const uint32_t other = __shfl_up_sync(all_lanes, sums, step);
    if (lane % n_warps >= step) sums += other;
  }
  total = __shfl_sync(all_lanes, sums, n_warps - 1);
  const uint32_t before = __shfl_sync(all_lanes, sums, max(warp - 1, 0));
  __syncthreads();
  return (warp == 0 ? 0 : before) + sum - x;
}

// The bin of the `wanted`-th largest item of a histogram, and how many are still wanted within that bin. Bins descend
// with the threads.
__device__ inline void find_bin(const uint32_t* bins, uint32_t& bin, uint32_t& wanted, uint32_t* shared) {
  constexpr int own = select_bins / select_threads;
  __shared__ uint32_t found[2];
  const int top = select_bins - 1 - static_cast<int>(threadIdx.x) * own;
  uint32_t sum = 0, total;
  for (int i = 0; i < own; ++i) sum += bins[top - i];
  uint32_t before = sum_before(sum, total, shared);
  if (before < wanted && wanted <= before + sum) {
    int i = 0;
    while (before + bins[top - i] < wanted) before += bins[top - i++];
    found[0] = static_cast<uint32_t>(top - i), found[1] = wanted - before;
  }
  __syncthreads();
  bin = found[0], wanted = found[1];
  __syncthreads();
}

// The k-th largest of n > k >= 1 orders, and how many equal ones belong to the k.
template <class Items>
__device__ uint32_t threshold_of(const Items& items, int64_t row, int64_t first, int64_t n, uint32_t k,
                                 uint32_t& n_equal, uint32_t* bins, uint32_t* shared) {
  uint32_t prefix = 0, known = 0;
  n_equal = k;
  for (int pass = 0; pass < 3; ++pass) {
    const int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0;
    const uint32_t mask = pass == 2 ? 1023 : 2047;
    for (int i = static_cast<int>(threadIdx.x); i < select_bins; i += select_threads) bins[i] = 0;
    __syncthreads();
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < n; i += select_threads) {
      const uint32_t order = items.order(row, first + i);
      if ((order & known) == prefix) atomicAdd(bins + (order >> shift & mask), 1U);
    }
    __syncthreads();
    uint32_t bin;
    find_bin(bins, bin, n_equal, shared);
    prefix |= bin << shift, known |= mask << shift;
  }
  return prefix;
}

// A block selects in one segment of a row. to (rows, segments, k) numbers, -1 behind the last; to_order alike or
// nullptr, 0 behind the last.
template <class Items>
__global__ void __launch_bounds__(select_threads, 3)
    select_kernel(Items items, int32_t* to, uint32_t* to_order, int64_t k, int64_t segment) {
  begin_in_turn();
  __shared__ uint32_t bins[select_bins], shared[select_threads / warp_lanes];
  const int64_t row = blockIdx.y, first = blockIdx.x * segment, count = items.count(row);
  if (first >= count && blockIdx.x > 0) return; // nobody reads what such segments leave
  const int64_t n = min(segment, count - first), at = (row * gridDim.x + blockIdx.x) * k;
  const bool all = items.exist_all(row);
  uint32_t threshold = 0, n_equal = 0; // what exists is above 0
  if (n > k && k > 0) threshold = threshold_of(items, row, first, n, static_cast<uint32_t>(k), n_equal, bins, shared);
  if (threshold == 0) n_equal = 0;
  int64_t above = 0, equal = 0; // items before this part of the list
  for (int64_t part = 0; k > 0 && part < n; part += select_threads * items_a_thread) {
    const int64_t mine = part + static_cast<int64_t>(threadIdx.x) * items_a_thread;
    uint32_t order[items_a_thread], counts = 0, total;
#pragma unroll
    for (int i = 0; i < items_a_thread; ++i) {
      order[i] = mine + i >= n ? 0 : all ? 1 : items.order(row, first + mine + i);
      counts += order[i] > threshold ? 1U : order[i] == threshold ? 0x10000U : 0U;
    }
    const uint32_t before = sum_before(counts, total, shared);
    int64_t n_above = above + (before & 0xFFFFU), n_same = equal + (before >> 16);
#pragma unroll
    for (int i = 0; i < items_a_thread; ++i) {
      const bool same = order[i] == threshold;
      const int64_t place = n_above + min(n_same, static_cast<int64_t>(n_equal));
      if (order[i] > threshold || (same && n_same < n_equal)) {
        to[at + place] = items.number(row, first + mine + i);
        if (to_order != nullptr) to_order[at + place] = order[i];
      }
      n_above += order[i] > threshold ? 1 : 0, n_same += same ? 1 : 0;
    }
    above += total & 0xFFFFU, equal += total >> 16;
  }
  for (int64_t i = above + min(equal, static_cast<int64_t>(n_equal)) + threadIdx.x; i < k; i += select_threads) {
    to[at + i] = -1;
    if (to_order != nullptr) to_order[at + i] = 0;
  }
}

// What the segments of rows left, one segment after another.
template <class Items> struct survivor_items {
  Items of;
  const int32_t* numbers;
  const uint32_t* orders;
  int64_t k, segment, stride;
  __device__ int64_t count(int64_t row) const { return max((of.count(row) + segment - 1) / segment, int64_t{1}) * k; }
  __device__ bool exist_all(int64_t) const { return false; }
  __device__ uint32_t order(int64_t row, int64_t i) const { return orders[row * stride + i]; }
  __device__ int32_t number(int64_t row, int64_t i) const { return numbers[row * stride + i]; }
};

// to (n_rows, k). n_items bounds every count. between: 2 * survivors(n_items, k) words a row.
template <class Items>
void select_best(const Items& items, int64_t n_rows, int64_t n_items, int32_t* to, int64_t k, uint32_t* between,
                 cudaStream_t on) {
  if (k == 0) return;
  const int64_t left = survivors(n_items, k), segment = segment_of(k), n_segments = left == 0 ? 1 : left / k;
  const dim3 grid(static_cast<unsigned>(n_segments), static_cast<unsigned>(n_rows));
  if (left == 0) {
    return launch_early(select_kernel<Items>, grid, select_threads, 0, on, "selection", items, to,
                        static_cast<uint32_t*>(nullptr), k, segment);
  }
  auto* numbers = reinterpret_cast<int32_t*>(between);
  uint32_t* orders = between + n_rows * left;
  launch_early(select_kernel<Items>, grid, select_threads, 0, on, "selection in segments", items, numbers, orders, k,
               segment);
  const survivor_items<Items> rest{items, numbers, orders, k, segment, left};
  launch_early(select_kernel<survivor_items<Items>>, dim3(1, grid.y), select_threads, 0, on,
               "selection of the best segments", rest, to, static_cast<uint32_t*>(nullptr), k, left);
}

} // namespace troupe::device
