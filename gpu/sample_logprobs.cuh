// Log-probabilities of raw logits: the row's sum and its n best. For sample.cu.
#pragma once

#include "gpu/sample_device.cuh"
#include "gpu/select.cuh"

namespace troupe::device {

__device__ inline double lanes_sum_f64(double x) {
  for (int step = warp_lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(all_lanes, x, step);
  return x;
}

// Grid (parts, rows): largest raw logit and the sum of exp(logit - largest), in one fixed order.
__global__ void __launch_bounds__(sample_threads) raw_parts_kernel(sample_view v) {
  __shared__ float largest_of[sample_threads / warp_lanes];
  __shared__ double sum_of[sample_threads / warp_lanes];
  const float* logits = v.logits + blockIdx.y * v.n;
  const part_range ids(v);
  float largest = -INFINITY;
  for (int64_t id = ids.first + threadIdx.x; id < ids.end; id += sample_threads) largest = fmaxf(largest, logits[id]);
  largest = lanes_max(largest);
  if (threadIdx.x % warp_lanes == 0) largest_of[threadIdx.x / warp_lanes] = largest;
  __syncthreads();
  for (const float other : largest_of) largest = fmaxf(largest, other);
  double sum = 0;
  if (largest > -INFINITY)
    for (int64_t id = ids.first + threadIdx.x; id < ids.end; id += sample_threads)
      sum += exp(static_cast<double>(logits[id]) - static_cast<double>(largest));
  sum = lanes_sum_f64(sum);
  if (threadIdx.x % warp_lanes == 0) sum_of[threadIdx.x / warp_lanes] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  sum = 0;
  for (const double other : sum_of) sum += other;
  double* to = v.raw_parts + (blockIdx.y * v.n_parts + blockIdx.x) * 2;
  to[0] = static_cast<double>(largest), to[1] = sum;
}

// A block a row: log of the row's sum; ranks the n ids chosen (ascending, -1 behind the last) best first.
__global__ void rank_best_kernel(sample_view v, const int32_t* chosen, int n, int32_t* best_ids, float* best_logprobs) {
  const int64_t row = blockIdx.x;
  const double* parts = v.raw_parts + row * v.n_parts * 2;
  double largest = parts[0], sum = 0;
  for (int p = 1; p < v.n_parts; ++p) largest = fmax(largest, parts[2 * p]);
  for (int p = 0; p < v.n_parts; ++p)
    if (parts[2 * p + 1] > 0) sum += parts[2 * p + 1] * exp(parts[2 * p] - largest);
  const double log_total = largest + log(sum);
  if (threadIdx.x == 0) v.log_total[row] = log_total;
  const float* logits = v.logits + row * v.n;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
    const int32_t id = chosen[row * n + i];
    int rank = i; // what does not exist stays behind the rest
    if (id >= 0) {
      rank = 0;
      for (int j = 0; j < n; ++j) {
        const int32_t other = chosen[row * n + j];
        if (other >= 0 && place_of(logits[other], other) > place_of(logits[id], id)) ++rank;
      }
    }
    best_ids[row * n + rank] = id;
    best_logprobs[row * n + rank] =
        id < 0 ? -INFINITY : static_cast<float>(static_cast<double>(logits[id]) - log_total);
  }
}

struct raw_items {
  const float* logits;
  int64_t n;
  __device__ int64_t count(int64_t) const { return n; }
  __device__ bool exist_all(int64_t) const { return false; }
  __device__ uint32_t order(int64_t row, int64_t i) const { return order_of(logits[row * n + i]); }
  __device__ int32_t number(int64_t, int64_t i) const { return static_cast<int32_t>(i); }
};

} // namespace troupe::device
