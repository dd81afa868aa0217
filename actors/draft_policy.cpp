// First and plain rounds fill the cost table, trials look at what is off; all others take what pays.
#include "actors/draft_policy.h"

#include <algorithm>
#include <bit>

namespace troupe {

namespace {

constexpr int64_t first_rounds = 15;    // at none, all and half of the drafts in turn: medians of five
constexpr int64_t plain_every = 256;    // steps with drafts need plain ones to compare with
constexpr int32_t plain_run = 3;        // at a time: a median
constexpr double trial_share = 0.005;   // of the time, and as much for the first trial of new sequences
constexpr double sure_part = 0.7;       // of the drafts of a trial are expected to be right
constexpr int32_t longest_run = 9;      // as many as a median of step_costs stands on
constexpr int64_t tokens_of_trial = 16; // between two of a sequence at least: its text is the same as before
constexpr double deep_share = 0.0005;   // of the time, for trials that are verified whole, which measures rows
constexpr double off_weight = 0.97;     // of what an off sequence promises: on the edge it stays as it is
constexpr double least_gain = 1.005;

size_t size_of(int64_t n_sequences) { return std::min<size_t>(std::bit_width(static_cast<uint64_t>(n_sequences)), 15); }

} // namespace

int32_t draft_policy::max_drafts() const { return std::clamp(limits_.max_drafts, 0, limits_.block); }

// Steps with rows of prompts are not measured.
draft_policy::round draft_policy::next_round(std::span<const offer> offers, bool is_measured) {
  const auto n = static_cast<int64_t>(offers.size());
  const bool any_on = std::any_of(offers.begin(), offers.end(), [](const offer& o) { return o.drafts->is_on; });
  if (is_measured && n_first_[size_of(n)] < first_rounds) return round::first;
  if (n_plain_left_ > 0) {
    --n_plain_left_;
    return round::plain;
  }
  if (is_measured && any_on && costs_.n_since_plain(n) > plain_every) {
    n_plain_left_ = plain_run - 1;
    return round::plain;
  }
  return is_measured && n_tried_ > 0 && is_deep_next(offers) ? round::deep : round::chosen;
}

// Of a trial. Drafts that are likely right are worth their rows nearly or more, so that they are verified each time:
// the table that thinks otherwise is tested.
bool draft_policy::is_deep_next(std::span<const offer> offers) const {
  if (goes_on_ || deep_.is_paid()) return true;
  double tokens = 0, most = 0;
  for (const auto& o : offers) {
    const auto n = std::min<size_t>(o.drafts->ids.size(), static_cast<size_t>(max_drafts()));
    double right = 1;
    const float trust = o.drafts->trust();
    for (size_t j = 0; j < n; ++j) tokens += right *= belief_.probability(*o.drafts, j, trust);
    most += static_cast<double>(n);
  }
  return tokens > sure_part * most;
}

// The most drafts of a sequence in it.
int32_t draft_policy::depth_of_round(std::span<const offer> offers) {
  const int32_t most = max_drafts();
  if (round_ == round::plain) return 0;
  if (round_ != round::first) return most;
  auto& n = n_first_[size_of(static_cast<int64_t>(offers.size()))];
  const int32_t depth = n % 3 == 0 ? 0 : n % 3 == 1 ? most : (most + 1) / 2;
  const bool has_drafts =
      std::any_of(offers.begin(), offers.end(), [](const offer& o) { return !o.drafts->ids.empty(); });
  if (has_drafts || depth == 0) ++n; // else there are some in the next round
  return depth;
}

void draft_policy::choose(std::span<offer> offers, int64_t n_other_rows) {
  round_ = round::chosen;
  if (offers.empty()) return;
  const auto n = static_cast<int64_t>(offers.size());
  round_ = limits_.is_adaptive ? next_round(offers, n_other_rows == 0) : round::deep;
  const int32_t most = depth_of_round(offers);
  gains_.clear();
  int64_t n_on = 0;
  for (size_t i = 0; i < offers.size(); ++i) {
    auto& o = offers[i];
    n_on += o.drafts->is_on;
    o.n_chosen = std::max(0, std::min({most, o.n_useful, static_cast<int32_t>(o.drafts->ids.size())}));
    if (round_ != round::chosen) continue;
    double right = 1;
    const float trust = o.drafts->trust();
    for (int32_t j = 0; j < o.n_chosen; ++j) {
      right *= belief_.probability(*o.drafts, static_cast<size_t>(j), trust);
      gains_.push_back({static_cast<float>(right), static_cast<int32_t>(i), false});
    }
  }
  if (gains_.empty() || !costs_.curve(n).is_known()) return;
  for (auto& o : offers) o.n_chosen = 0;
  const size_t n_best = best(n, n_other_rows, n_on);
  for (size_t m = 0; m < n_best; ++m) ++offers[static_cast<size_t>(gains_[m].of)].n_chosen;
}

// Highest first. A draft's gain never exceeds that of the one before it, so a stable order keeps each sequence's drafts
// in order; 256 bins, because comparing takes longer than all else here.
void draft_policy::sort_gains() {
  std::array<uint32_t, 257> first{};
  for (auto& g : gains_) {
    g.bin = static_cast<uint8_t>(255 - static_cast<int32_t>(std::clamp(g.tokens, 0.0F, 1.0F) * 255));
    ++first[size_t{g.bin} + 1];
  }
  for (size_t i = 1; i < first.size(); ++i) first[i] += first[i - 1];
  sorted_.resize(gains_.size());
  for (const auto& g : gains_) sorted_[first[g.bin]++] = g;
  gains_.swap(sorted_);
}

// How many of `gains_`, which are sorted here, make the best rate. `n_drafting`: sequences that drafts are made for;
// -1: those that have a draft among the ones taken.
size_t draft_policy::best(int64_t n_sequences, int64_t n_other_rows, int64_t n_drafting) {
  sort_gains();
  const auto steps = costs_.curve(n_sequences), drafting = costs_.drafting(n_sequences);
  const auto n = static_cast<double>(n_sequences), rows = n + static_cast<double>(n_other_rows);
  const double others = n_other_rows == 0 ? 0 : steps.at(rows) - steps.at(n); // rows of prompts pay for themselves
  auto n_drafted = static_cast<double>(std::max<int64_t>(n_drafting, 0));
  double making = n_drafted == 0 ? 0 : drafting.at(n_drafted);
  double tokens = n, best_rate = n / (steps.at(n) + making);
  if (n_drafting < 0) best_rate *= least_gain;
  size_t n_best = 0, step_at = 1, making_at = 1; // both only rise
  for (size_t m = 0; m < gains_.size(); ++m) {
    tokens += static_cast<double>(gains_[m].tokens);
    if (n_drafting < 0 && gains_[m].is_first) making = drafting.at(++n_drafted, making_at);
    const double cost = steps.at(rows + static_cast<double>(m + 1), step_at) - others + making;
    if (tokens <= best_rate * cost) continue; // cost > 0: curves do not fall
    best_rate = tokens / cost;
    n_best = m + 1;
  }
  return n_best;
}

void draft_policy::ask(std::span<request> requests, int64_t n_sequences) {
  n_tried_ = n_new_tried_ = 0;
  for (auto& r : requests) r.is_wanted = false;
  if (max_drafts() == 0 || requests.empty()) return;
  if (n_plain_left_ > 0) return; // what is left of the last block serves afterwards
  if (!limits_.is_adaptive || n_first_[size_of(n_sequences)] < first_rounds || !costs_.curve(n_sequences).is_known()) {
    for (auto& r : requests) r.is_wanted = true;
    return;
  }
  ask_for_paying(requests, n_sequences);
  try_again(requests);
}

void draft_policy::ask_for_paying(std::span<request> requests, int64_t n_sequences) {
  const int32_t most = max_drafts();
  gains_.clear();
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto& d = *requests[i].drafts;
    const double weight = d.is_on || d.typical.empty() ? 1 : off_weight;
    double right = weight;
    const float trust = d.trust();
    for (int32_t j = 0; j < most; ++j) {
      right *= belief_.expected(d, static_cast<size_t>(j), trust);
      gains_.push_back({static_cast<float>(right), static_cast<int32_t>(i), j == 0});
    }
  }
  for (auto& r : requests) r.drafts->is_on = false;
  const size_t n_best = best(n_sequences, 0, -1);
  for (size_t m = 0; m < n_best; ++m) {
    auto& r = requests[static_cast<size_t>(gains_[m].of)];
    r.drafts->is_on = r.is_wanted = true;
  }
}

// All that are off at once: much of what drafting costs does not depend on how many get it.
void draft_policy::try_again(std::span<request> requests) {
  const bool may_again = again_.is_paid(), may_new = may_again || new_.is_paid();
  for (auto& r : requests) {
    const auto& d = *r.drafts;
    const bool is_new = d.typical.empty();
    if (goes_on_ && !d.is_on && !is_new) {
      r.is_wanted = true;
      ++n_tried_;
      continue;
    }
    if (d.is_on || !d.ids.empty() || !(is_new ? may_new : may_again)) continue;
    if (!is_new && d.n_unjudged < tokens_of_trial) continue;
    r.is_wanted = true;
    ++n_tried_;
    n_new_tried_ += is_new;
  }
}

// Of each sequence that is tried in this step, beside those that drafts are made for anyway.
double draft_policy::cost_of_trial(const measured& m) const {
  const int64_t n_others = std::max<int64_t>(m.n_drafted - n_tried_, 0);
  const double all = costs_.drafting(m.n_sequences, step_costs::making::again).at(static_cast<double>(m.n_drafted)),
               others = n_others == 0 ? 0 : costs_.drafting(m.n_sequences).at(static_cast<double>(n_others));
  return std::max(all - others, 0.0) / static_cast<double>(n_tried_);
}

void draft_policy::observe_step(const measured& m) {
  const int64_t draft_us = m.n_drafted > 0 ? m.draft_us : 0, rows_us = std::max<int64_t>(m.step_us - draft_us, 1);
  double steps = 0;
  const auto how = n_tried_ > 0 && !goes_on_ ? step_costs::making::again : step_costs::making::each_round;
  if (!m.has_prompts && m.n_sequences > 0)
    steps = costs_.observe(m.n_sequences, m.n_rows, rows_us, m.n_drafted, draft_us, how);
  const double each = n_tried_ > 0 && m.n_drafted > 0 ? cost_of_trial(m) : 0;
  const auto n_new = static_cast<double>(n_new_tried_);
  const bool is_deep = limits_.is_adaptive && round_ == round::deep && steps > 0;
  const double won = is_deep ? static_cast<double>(m.n_gained) / static_cast<double>(m.n_sequences) - steps : 0;
  const bool is_paid = goes_on_; // by what the round before won
  goes_on_ =
      is_deep && n_run_ < longest_run && won > costs_.drafting(m.n_sequences).at(static_cast<double>(m.n_sequences));
  n_run_ = goes_on_ ? n_run_ + 1 : 0;
  again_.pass(trial_share, is_paid ? 0 : each * (static_cast<double>(n_tried_) - n_new));
  new_.pass(trial_share, each * n_new);
  deep_.pass(deep_share, std::max(-won, 0.0));
}

} // namespace troupe
