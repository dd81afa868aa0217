// batch_policy's drafts: what is verified in a step, what is asked for, and what results teach about both.
#include "actors/batch_policy.h"

#include <algorithm>
#include <utility>

namespace troupe {

// The rows that decode get drafts to verify, no more than the sequence can still deliver, so its reserved blocks cover
// them: behind the last draft there is always a token of the target. Precondition: the plan holds no prompts yet.
void batch_policy::plan_drafts(step_plan& plan, int64_t n_prompt_rows) {
  shape_ = {};
  shape_.n_decoding = static_cast<int64_t>(plan.rows.size());
  shape_.n_rows = shape_.n_decoding;
  if (limits_.drafts.block == 0) return;
  offers_.clear();
  for (const auto& r : plan.rows) {
    const auto& [t, i] = by_sequence_.at(r.id);
    const auto& s = t->sequences[i];
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
  const auto n_sampling = std::count_if(plan.rows.begin(), plan.rows.end(), [](const auto& r) { return r.samples; });
  if (!drafts_.wants_drafts(n_sampling)) return;
  for (auto& r : plan.rows) {
    if (!r.samples) continue;
    const auto& [t, i] = by_sequence_.at(r.id);
    const auto& s = t->sequences[i];
    r.wants_drafts = s.what.max_tokens - s.n_generated > 2; // one token now, and then two with a draft
    shape_.n_drafting += r.wants_drafts;
  }
}

void batch_policy::take_drafts(sequence& s, sequence_result& r) {
  draft_policy::observe_run(s.drafts, r.n_drafts, r.n_accepted);
  s.drafts.ids = std::move(r.next_drafts);
  s.drafts.confidence = std::move(r.confidence);
  if (s.drafts.ids.size() != s.drafts.confidence.size()) s.drafts.ids.clear();
}

// Steps with rows of prompts, or without a result of the model, say nothing about the cost of drafts.
void batch_policy::learn_step(const step_result& result) {
  if (limits_.drafts.block > 0 && !shape_.has_prompts && shape_.n_decoding > 0 && result.compute_us > 0)
    drafts_.observe_cost(shape_.n_decoding, shape_.n_rows, result.compute_us, shape_.n_drafting, result.draft_us);
}

} // namespace troupe
