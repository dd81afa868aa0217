// The entries that an indexer row sees, in device code: which are scored, where their keys are, where scores go. For
// .cu files only.
#pragma once

#include "gpu/cuda_lane.h"
#include "gpu/device_math.cuh"
#include "gpu/dot.h"
#include "gpu/order.cuh"

#include <cstdint>

namespace troupe::device {

// What the kernels of one indexer call are given.
struct index_view {
  const float *q, *weight;
  const uint8_t* keys; // (n_blocks, entries) rows of floats, or records of fp4_e8m0_32
  int64_t key_bytes;
  bool are_records;
  const int32_t *candidates, *table, *tables; // candidates (R, n_candidates) or nullptr: all entries
  const int64_t* position;
  int64_t ratio, entries, table_width, n_candidates, candidate_block, n_blocks_out, k, first;
  int heads, dim;
  float* raw;      // (R, raw_width) or nullptr
  uint32_t* order; // (slab, stride): order_of the score of an item; 0: the item does not exist
  int64_t raw_width, stride;
};

// Positions, items and entries have 32 bits where they are divided: 64 take five times as long.
__device__ inline int64_t visible_of(const index_view& a, int64_t r) {
  const int64_t whole = static_cast<int32_t>(a.position[r] + 1) / static_cast<int32_t>(a.ratio);
  return max(min(whole, a.table_width * a.entries), int64_t{0});
}

// Whether everything is taken whatever its score.
__device__ inline bool all_fit(const index_view& a, int64_t visible) {
  return a.candidates == nullptr && a.raw == nullptr && visible <= a.k &&
         (a.n_blocks_out < 0 || visible <= a.n_blocks_out * a.candidate_block);
}

// The entry of item i of row r, -1 if there is none.
__device__ inline int64_t entry_of(const index_view& a, int64_t r, int64_t i, int64_t visible) {
  int64_t e = i;
  if (a.candidates != nullptr) {
    const auto each = static_cast<uint32_t>(a.candidate_block), block = static_cast<uint32_t>(i) / each;
    const int32_t listed = block < a.n_candidates ? a.candidates[r * a.n_candidates + block] : -1;
    if (listed < 0) return -1;
    e = int64_t{listed} * each + static_cast<uint32_t>(i) % each;
  }
  return e < visible ? e : -1;
}

__device__ inline const uint8_t* key_of(const index_view& a, int64_t r, int64_t e) {
  const auto each = static_cast<uint32_t>(a.entries), entry = static_cast<uint32_t>(e);
  const int64_t block = a.tables[a.table[r] * a.table_width + entry / each];
  return a.keys + (block * each + entry % each) * a.key_bytes;
}

// How many items of row r are scored: with raw scores, up to the end of that row.
__device__ inline int64_t items_of(const index_view& a, int64_t visible) {
  if (a.candidates != nullptr) return a.n_candidates * a.candidate_block;
  return a.raw != nullptr ? max(visible, a.raw_width) : visible;
}

__device__ inline void store_score(const index_view& a, int64_t r, int64_t item, int64_t entry, float sum) {
  const float score = is_nan(sum) ? -INFINITY : sum;
  if (a.raw != nullptr && item < a.raw_width) a.raw[r * a.raw_width + item] = entry < 0 ? -INFINITY : score;
  if (item < a.stride) a.order[(r - a.first) * a.stride + item] = entry < 0 ? 0 : order_of(score);
}

// The tree of gpu/dot.h.
__device__ inline float tree_sum(float (&lane)[dot_lanes]) {
#pragma unroll
  for (int half = dot_lanes / 2; half > 0; half /= 2)
#pragma unroll
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
}
__device__ inline float rectified(float dot) { return dot < 0.0F ? 0.0F : dot; }

} // namespace troupe::device

namespace troupe {

// Scores of at most `n_items` items of each of `n_rows` rows from a.first on. Equal keys give equal bits in both forms.
void run_index_scores(const device::index_view& a, int64_t n_rows, int64_t n_items, const cuda_lane& lane);
// index_records.cu: records of 128 elements, heads in eights.
bool record_scores_serve(const device::index_view& a);
void run_record_scores(const device::index_view& a, int64_t n_rows, int64_t n_items, const cuda_lane& lane);

} // namespace troupe
