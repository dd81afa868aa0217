// batch_policy's drafts: what is verified in a step, what is asked for, and what results teach about both.
#include "actors/batch_policy.h"

#include <algorithm>
#include <utility>

namespace troupe {

// The rows that decode get drafts to verify, no more than the sequence can still deliver, so its reserved blocks cover
// them: behind the last draft there is always a token of the target. Precondition: the plan holds no prompts yet.
void batch_policy::plan_drafts(step_plan& plan, int64_t n_prompt_rows) {
  shape_ = {};
  shape_.n_sequences = shape_.n_rows = static_cast<int64_t>(plan.rows.size());
  if (limits_.drafts.block == 0) return;
  offers_.clear();
  for (const auto& r : plan.rows) {
    const auto& [t, i] = by_sequence_.at(r.id);
    auto& s = t->sequences[i];
    const int64_t n_room = s.n_blocks * limits_.block_tokens - s.n_done - 1;
    const auto n_useful = std::min<int64_t>({s.what.max_tokens - s.n_generated - 1, n_room, limits_.drafts.block});
    offers_.push_back({&s.drafts, static_cast<int32_t>(std::max<int64_t>(n_useful, 0))});
  }
  drafts_.choose(offers_, n_prompt_rows);
  for (size_t i = 0; i < offers_.size(); ++i) {
    auto& row = plan.rows[i];
    const auto& ids = offers_[i].drafts->ids;
    row.n_drafts = offers_[i].n_chosen;
    row.tokens.insert(row.tokens.end(), ids.begin(), ids.begin() + row.n_drafts);
    shape_.n_rows += row.n_drafts;
  }
}

// Rows that sample are asked for new drafts. Precondition: the plan is complete.
void batch_policy::ask_for_drafts(step_plan& plan) {
  if (limits_.drafts.block == 0) return;
  requests_.clear();
  asked_.clear();
  int64_t n_sampling = 0;
  for (auto& r : plan.rows) {
    if (!r.samples) continue;
    ++n_sampling;
    const auto& [t, i] = by_sequence_.at(r.id);
    auto& s = t->sequences[i];
    if (s.what.max_tokens - s.n_generated <= 2) continue; // one token now, and then two with a draft
    requests_.push_back({&s.drafts});
    asked_.push_back(&r);
  }
  drafts_.ask(requests_, n_sampling);
  for (size_t k = 0; k < asked_.size(); ++k) {
    asked_[k]->wants_drafts = requests_[k].is_wanted;
    shape_.n_drafted += requests_[k].is_wanted;
  }
  asked_.clear(); // the plan moves
}

void batch_policy::take_drafts(sequence& s, sequence_result& r) {
  judged_.clear();
  for (const auto& t : r.tokens) judged_.push_back(t.id);
  drafts_.observe_run(s.drafts, judged_);
  if (!r.next_drafts.empty()) drafts_.take(s.drafts, std::move(r.next_drafts), std::move(r.confidence));
}

// What a step costs is what the streams wait for: all of the way round the ring. Without a result of the model nothing
// is learned.
void batch_policy::learn_step(const step_result& result, time now) {
  if (limits_.drafts.block == 0 || result.compute_us <= 0) return;
  const auto ring_us = std::chrono::duration_cast<std::chrono::microseconds>(now - planned_at_).count();
  shape_.step_us = std::max<int64_t>(result.compute_us, ring_us);
  shape_.draft_us = result.draft_us;
  for (const auto& r : result.results) shape_.n_gained += static_cast<int64_t>(r.tokens.size());
  drafts_.observe_step(shape_);
}

} // namespace troupe
