// Tallies of right guesses against promised ones, for all sequences by place and confidence, and for each by itself.
#include "actors/draft_belief.h"

#include <algorithm>
#include <cmath>

namespace troupe {

namespace {

constexpr float own_prior = 6, own_keep = 0.98F; // a sequence's last 50 guesses count
constexpr float all_prior = 8, all_keep = 0.98F; // the last 50 of a place and bin
constexpr float age_keep = 0.985F;               // of old guesses, for each token since: texts change
constexpr float typical_weight = 0.25F;          // of the newest block
constexpr double surest = 0.999;
constexpr int32_t watched = 1000; // guesses by which a drafter is judged as a whole
constexpr double weak_part = 0.5; // of what it promised

float age_of(const sequence_drafts& d) {
  return d.n_unjudged == 0 ? 1 : std::pow(age_keep, static_cast<float>(d.n_unjudged));
}

} // namespace

float sequence_drafts::trust() const { return (right + own_prior) / (promised + own_prior); }

size_t draft_belief::bin(float confidence) {
  return confidence < 0.5F ? 0 : confidence < 0.8F ? 1 : confidence < 0.95F ? 2 : 3;
}

double draft_belief::corrected(float confidence, size_t place, float trust) const {
  const auto& t = of_place_[std::min(place, of_place_.size() - 1)][bin(confidence)];
  return std::clamp(static_cast<double>(confidence) * t.correction * static_cast<double>(trust), 0.0, surest);
}

double draft_belief::probability(const sequence_drafts& d, size_t j, float trust) const {
  return corrected(d.confidence[j], static_cast<size_t>(d.n_used) + j, trust);
}

double draft_belief::expected(const sequence_drafts& d, size_t j, float trust) const {
  const auto& from = d.typical.empty() ? typical_ : d.typical;
  return j < from.size() ? corrected(from[j], j, trust) : 0;
}

void draft_belief::take(sequence_drafts& d, std::vector<int32_t> ids, std::vector<float> confidence) {
  d.ids = std::move(ids);
  d.confidence = std::move(confidence);
  d.n_used = 0;
  if (d.ids.size() != d.confidence.size() || d.ids.size() > typical_.size()) {
    d.ids.clear();
    d.confidence.clear();
    return;
  }
  for (auto& c : d.confidence) c = std::isfinite(c) ? std::clamp(c, 0.0F, 1.0F) : 0.0F;
  const float age = age_of(d);
  const float weight = d.typical.empty() ? 1 : 1 - (1 - typical_weight) * age;
  d.typical.resize(typical_.size());
  for (size_t j = 0; j < d.ids.size(); ++j) {
    d.typical[j] += weight * (d.confidence[j] - d.typical[j]);
    typical_[j] += typical_weight / 4 * (d.confidence[j] - typical_[j]);
  }
}

void draft_belief::watch(float said, bool is_right) {
  watched_right_ += is_right ? 1 : 0;
  watched_promised_ += said;
  if (++n_watched_ < watched) return;
  is_weak_ = watched_right_ < weak_part * watched_promised_;
  watched_right_ = watched_promised_ = n_watched_ = 0;
}

void draft_belief::judge(sequence_drafts& d, std::span<const int32_t> tokens) {
  size_t n = 0;
  bool is_right = true;
  for (const auto token : tokens) {
    if (n >= d.ids.size() || !is_right) break;
    is_right = d.ids[n] == token;
    const float said = d.confidence[n], age = age_of(d);
    const auto place = static_cast<size_t>(d.n_used) + n;
    if (place == 0) watch(said, is_right);
    d.n_unjudged = 0;
    d.promised = age * own_keep * d.promised + static_cast<float>(corrected(said, place, 1));
    d.right = age * own_keep * d.right + (is_right ? 1.0F : 0.0F);
    auto& all = of_place_[std::min(place, of_place_.size() - 1)][bin(said)];
    all.promised = all_keep * all.promised + said;
    all.right = all_keep * all.right + (is_right ? 1.0F : 0.0F);
    all.correction = (all.right + all_prior) / (all.promised + all_prior);
    ++n;
  }
  if (!is_right) n = d.ids.size(); // what was guessed behind a wrong one tells nothing
  d.ids.erase(d.ids.begin(), d.ids.begin() + static_cast<std::ptrdiff_t>(n));
  d.confidence.erase(d.confidence.begin(), d.confidence.begin() + static_cast<std::ptrdiff_t>(n));
  d.n_used += static_cast<int32_t>(n);
  d.n_unjudged += static_cast<int64_t>(tokens.size()) - static_cast<int64_t>(std::min(n, tokens.size()));
}

} // namespace troupe
