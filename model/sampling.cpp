// The sampling chain of api.md 2.1: masks and biases, penalties, temperature, min_p, top_k, top_p, draw. An id outside
// the vocabulary cannot be sampled, so a rule that names one (the text side's padding ids, an image's placeholder in
// the prompt) has no effect.
#include "model/sampling.h"

#include "model/philox.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

namespace troupe {
namespace {

constexpr float banned = -std::numeric_limits<float>::infinity();
constexpr float most = std::numeric_limits<float>::max();
constexpr float least_temperature = 1e-2f; // api.md 2.1
constexpr float most_bias = 100;
// Weights e^-50 below the best one are dropped: all of a vocabulary of millions together stay under 2^-53 of the mass,
// the step of the random number.
constexpr double least_log_weight = -50;

struct candidate {
  float logit;
  int32_t id;
};

// The one order of everything here: larger logits first, equal ones by id.
bool before(const candidate& a, const candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }

bool is_in(std::span<const float> logits, int32_t id) { return id >= 0 && static_cast<size_t>(id) < logits.size(); }

// The lowest id of the largest logit; id -1 when all are -infinity. Precondition: no NaN.
candidate best_of(std::span<const float> logits) {
  // Lanes instead of one running maximum, so that the compiler makes vector code of it: this pass runs at every step.
  constexpr size_t n_lanes = 16;
  float lane[n_lanes];
  std::fill_n(lane, n_lanes, banned);
  size_t i = 0;
  for (; i + n_lanes <= logits.size(); i += n_lanes)
    for (size_t k = 0; k < n_lanes; ++k) lane[k] = logits[i + k] > lane[k] ? logits[i + k] : lane[k];
  for (; i < logits.size(); ++i) lane[0] = std::max(lane[0], logits[i]);
  const float largest = *std::max_element(lane, lane + n_lanes);
  if (largest == banned) return {banned, -1};
  const auto at = std::find(logits.begin(), logits.end(), largest);
  return {largest, static_cast<int32_t>(at - logits.begin())};
}

// Throws on NaN and +infinity; -infinity is a legal "never".
void check_sound(std::span<const float> logits, int64_t position) {
  constexpr size_t n_lanes = 16;
  int unsound[n_lanes] = {};
  size_t i = 0;
  for (; i + n_lanes <= logits.size(); i += n_lanes)
    for (size_t k = 0; k < n_lanes; ++k) unsound[k] |= !(logits[i + k] <= most); // true for NaN too
  for (; i < logits.size(); ++i) unsound[0] |= !(logits[i] <= most);
  if (std::none_of(unsound, unsound + n_lanes, [](int u) { return u != 0; })) return;
  const auto at = std::find_if(logits.begin(), logits.end(), [](float x) { return !(x <= most); });
  throw std::runtime_error(fmt::format("the forward pass is broken: the logit of token {} for position {} is {}",
                                       at - logits.begin(), position, *at));
}

// log(sum(exp(logits))) in f64.
double log_sum(std::span<const float> logits, float largest) {
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - largest);
  return largest + std::log(sum);
}

std::vector<token_logprob> best_logprobs(std::span<const float> logits, double log_total, int32_t n) {
  if (n <= 0) return {};
  std::vector<candidate> all(logits.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = {logits[i], static_cast<int32_t>(i)};
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(static_cast<size_t>(n), all.size()));
  std::partial_sort(all.begin(), end, all.end(), before);
  std::vector<token_logprob> best;
  for (auto c = all.begin(); c != end; ++c)
    best.push_back({.id = c->id, .logprob = static_cast<float>(c->logit - log_total)});
  return best;
}

void keep_only(std::span<float> logits, std::span<const int32_t> allowed) {
  std::vector<candidate> kept;
  for (const int32_t id : allowed)
    if (is_in(logits, id)) kept.push_back({logits[static_cast<size_t>(id)], id});
  std::fill(logits.begin(), logits.end(), banned);
  for (const candidate& c : kept) logits[static_cast<size_t>(c.id)] = c.logit;
}

void ban(std::span<float> logits, int32_t id) {
  if (is_in(logits, id)) logits[static_cast<size_t>(id)] = banned;
}

// Suppression (chat.md 5.7), allowed ids and biases. An allowed list or a positive bias lifts the suppression of an id.
void apply_bias(std::span<float> logits, const sampling_params& p, std::span<const int32_t> suppressed) {
  std::vector<float> raw;
  for (const auto& [id, bias] : p.logit_bias) raw.push_back(is_in(logits, id) ? logits[static_cast<size_t>(id)] : 0);
  if (!p.allowed_ids.empty())
    keep_only(logits, p.allowed_ids);
  else if (p.suppress_reserved)
    for (const int32_t id : suppressed) ban(logits, id);
  for (size_t i = 0; i < raw.size(); ++i) {
    const auto& [id, wanted] = p.logit_bias[i];
    if (!is_in(logits, id)) continue;
    float& logit = logits[static_cast<size_t>(id)];
    const float bias = std::clamp(wanted, -most_bias, most_bias);
    if (bias <= -most_bias)
      logit = banned;
    else if (bias > 0 && p.allowed_ids.empty())
      logit = raw[i] + bias;
    else
      logit += bias;
  }
}

// Keeps a finite logit finite, so that no penalty bans a token by overflow.
void set_logit(float& logit, float value) { logit = std::isfinite(logit) ? std::clamp(value, -most, most) : logit; }

void repeat_penalty(float& logit, float penalty) { set_logit(logit, logit > 0 ? logit / penalty : logit * penalty); }

// The candidates that pass min_p and top_k, in no order. Both keep a prefix of the one order, so their turn is free.
std::vector<candidate> filter(std::span<const float> logits, candidate best, double temperature, float min_p,
                              int32_t top_k) {
  const double least = min_p > 0 ? std::max(least_log_weight, std::log(static_cast<double>(min_p))) : least_log_weight;
  std::vector<candidate> kept;
  for (size_t i = 0; i < logits.size(); ++i)
    if ((static_cast<double>(logits[i]) - best.logit) / temperature >= least)
      kept.push_back({logits[i], static_cast<int32_t>(i)});
  if (top_k > 0 && static_cast<size_t>(top_k) < kept.size()) {
    std::nth_element(kept.begin(), kept.begin() + top_k, kept.end(), before);
    kept.resize(static_cast<size_t>(top_k));
  }
  return kept;
}

// Draws from the shortest prefix of the one order that holds `top_p` of the mass, by inverting its cumulative sum at
// `unit`. Sorts only as far as it must.
int32_t draw(std::vector<candidate> kept, candidate best, double temperature, double top_p, double unit) {
  const auto weight = [&](const candidate& c) {
    return std::exp((static_cast<double>(c.logit) - best.logit) / temperature);
  };
  double total = 0;
  for (const candidate& c : kept) total += weight(c);

  // Invariant: kept[0, n_sorted) are the first ones in order; cumulative[i] is the mass of kept[0, i].
  size_t n_sorted = 0;
  std::vector<double> cumulative;
  const auto extend = [&] {
    const size_t n = std::min(kept.size(), std::max<size_t>(64, n_sorted * 4));
    const auto from = kept.begin() + static_cast<std::ptrdiff_t>(n_sorted);
    const auto to = kept.begin() + static_cast<std::ptrdiff_t>(n);
    if (to != kept.end()) std::nth_element(from, to, kept.end(), before);
    std::sort(from, to, before);
    for (size_t i = n_sorted; i < n; ++i) cumulative.push_back((i > 0 ? cumulative[i - 1] : 0) + weight(kept[i]));
    n_sorted = n;
  };
  // The first one whose cumulative mass satisfies `enough`, else the last of all (sums round).
  const auto find = [&](auto enough) {
    for (size_t i = 0;; ++i) {
      if (i == n_sorted) extend();
      if (enough(cumulative[i]) || i + 1 == kept.size()) return i;
    }
  };
  if (top_p < 1) total = cumulative[find([&](double mass) { return mass >= top_p * total; })];
  return kept[find([&](double mass) { return mass > unit * total; })].id;
}

} // namespace

sampler_state::sampler_state(sampling_params params) : params_(std::move(params)) {}

void sampler_state::see_prompt(std::span<const int32_t> ids) {
  if (params_.repetition_penalty == 1) return;
  prompt_ids_.insert(prompt_ids_.end(), ids.begin(), ids.end());
  std::sort(prompt_ids_.begin(), prompt_ids_.end());
  prompt_ids_.erase(std::unique(prompt_ids_.begin(), prompt_ids_.end()), prompt_ids_.end());
}

void sampler_state::see_generated(int32_t id) {
  ++n_generated_;
  if (params_.repetition_penalty != 1 || params_.frequency_penalty != 0 || params_.presence_penalty != 0) {
    const auto at = std::lower_bound(generated_.begin(), generated_.end(), std::pair{id, 0});
    if (at != generated_.end() && at->first == id)
      ++at->second;
    else
      generated_.insert(at, {id, 1});
  }
  size_t longest = 0;
  for (const auto& word : params_.bad_words) longest = std::max(longest, word.size());
  if (longest < 2) return;
  tail_.push_back(id);
  if (tail_.size() >= longest) tail_.erase(tail_.begin());
}

void sampler_state::mask(std::span<float> logits, const vocabulary_rules& rules) const {
  apply_bias(logits, params_, rules.suppressed);
  for (const auto& word : params_.bad_words) {
    if (word.empty() || word.size() - 1 > tail_.size()) continue;
    if (std::equal(word.begin(), word.end() - 1, tail_.end() - static_cast<std::ptrdiff_t>(word.size() - 1)))
      ban(logits, word.back());
  }
  if (n_generated_ >= params_.min_tokens) return;
  ban(logits, rules.eos);
  for (const int32_t id : params_.stop_ids) ban(logits, id);
}

void sampler_state::penalise(std::span<float> logits) const {
  const sampling_params& p = params_;
  if (p.repetition_penalty != 1)
    for (const int32_t id : prompt_ids_)
      if (is_in(logits, id)) repeat_penalty(logits[static_cast<size_t>(id)], p.repetition_penalty);
  for (const auto& [id, count] : generated_) {
    if (!is_in(logits, id)) continue;
    float& logit = logits[static_cast<size_t>(id)];
    if (p.repetition_penalty != 1 && !std::binary_search(prompt_ids_.begin(), prompt_ids_.end(), id))
      repeat_penalty(logit, p.repetition_penalty);
    set_logit(logit, logit - p.frequency_penalty * static_cast<float>(count) - p.presence_penalty);
  }
}

sampled_token sampler_state::sample(std::span<float> logits, int64_t position, const vocabulary_rules& rules) {
  check_sound(logits, position);
  const bool wants_logprobs = params_.n_logprobs >= 0;
  std::vector<float> raw;
  double log_total = 0;
  sampled_token out;
  if (wants_logprobs) {
    raw.assign(logits.begin(), logits.end());
    log_total = log_sum(raw, best_of(raw).logit);
    out.best = best_logprobs(raw, log_total, params_.n_logprobs);
  }
  mask(logits, rules);
  penalise(logits);
  const candidate best = best_of(logits);
  if (best.id < 0)
    throw std::runtime_error(
        fmt::format("no token can be sampled for position {}: every one of {} is masked", position, logits.size()));
  if (params_.temperature == 0)
    out.id = best.id;
  else {
    const double temperature = std::max(params_.temperature, least_temperature);
    out.id = draw(filter(logits, best, temperature, params_.min_p, params_.top_k), best, temperature, params_.top_p,
                  random_unit(params_.seed, params_.choice, position));
  }
  if (wants_logprobs) out.logprob = static_cast<float>(raw[static_cast<size_t>(out.id)] - log_total);
  return out;
}

bool sampler_state::ends_with(int32_t id, int32_t eos) const {
  if (id == eos && !params_.ignore_eos) return true;
  return std::find(params_.stop_ids.begin(), params_.stop_ids.end(), id) != params_.stop_ids.end();
}

int32_t accept_drafts(sampler_state& sampler, std::span<const float> logits, std::span<const int32_t> drafts,
                      int64_t position, const sampler_state::vocabulary_rules& rules, std::vector<float>& scratch,
                      std::vector<sampled_token>& out) {
  const size_t vocabulary = logits.size() / (drafts.size() + 1);
  for (size_t j = 0;; ++j) {
    const auto row = logits.subspan(j * vocabulary, vocabulary);
    scratch.assign(row.begin(), row.end());
    out.push_back(sampler.sample(scratch, position + static_cast<int64_t>(j), rules));
    const int32_t id = out.back().id;
    sampler.see_generated(id);
    if (j == drafts.size() || id != drafts[j]) return static_cast<int32_t>(j);
    if (sampler.ends_with(id, rules.eos)) return static_cast<int32_t>(j + 1);
  }
}

} // namespace troupe
