// Trial rounds fill the cost table; all others take what pays.
#include "actors/draft_policy.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace troupe {

namespace {

constexpr int64_t trials_of_a_depth = 3;   // at the start: the medians of the table stand on three
constexpr int64_t rounds_of_a_trial = 128; // later every so many rounds try a depth in turn: costs and texts change
constexpr float fading = 0.99F;            // of trust: the last 100 guesses count most
constexpr double typical_weight = 0.2;     // of the newest round in the typical acceptance, once it is a mean of five
constexpr double least_gain = 1.02;        // drafting must be this much faster: the table's noise is about 1 %

double probability(const sequence_drafts& d, size_t j) {
  return std::clamp(static_cast<double>(d.confidence[j] * d.trust()), 0.0, 1.0);
}

} // namespace

int32_t draft_policy::max_drafts() const { return std::clamp(limits_.max_drafts, 0, limits_.block); }

size_t draft_policy::size_of(int64_t n_sequences) const {
  return std::min<size_t>(std::bit_width(static_cast<uint64_t>(n_sequences)), n_rounds_.size() - 1);
}

// Of the next round with this many sequences.
bool draft_policy::is_trial(int64_t n_sequences) const {
  return n_rounds_[size_of(n_sequences)] < trials_of_a_depth * (max_drafts() + 1) || round_ % rounds_of_a_trial == 0;
}

void draft_policy::choose(std::span<offer> offers, int64_t n_other_rows) {
  if (offers.empty()) return;
  int32_t most = max_drafts();
  const bool is_free = limits_.is_adaptive && !is_trial(static_cast<int64_t>(offers.size()));
  int64_t& of_size = n_rounds_[size_of(static_cast<int64_t>(offers.size()))];
  if (limits_.is_adaptive && !is_free) {
    const bool is_start = of_size < trials_of_a_depth * (most + 1);
    most = static_cast<int32_t>((is_start ? of_size : round_ / rounds_of_a_trial) % (most + 1));
  }
  ++round_;
  ++of_size;
  for (auto& o : offers)
    o.n_chosen = std::max(0, std::min({most, o.n_useful, static_cast<int32_t>(o.drafts->ids.size())}));
  if (!limits_.is_adaptive) return;
  typical_.resize(static_cast<size_t>(limits_.block), 0.5);
  const bool has_drafts =
      std::any_of(offers.begin(), offers.end(), [](const offer& o) { return !o.drafts->ids.empty(); });
  if (has_drafts) ++n_typical_;
  const double weight = std::max(typical_weight, 1 / static_cast<double>(std::max<int64_t>(n_typical_, 1)));
  for (size_t j = 0; j < typical_.size(); ++j) {
    double sum = 0;
    int64_t n = 0;
    for (const auto& o : offers) {
      if (j >= o.drafts->ids.size()) continue;
      sum += probability(*o.drafts, j);
      ++n;
    }
    if (n > 0) typical_[j] += weight * (sum / static_cast<double>(n) - typical_[j]);
  }
  if (is_free) choose_best(offers, n_other_rows);
}

// Precondition: n_chosen of each offer is the most it may be.
void draft_policy::choose_best(std::span<offer> offers, int64_t n_other_rows) {
  const auto costs = costs_.curve(static_cast<int64_t>(offers.size()));
  if (!costs.is_known()) return;
  gains_.clear();
  for (size_t i = 0; i < offers.size(); ++i) {
    double right = 1;
    for (int32_t j = 0; j < offers[i].n_chosen; ++j) {
      right *= probability(*offers[i].drafts, static_cast<size_t>(j));
      gains_.emplace_back(right, i);
    }
    offers[i].n_chosen = 0;
  }
  const auto n = static_cast<double>(offers.size());
  const double drafting = draft_costs_.curve(1).at(n);
  const auto rows = n + static_cast<double>(n_other_rows);
  // A draft's gain never exceeds that of the one before it, so a stable order keeps each sequence's drafts in order.
  std::stable_sort(gains_.begin(), gains_.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  double tokens = n, best = n / (costs.at(rows) + drafting);
  size_t n_best = 0;
  for (size_t m = 0; m < gains_.size(); ++m) {
    tokens += gains_[m].first;
    const double rate = tokens / (costs.at(rows + static_cast<double>(m + 1)) + drafting);
    if (rate <= best) continue;
    best = rate;
    n_best = m + 1;
  }
  for (size_t m = 0; m < n_best; ++m) ++offers[gains_[m].second].n_chosen;
}

bool draft_policy::wants_drafts(int64_t n_sequences) const {
  const int32_t most = max_drafts();
  if (most == 0 || n_sequences == 0) return false;
  if (!limits_.is_adaptive || is_trial(n_sequences) || typical_.empty()) return true;
  const auto n = static_cast<double>(n_sequences);
  const auto costs = costs_.curve(n_sequences);
  if (!costs.is_known()) return true;
  const double drafting = draft_costs_.curve(1).at(n), without = 1 / costs.at(n);
  double tokens = 1, right = 1;
  for (int32_t k = 0; k < most; ++k) {
    right *= typical_[static_cast<size_t>(k)];
    tokens += right;
    if (tokens / (costs.at(n * (k + 2)) + drafting) > least_gain * without) return true;
  }
  return false;
}

void draft_policy::observe_cost(int64_t n_sequences, int64_t n_rows, int64_t cost_us, int64_t n_drafted,
                                int64_t draft_us) {
  if (n_rows > 0) costs_.observe(n_sequences, n_rows, std::max<int64_t>(cost_us - draft_us, 1));
  if (n_drafted > 0) draft_costs_.observe(1, n_drafted, std::max<int64_t>(draft_us, 1));
}

void draft_policy::observe_run(sequence_drafts& d, int32_t n_drafts, int32_t n_accepted) {
  const auto n = std::min({n_drafts, n_accepted + 1, static_cast<int32_t>(d.confidence.size())});
  for (int32_t j = 0; j < n; ++j) { // the one behind the first wrong guess tells nothing
    d.promised = fading * d.promised + d.confidence[static_cast<size_t>(j)];
    d.right = fading * d.right + (j < n_accepted ? 1.0F : 0.0F);
  }
}

} // namespace troupe
