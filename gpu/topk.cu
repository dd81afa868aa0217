// Index scores and exact selection: scores as ordered numbers, then a radix select of each row.
//
// Real shape: 32 index heads x 128, up to 1M entries a row, the 512 best. Scores are bound by fused steps: 4096 an
// entry in the twin's order of sums (16 partial sums a head, then a tree), so equal inputs give equal bits and the
// selection can be the twin's exactly. Not yet measured; by arithmetic 15 us for one row of 100k entries, whose keys
// take 12 us. Selection reads 4 bytes an item four times.
#include "gpu/topk.h"

#include "gpu/cuda_check.cuh"
#include "gpu/cuda_ops.h"
#include "gpu/dot.h"
#include "gpu/select.cuh"

#include <algorithm>

namespace troupe {
namespace {

using namespace device;

constexpr int score_threads = 256;
constexpr int fast_dim = 128, max_fast_heads = 64; // of the kernel that keeps keys in registers
constexpr int64_t max_slab = 32768;                // rows a launch: they are blocks of the second grid dimension

struct arguments {
  const float *q, *weight, *keys;
  const int32_t *candidates, *table, *tables; // candidates (R, n_candidates) or nullptr: all entries
  const int64_t* position;
  int64_t ratio, entries, table_width, n_candidates, candidate_block, n_blocks_out, k, first;
  int heads, dim;
  float* raw;      // (R, raw_width) or nullptr
  uint32_t* order; // (slab, stride): order_of the score of an item; 0: the item does not exist
  int64_t raw_width, stride;
};

__device__ int64_t visible_of(const arguments& a, int64_t r) {
  return max(min((a.position[r] + 1) / a.ratio, a.table_width * a.entries), int64_t{0});
}

// Whether everything is taken whatever its score.
__device__ bool all_fit(const arguments& a, int64_t visible) {
  return a.candidates == nullptr && a.raw == nullptr && visible <= a.k &&
         (a.n_blocks_out < 0 || visible <= a.n_blocks_out * a.candidate_block);
}

// The entry of item i of row r, -1 if there is none.
__device__ int64_t entry_of(const arguments& a, int64_t r, int64_t i, int64_t visible) {
  int64_t e = i;
  if (a.candidates != nullptr) {
    const int64_t block = i / a.candidate_block;
    const int32_t listed = block < a.n_candidates ? a.candidates[r * a.n_candidates + block] : -1;
    if (listed < 0) return -1;
    e = listed * a.candidate_block + i % a.candidate_block;
  }
  return e < visible ? e : -1;
}

__device__ const float* key_of(const arguments& a, int64_t r, int64_t e) {
  const int64_t block = a.tables[a.table[r] * a.table_width + e / a.entries];
  return a.keys + (block * a.entries + e % a.entries) * a.dim;
}

// How many items of row r are scored: with raw scores, up to the end of that row.
__device__ int64_t items_of(const arguments& a, int64_t visible) {
  if (a.candidates != nullptr) return a.n_candidates * a.candidate_block;
  return a.raw != nullptr ? max(visible, a.raw_width) : visible;
}

__device__ void store_score(const arguments& a, int64_t r, int64_t item, int64_t entry, float sum) {
  const float score = is_nan(sum) ? -INFINITY : sum;
  if (a.raw != nullptr && item < a.raw_width) a.raw[r * a.raw_width + item] = entry < 0 ? -INFINITY : score;
  if (item < a.stride) a.order[(r - a.first) * a.stride + item] = entry < 0 ? 0 : order_of(score);
}

__device__ float rectified(float dot) { return dot < 0.0F ? 0.0F : dot; }

// Any dim and number of heads, one thread an item.
__global__ void __launch_bounds__(score_threads) any_scores_kernel(arguments a) {
  const int64_t r = a.first + blockIdx.y, visible = visible_of(a, r), n = items_of(a, visible);
  if (all_fit(a, visible)) return;
  const int64_t step = static_cast<int64_t>(gridDim.x) * score_threads;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * score_threads + threadIdx.x; item < n; item += step) {
    const int64_t e = entry_of(a, r, item, visible);
    const float* key = e < 0 ? nullptr : key_of(a, r, e);
    float sum = 0;
    for (int h = 0; e >= 0 && h < a.heads; ++h) {
      const float* q = a.q + (r * a.heads + h) * a.dim;
      float lane[dot_lanes] = {};
      for (int at = 0; at < a.dim; at += dot_lanes)
#pragma unroll
        for (int i = 0; i < dot_lanes; ++i)
          if (at + i < a.dim) lane[i] = fmaf(q[at + i], key[at + i], lane[i]);
#pragma unroll
      for (int half = dot_lanes / 2; half > 0; half /= 2)
#pragma unroll
        for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
      sum = fmaf(a.weight[r * a.heads + h], rectified(lane[0]), sum);
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
__global__ void __launch_bounds__(score_threads, 2) fast_scores_kernel(arguments a) {
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
      const float* from = entry[j] < 0 ? nullptr : key_of(a, r, entry[j]) + 4 * s;
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

// best[row][block] = the order of the best entry of a candidate block; the newest visible block counts as infinite.
__global__ void block_best_kernel(arguments a, uint32_t* best, int64_t stride) {
  const int64_t r = a.first + blockIdx.y, visible = visible_of(a, r);
  const int64_t n = (visible + a.candidate_block - 1) / a.candidate_block;
  const uint32_t* order = a.order + blockIdx.y * a.stride;
  if (all_fit(a, visible)) return;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t b = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; b < n; b += step) {
    uint32_t top = 0;
    for (int64_t e = b * a.candidate_block; e < min((b + 1) * a.candidate_block, visible); ++e)
      top = max(top, order[e]);
    best[blockIdx.y * stride + b] = b == n - 1 ? order_of_infinity : top;
  }
}

// Items of a row for select_best: entries, listed candidates or candidate blocks.
struct entry_items {
  arguments a;
  __device__ int64_t count(int64_t local) const {
    const int64_t visible = visible_of(a, a.first + local);
    return a.candidates != nullptr ? a.n_candidates * a.candidate_block : visible;
  }
  __device__ bool exist_all(int64_t local) const { return all_fit(a, visible_of(a, a.first + local)); }
  __device__ uint32_t order(int64_t local, int64_t i) const { return a.order[local * a.stride + i]; }
  __device__ int32_t number(int64_t local, int64_t i) const {
    const int64_t r = a.first + local;
    return static_cast<int32_t>(entry_of(a, r, i, visible_of(a, r)));
  }
};
struct block_items {
  arguments a;
  const uint32_t* best;
  int64_t stride;
  __device__ int64_t count(int64_t local) const {
    return (visible_of(a, a.first + local) + a.candidate_block - 1) / a.candidate_block;
  }
  __device__ bool exist_all(int64_t local) const { return all_fit(a, visible_of(a, a.first + local)); }
  __device__ uint32_t order(int64_t local, int64_t i) const { return best[local * stride + i]; }
  __device__ int32_t number(int64_t, int64_t i) const { return static_cast<int32_t>(i); }
};

arguments arguments_of(const index_args& a, const step_rows& rows) {
  arguments x{};
  x.q = a.q.f32(), x.weight = a.weight.f32(), x.keys = a.keys.f32();
  x.table = rows.table.i32(), x.tables = rows.tables.i32(), x.position = rows.position.i64();
  x.ratio = a.ratio, x.entries = a.keys.shape[1], x.table_width = rows.tables.shape[1];
  x.candidate_block = a.candidate_block, x.k = a.selected.shape[1];
  x.n_blocks_out = a.candidates_out ? a.candidates_out.shape[1] : -1;
  x.heads = static_cast<int>(a.q.shape[1]), x.dim = static_cast<int>(a.q.shape[2]);
  return x;
}

void run_scores(const arguments& a, int64_t n_rows, int64_t n_items, const cuda_lane& lane) {
  if (n_items == 0) return;
  const bool fast = a.dim == fast_dim && a.heads % 4 == 0 && a.heads <= max_fast_heads &&
                    reinterpret_cast<uintptr_t>(a.q) % 16 == 0 && reinterpret_cast<uintptr_t>(a.keys) % 16 == 0;
  const int64_t block_items = fast ? score_threads / 2 : score_threads;
  const int64_t wanted = (8 * static_cast<int64_t>(lane.n_multiprocessors) + n_rows - 1) / n_rows;
  const dim3 grid(static_cast<unsigned>(std::clamp<int64_t>((n_items + block_items - 1) / block_items, 1, wanted)),
                  static_cast<unsigned>(n_rows));
  if (fast)
    fast_scores_kernel<<<grid, score_threads, 0, lane.on>>>(a);
  else
    any_scores_kernel<<<grid, score_threads, 0, lane.on>>>(a);
  cuda_check_launch("index scores");
}

} // namespace

void select_entries_cuda(const index_args& args, const step_rows& rows, const cuda_lane& lane) {
  const int64_t n_rows = args.q.rows();
  if (n_rows == 0) return;
  TROUPE_CHECK(!args.candidates_in || !args.candidates_out, "a layer makes candidates or uses them");
  TROUPE_CHECK((!args.candidates_in && !args.candidates_out) || args.candidate_block > 0, "a block holds entries");
  arguments a = arguments_of(args, rows);
  const int64_t n_entries = a.table_width * a.entries;
  const int64_t n_items = args.candidates_in ? args.candidates_in.shape[1] * a.candidate_block : n_entries;
  const int64_t n_blocks = args.candidates_out ? (n_entries + a.candidate_block - 1) / a.candidate_block : 0;
  const int64_t blocks_out = args.candidates_out ? args.candidates_out.shape[1] : 0;
  a.stride = (n_items + 3) / 4 * 4;
  const int64_t row_words =
      a.stride + n_blocks + 2 * std::max(survivors(n_items, a.k), survivors(n_blocks, blocks_out));
  const int64_t slab = std::min({lane.scratch_bytes / std::max<int64_t>(4 * row_words, 1), max_slab, n_rows});
  TROUPE_CHECK(slab > 0, "scratch holds the scores of one row");
  a.order = reinterpret_cast<uint32_t*>(lane.scratch);
  uint32_t* best = a.order + slab * a.stride;
  uint32_t* between = best + slab * n_blocks;
  for (a.first = 0; a.first < n_rows; a.first += slab) {
    const int64_t n = std::min(slab, n_rows - a.first);
    a.candidates = nullptr, a.raw = nullptr, a.n_candidates = 0;
    if (args.scores) a.raw = args.scores.f32(), a.raw_width = args.scores.shape[1];
    if (args.scores || !args.candidates_in) run_scores(a, n, std::max(n_entries, a.raw_width), lane);
    if (args.candidates_in) {
      a.raw = nullptr;
      a.candidates = args.candidates_in.i32(), a.n_candidates = args.candidates_in.shape[1];
      run_scores(a, n, n_items, lane);
    }
    select_best(entry_items{a}, n, n_items, args.selected.i32() + a.first * a.k, a.k, between, lane.on);
    if (!args.candidates_out) continue;
    const dim3 grid(static_cast<unsigned>(std::clamp<int64_t>((n_blocks + 255) / 256, 1, 1024)),
                    static_cast<unsigned>(n));
    block_best_kernel<<<grid, 256, 0, lane.on>>>(a, best, n_blocks);
    cuda_check_launch("candidate blocks");
    select_best(block_items{a, best, n_blocks}, n, n_blocks, args.candidates_out.i32() + a.first * blocks_out,
                blocks_out, between, lane.on);
  }
}

} // namespace troupe
