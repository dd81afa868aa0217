// Guesses, and the graphs that steps of few rows are replayed from.
#include "model/deepseek_v41/model_v41.h"

#include <algorithm>
#include <cmath>

namespace troupe::deepseek_v41 {

draft_result model_v41::draft(std::span<const draft_anchor> anchors, const draft_choice& choose) {
  TROUPE_CHECK(drafter_ != nullptr, "drafting needs the draft weights");
  return drafter_->draft(ctx_, draft_caches(), with_floors(anchors), choose);
}

std::vector<draft_anchor> model_v41::with_floors(std::span<const draft_anchor> anchors) const {
  std::vector<draft_anchor> out(anchors.begin(), anchors.end());
  for (draft_anchor& a : out) a.floor = floor_[static_cast<size_t>(a.slot)];
  return out;
}

draft_tokens model_v41::draft_next(std::span<const draft_request> requests) {
  TROUPE_CHECK(drafter_ != nullptr, "drafting needs the draft weights");
  if (requests.empty()) return {};
  std::vector<draft_anchor> anchors;
  for (const draft_request& r : requests) anchors.push_back({r.slot, r.position, r.token});
  anchors = with_floors(anchors);
  draft_tokens found;
  if (!drafter_->can_guess()) {
    draft_result slow = drafter_->draft(ctx_, draft_caches(), anchors, greedy_choice);
    found = {std::move(slow.tokens), std::move(slow.confidence)};
  } else {
    const auto n = static_cast<int64_t>(anchors.size());
    drafter_->upload(anchors);
    if (n < static_cast<int64_t>(draft_graphs_.size())) {
      be_.replay(*draft_graphs_[static_cast<size_t>(n)]);
      ++counts_.replayed;
    } else {
      drafter_->guess(ctx_, draft_caches(), n);
      if (!draft_graphs_.empty()) ++counts_.launched;
    }
    found = drafter_->fetch(n);
  }
  for (float& c : found.confidence) c = 1 / (1 + std::exp(-c)); // dspark.md section 4
  return found;
}

void model_v41::capture_steps(int32_t max_rows) {
  step_graphs_.clear();
  draft_graphs_.clear();
  if (!be_.can_capture() || max_rows < 1) return;
  const int64_t rows = std::min<int64_t>({max_rows, max_rows_, ends_->piece(), info_.block_tokens});
  step_graphs_.resize(static_cast<size_t>(rows) + 1);
  for (int64_t n = 1; n <= rows; ++n) {
    for (row_columns* columns : {&*all_columns_, &*tail_columns_}) { // positions 0, 1, .. of slot 0, all in block 0
      columns->clear();
      for (int64_t i = 0; i < n; ++i) columns->add({.position = i});
      columns->upload();
    }
    run_step(n, n, n); // loads what is loaded at a first launch
    step_graphs_[static_cast<size_t>(n)] = be_.capture([this, n] { run_step(n, n, n); });
  }
  if (!drafter_ || !drafter_->can_guess()) return;
  const int64_t sequences = std::min<int64_t>(options_.max_sequences, rows);
  draft_graphs_.resize(static_cast<size_t>(sequences) + 1);
  for (int64_t n = 1; n <= sequences; ++n) {
    drafter_->upload(std::vector<draft_anchor>(static_cast<size_t>(n), {.position = 1}));
    drafter_->guess(ctx_, draft_caches(), n);
    draft_graphs_[static_cast<size_t>(n)] = be_.capture([this, n] { drafter_->guess(ctx_, draft_caches(), n); });
  }
}

} // namespace troupe::deepseek_v41
