// Index scores and two-level selection, the plain twin.
#include "gpu/topk.h"

#include "gpu/dot.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace troupe {
namespace {

constexpr float lowest = -std::numeric_limits<float>::infinity();

// The `k` best of `of` under (score descending, number ascending), then ascending by number.
void keep_best(std::vector<int32_t>& of, const std::vector<float>& score, size_t k) {
  if (of.size() > k) {
    std::nth_element(of.begin(), of.begin() + static_cast<std::ptrdiff_t>(k), of.end(), [&](int32_t a, int32_t b) {
      return score[static_cast<size_t>(a)] != score[static_cast<size_t>(b)]
                 ? score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)]
                 : a < b;
    });
    of.resize(k);
  }
  std::sort(of.begin(), of.end());
}

void write_list(tensor to, int64_t row, const std::vector<int32_t>& list) {
  int32_t* out = to.i32() + row * to.shape[1];
  std::fill_n(out, to.shape[1], -1);
  std::copy(list.begin(), list.end(), out);
}

// sum_n w_n relu(q_n . k), heads ascending. A score that is no number counts as the lowest.
float index_score(const index_args& a, const step_rows& rows, int64_t r, int64_t entry) {
  const int64_t heads = a.q.shape[1], dim = a.q.shape[2], per_block = a.keys.shape[1];
  const int64_t block = rows.tables.i32()[rows.table.i32()[r] * rows.tables.shape[1] + entry / per_block];
  const float* key = a.keys.f32() + (block * per_block + entry % per_block) * dim;
  float sum = 0;
  for (int64_t n = 0; n < heads; ++n) {
    const float s = row_dot(a.q.f32() + (r * heads + n) * dim, key, dim);
    sum = std::fma(a.weight.f32()[r * heads + n], std::max(s, 0.0F), sum);
  }
  return std::isnan(sum) ? lowest : sum;
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

void select_entries_host(const index_args& a, const step_rows& rows) {
  thread_local std::vector<float> score;
  thread_local std::vector<int32_t> chosen;
  for (int64_t r = 0; r < a.q.rows(); ++r) {
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
    if (a.scores) {
      float* out = a.scores.f32() + r * a.scores.shape[1];
      std::fill_n(out, a.scores.shape[1], lowest);
      for (int64_t e = 0; e < visible; ++e) out[e] = score[static_cast<size_t>(e)] = index_score(a, rows, r, e);
    } else {
      for (const int32_t e : chosen) score[static_cast<size_t>(e)] = index_score(a, rows, r, e);
    }
    if (a.candidates_out)
      write_list(a.candidates_out, r,
                 best_blocks(score, visible, a.candidate_block, static_cast<size_t>(a.candidates_out.shape[1])));
    keep_best(chosen, score, static_cast<size_t>(a.selected.shape[1]));
    write_list(a.selected, r, chosen);
  }
}

} // namespace troupe
