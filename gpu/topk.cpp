// Index scores and two-level selection, the plain twin.
#include "gpu/topk.h"

#include "gpu/cache_rows.h"
#include "gpu/dot.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace troupe {
namespace {

constexpr float lowest = -std::numeric_limits<float>::infinity();

// Smaller is better: the score descending in the upper half, the number ascending in the lower one. Both zeros are one.
uint64_t rank_of(float score, int32_t number) {
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0F);
  const uint32_t ascending = (bits & 0x80000000) != 0 ? ~bits : bits | 0x80000000;
  return static_cast<uint64_t>(~ascending) << 32 | static_cast<uint32_t>(number);
}

// The `k` best of `of` under (score descending, number ascending). `of` is and stays ascending.
void keep_best(std::vector<int32_t>& of, const std::vector<float>& score, size_t k) {
  if (of.size() <= k) return;
  if (k == 0) return of.clear();
  thread_local std::vector<uint64_t> ranks;
  ranks.clear();
  for (const int32_t e : of) ranks.push_back(rank_of(score[static_cast<size_t>(e)], e));
  std::nth_element(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(k - 1), ranks.end());
  const uint64_t last = ranks[k - 1];
  std::erase_if(of, [&](int32_t e) { return rank_of(score[static_cast<size_t>(e)], e) > last; });
}

void write_list(tensor to, int64_t row, const std::vector<int32_t>& list) {
  int32_t* out = to.i32() + row * to.shape[1];
  std::fill_n(out, to.shape[1], -1);
  std::copy(list.begin(), list.end(), out);
}

// sum_n w_n relu(q_n . k), heads ascending.
void index_scores(float* score, const float* q, const float* weight, int64_t heads, int64_t dim, stored_keys keys,
                  int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float* key = *as_floats(keys.from(i), 1, dim);
    float sum = 0;
    for (int64_t h = 0; h < heads; ++h) sum = std::fma(weight[h], std::max(row_dot(q + h * dim, key, dim), 0.0F), sum);
    score[i] = std::isnan(sum) ? lowest : sum;
  }
}

const float* key_of(const index_args& a, const step_rows& rows, int64_t r, int64_t entry) {
  const int64_t per_block = a.keys.shape[1];
  const int64_t block = rows.tables.i32()[rows.table.i32()[r] * rows.tables.shape[1] + entry / per_block];
  return reinterpret_cast<const float*>(a.keys.data +
                                        (block * per_block + entry % per_block) * stored_row_bytes(a.keys));
}

// Blocks of `size` entries by their best score; the newest visible block is always in.
std::vector<int32_t> best_blocks(const std::vector<float>& score, int64_t visible, int64_t size, size_t n) {
  std::vector<float> best(static_cast<size_t>((visible + size - 1) / size), lowest);
  std::vector<int32_t> blocks(best.size());
  for (size_t b = 0; b < blocks.size(); ++b) blocks[b] = static_cast<int32_t>(b);
  for (int64_t e = 0; e < visible; ++e) {
    float& top = best[static_cast<size_t>(e / size)];
    top = std::max(top, score[static_cast<size_t>(e)]);
  }
  if (!best.empty()) best.back() = std::numeric_limits<float>::infinity();
  keep_best(blocks, best, n);
  return blocks;
}

} // namespace

const float* const* as_floats(stored_keys keys, int64_t n, int64_t dim) {
  if (!keys.are_records) return keys.rows;
  thread_local std::vector<float> decoded;
  thread_local std::vector<const float*> rows;
  decoded.resize(static_cast<size_t>(n * dim));
  rows.resize(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    float* to = decoded.data() + i * dim;
    decode_record(to, reinterpret_cast<const std::byte*>(keys.rows[i]), dim, quantiser::fp4_e8m0_32);
    rows[static_cast<size_t>(i)] = to;
  }
  return rows.data();
}

void select_row(const index_scores_form& scores_of, const index_args& a, const step_rows& rows, int64_t r) {
  thread_local std::vector<float> score, listed_score;
  thread_local std::vector<int32_t> chosen, scored;
  thread_local std::vector<const float*> keys;
  const bool are_records = holds_records(a.keys, quantiser::fp4_e8m0_32, a.q.shape[2]);
  const int64_t visible = (rows.position.i64()[r] + 1) / a.ratio;
  score.assign(static_cast<size_t>(visible), lowest);
  chosen.clear();
  if (a.candidates_in) {
    const int64_t n = a.candidates_in.shape[1];
    for (int64_t i = 0; i < n; ++i) {
      const int64_t block = a.candidates_in.i32()[r * n + i];
      if (block < 0) break;
      for (int64_t e = block * a.candidate_block; e < std::min((block + 1) * a.candidate_block, visible); ++e)
        chosen.push_back(static_cast<int32_t>(e));
    }
  } else {
    for (int64_t e = 0; e < visible; ++e) chosen.push_back(static_cast<int32_t>(e));
  }
  const auto blocks_out = a.candidates_out ? a.candidates_out.shape[1] : 0;
  const bool all_fit = static_cast<int64_t>(chosen.size()) <= a.selected.shape[1] &&
                       (!a.candidates_out || visible <= blocks_out * a.candidate_block);
  if (a.scores) {
    scored.resize(static_cast<size_t>(visible));
    for (size_t e = 0; e < scored.size(); ++e) scored[e] = static_cast<int32_t>(e);
  } else if (all_fit)
    scored.clear(); // everything is taken, whatever its score
  else
    scored = chosen;
  keys.clear();
  for (const int32_t e : scored) keys.push_back(key_of(a, rows, r, e));
  listed_score.resize(scored.size());
  scores_of(listed_score.data(), a.q.f32() + r * a.q.row_elements(), a.weight.f32() + r * a.q.shape[1], a.q.shape[1],
            a.q.shape[2], {keys.data(), are_records}, static_cast<int64_t>(keys.size()));
  for (size_t i = 0; i < scored.size(); ++i) score[static_cast<size_t>(scored[i])] = listed_score[i];
  if (a.scores) {
    float* out = a.scores.f32() + r * a.scores.shape[1];
    std::fill_n(out, a.scores.shape[1], lowest);
    std::copy(score.begin(), score.end(), out);
  }
  if (a.candidates_out)
    write_list(a.candidates_out, r, best_blocks(score, visible, a.candidate_block, static_cast<size_t>(blocks_out)));
  keep_best(chosen, score, static_cast<size_t>(a.selected.shape[1]));
  write_list(a.selected, r, chosen);
}

void select_entries_host(const index_args& a, const step_rows& rows) {
  const index_scores_form form = index_scores;
  for (int64_t r = 0; r < a.q.rows(); ++r) select_row(form, a, rows, r);
}

} // namespace troupe
