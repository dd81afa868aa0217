// Index scores in the twin's order of sums: 16 partial sums a head, then a tree; so equal inputs give equal bits.
//
// Bound by fused steps, 4096 an entry at the real shape. Keys kept as records of 128 elements have a faster form
// (index_records.cu).
#include "gpu/index_view.cuh"

#include "gpu/cuda_check.cuh"
#include "gpu/dot.h"

#include <algorithm>

namespace troupe {
namespace {

using namespace device;

constexpr int score_threads = 256;
constexpr int fast_dim = 128, max_fast_heads = 64; // of the kernel that keeps keys in registers

// Element i of a key.
template <bool Records> __device__ float element(const uint8_t* key, int dim, int i) {
  if constexpr (!Records) return reinterpret_cast<const float*>(key)[i];
  const auto code = static_cast<uint8_t>(key[i / 2] >> (i % 2 * 4));
  return e2m1_to_f32(code & 15) * e8m0_to_f32(key[dim / 2 + i / 32]);
}

// Any dim and number of heads, one thread an item.
template <bool Records> __global__ void __launch_bounds__(score_threads) any_scores_kernel(index_view a) {
  const int64_t r = a.first + blockIdx.y, visible = visible_of(a, r), n = items_of(a, visible);
  if (all_fit(a, visible)) return;
  const int64_t step = static_cast<int64_t>(gridDim.x) * score_threads;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * score_threads + threadIdx.x; item < n; item += step) {
    const int64_t e = entry_of(a, r, item, visible);
    const uint8_t* key = e < 0 ? nullptr : key_of(a, r, e);
    float sum = 0;
    for (int h = 0; e >= 0 && h < a.heads; ++h) {
      const float* q = a.q + (r * a.heads + h) * a.dim;
      float lane[dot_lanes] = {};
      for (int at = 0; at < a.dim; at += dot_lanes)
#pragma unroll
        for (int i = 0; i < dot_lanes; ++i)
          if (at + i < a.dim) lane[i] = fmaf(q[at + i], element<Records>(key, a.dim, at + i), lane[i]);
      sum = fmaf(a.weight[r * a.heads + h], rectified(tree_sum(lane)), sum);
    }
    store_score(a, r, item, e, sum);
  }
}

// The tree of gpu/dot.h over partial sums [4 heads][2 items][4 lanes] of four neighbouring threads, thread s with lanes
// 4s .. 4s + 3: halves are exchanged, so thread s ends with heads 2 (s / 2) and + 1 of item s % 2.
__device__ void sum_tree(const float (&lane)[4][2][4], int s, float (&dot)[2]) {
  float eight[2][2][4]; // lanes i + i + 8 of two heads
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float low = lane[h][j][i], high = lane[h + 2][j][i];
        const float other = __shfl_xor_sync(all_lanes, s < 2 ? high : low, 2);
        eight[h][j][i] = (s < 2 ? low : high) + other;
      }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float four[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool even = s % 2 == 0;
      const float other = __shfl_xor_sync(all_lanes, even ? eight[h][1][i] : eight[h][0][i], 1);
      four[i] = (even ? eight[h][0][i] : eight[h][1][i]) + other;
    }
    dot[h] = (four[0] + four[2]) + (four[1] + four[3]);
  }
}

// 128 dims, heads a multiple of 4. Four threads share two items: each keeps its lanes of both keys in registers while
// the heads pass by in shared memory, read by all as a broadcast.
__global__ void __launch_bounds__(score_threads, 2) fast_scores_kernel(index_view a) {
  __shared__ __align__(16) float query[max_fast_heads * fast_dim];
  __shared__ float weight[max_fast_heads];
  constexpr int n_steps = fast_dim / dot_lanes;
  constexpr int64_t block_items = score_threads / 2;
  const int64_t r = a.first + blockIdx.y, visible = visible_of(a, r), n = items_of(a, visible);
  if (all_fit(a, visible) || blockIdx.x * block_items >= n) return;
  const int tid = static_cast<int>(threadIdx.x), s = tid % 4;
  for (int i = tid; i < a.heads * (fast_dim / 4); i += score_threads)
    reinterpret_cast<float4*>(query)[i] = reinterpret_cast<const float4*>(a.q + r * a.heads * fast_dim)[i];
  for (int i = tid; i < a.heads; i += score_threads) weight[i] = a.weight[r * a.heads + i];
  __syncthreads();
  for (int64_t first = blockIdx.x * block_items; first < n; first += gridDim.x * block_items) {
    const int64_t item = first + tid / 4 * 2;
    int64_t entry[2];
    float4 key[2][n_steps];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      entry[j] = item + j < n ? entry_of(a, r, item + j, visible) : -1;
      const float* from = entry[j] < 0 ? nullptr : reinterpret_cast<const float*>(key_of(a, r, entry[j])) + 4 * s;
#pragma unroll
      for (int m = 0; m < n_steps; ++m)
        key[j][m] = from == nullptr ? make_float4(0, 0, 0, 0) : *reinterpret_cast<const float4*>(from + m * dot_lanes);
    }
    float sum = 0; // of item s % 2, in all four threads
    for (int h = 0; h < a.heads; h += 4) {
      float lane[4][2][4] = {};
#pragma unroll
      for (int m = 0; m < n_steps; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float4 x = *reinterpret_cast<const float4*>(query + (h + i) * fast_dim + m * dot_lanes + 4 * s);
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            lane[i][j][0] = fmaf(x.x, key[j][m].x, lane[i][j][0]);
            lane[i][j][1] = fmaf(x.y, key[j][m].y, lane[i][j][1]);
            lane[i][j][2] = fmaf(x.z, key[j][m].z, lane[i][j][2]);
            lane[i][j][3] = fmaf(x.w, key[j][m].w, lane[i][j][3]);
          }
        }
      float dot[2], other[2];
      sum_tree(lane, s, dot);
      other[0] = __shfl_xor_sync(all_lanes, dot[0], 2), other[1] = __shfl_xor_sync(all_lanes, dot[1], 2);
      sum = fmaf(weight[h], rectified(s < 2 ? dot[0] : other[0]), sum);
      sum = fmaf(weight[h + 1], rectified(s < 2 ? dot[1] : other[1]), sum);
      sum = fmaf(weight[h + 2], rectified(s < 2 ? other[0] : dot[0]), sum);
      sum = fmaf(weight[h + 3], rectified(s < 2 ? other[1] : dot[1]), sum);
    }
    if (s < 2 && item + s < n) store_score(a, r, item + s, s == 0 ? entry[0] : entry[1], sum);
  }
}

} // namespace

void run_index_scores(const index_view& a, int64_t n_rows, int64_t n_items, const cuda_lane& lane) {
  if (n_items == 0) return;
  if (record_scores_serve(a)) return run_record_scores(a, n_rows, n_items, lane);
  const bool fast = !a.are_records && a.dim == fast_dim && a.heads % 4 == 0 && a.heads <= max_fast_heads &&
                    reinterpret_cast<uintptr_t>(a.q) % 16 == 0 && reinterpret_cast<uintptr_t>(a.keys) % 16 == 0;
  const int64_t block_items = fast ? score_threads / 2 : score_threads;
  const int64_t wanted = (8 * static_cast<int64_t>(lane.n_multiprocessors) + n_rows - 1) / n_rows;
  const dim3 grid(static_cast<unsigned>(std::clamp<int64_t>((n_items + block_items - 1) / block_items, 1, wanted)),
                  static_cast<unsigned>(n_rows));
  if (fast)
    fast_scores_kernel<<<grid, score_threads, 0, lane.on>>>(a);
  else
    (a.are_records ? any_scores_kernel<true> : any_scores_kernel<false>)<<<grid, score_threads, 0, lane.on>>>(a);
  cuda_check_launch("index scores");
}

} // namespace troupe
