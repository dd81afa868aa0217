// Rules of the next token from what a sequence asked for and has seen; gpu/sample draws by them. An id outside the
// vocabulary cannot be sampled, so a rule that names one (the text side's padding ids, an image's placeholder in the
// prompt) has no effect.
#include "model/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace troupe {
namespace {

constexpr float least_temperature = 1e-2f; // api.md 2.1
constexpr float most_bias = 100;

bool by_id(const logit_edit& a, const logit_edit& b) { return a.id < b.id; }

// Biases, one an id: of several the order of the request counts. One of -100 bans; a positive one lifts the suppression
// of its id.
std::vector<logit_edit> biases_of(const sampling_params& p) {
  auto wanted = p.logit_bias;
  std::stable_sort(wanted.begin(), wanted.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<logit_edit> edits;
  for (const auto& [id, unbounded] : wanted) {
    if (edits.empty() || edits.back().id != id) edits.push_back({.id = id});
    logit_edit& e = edits.back();
    const float bias = std::clamp(unbounded, -most_bias, most_bias);
    if (bias <= -most_bias) {
      e.what = logit_edit::ban;
    } else if (bias > 0 && p.allowed_ids.empty()) {
      e.what = logit_edit::lift;
      e.bias = bias;
    } else {
      e.bias += bias;
    }
  }
  return edits;
}

// Two lists in order of ids -> one, with one edit an id, behind what `out` holds.
void merge(const std::vector<logit_edit>& a, const std::vector<logit_edit>& b, std::vector<logit_edit>& out) {
  const auto first = static_cast<std::ptrdiff_t>(out.size());
  std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out), by_id);
  auto to = out.begin() + first;
  for (auto from = to; from != out.end(); ++from) {
    if (to != out.begin() + first && (to - 1)->id == from->id) {
      logit_edit& e = *(to - 1);
      e.what |= from->what;
      e.bias += from->bias;
      e.count += from->count;
    } else {
      *to++ = *from;
    }
  }
  out.erase(to, out.end());
}

[[noreturn]] void refuse(int32_t code, int64_t position, int64_t vocabulary) {
  if (code == sample_unsound)
    throw std::runtime_error(
        fmt::format("the forward pass is broken: a logit for position {} is NaN or infinite", position));
  throw std::runtime_error(
      fmt::format("no token can be sampled for position {}: every one of {} is masked", position, vocabulary));
}

sampled_token token_of(const sampled_rows& rows, size_t r, const sampling_params& p) {
  sampled_token out;
  out.id = rows.ids[r];
  if (p.n_logprobs < 0) return out;
  out.logprob = rows.logprobs[r];
  const auto n = static_cast<size_t>(rows.n_best);
  for (size_t i = 0; i < std::min(n, static_cast<size_t>(p.n_logprobs)) && rows.best_ids[r * n + i] >= 0; ++i)
    out.best.push_back({rows.best_ids[r * n + i], rows.best_logprobs[r * n + i]});
  return out;
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

int32_t sampler_state::mask_of(sample_batch& batch, const vocabulary_rules& rules) const {
  if (!params_.allowed_ids.empty()) {
    const int32_t mask = batch.add_mask(false);
    for (const int32_t id : params_.allowed_ids) batch.set_allowed(mask, id, true);
    return mask;
  }
  if (!params_.suppress_reserved || rules.suppressed.empty()) return -1;
  if (batch.suppressed_mask < 0) {
    batch.suppressed_mask = batch.add_mask(true);
    for (const int32_t id : rules.suppressed) batch.set_allowed(batch.suppressed_mask, id, false);
  }
  return batch.suppressed_mask;
}

void sampler_state::add_edits(std::vector<logit_edit>& edits, const vocabulary_rules& rules) const {
  const sampling_params& p = params_;
  std::vector<logit_edit> own = biases_of(p), seen, prompt;
  const auto ban = [&](int32_t id) { own.push_back({.id = id, .what = logit_edit::ban}); };
  for (const auto& word : p.bad_words) {
    if (word.empty() || word.size() - 1 > tail_.size()) continue;
    if (std::equal(word.begin(), word.end() - 1, tail_.end() - static_cast<std::ptrdiff_t>(word.size() - 1)))
      ban(word.back());
  }
  if (n_generated_ < p.min_tokens) {
    ban(rules.eos);
    for (const int32_t id : p.stop_ids) ban(id);
  }
  std::stable_sort(own.begin(), own.end(), by_id);
  for (const int32_t id : prompt_ids_) prompt.push_back({.id = id, .what = logit_edit::repeated});
  for (const auto& [id, count] : generated_)
    seen.push_back({.id = id, .what = logit_edit::repeated | logit_edit::generated, .count = count});
  std::vector<logit_edit> both;
  merge(prompt, seen, both);
  merge(own, both, edits);
}

void sampler_state::add_rules(sample_batch& batch, int64_t position, const vocabulary_rules& rules) const {
  const sampling_params& p = params_;
  sample_row r;
  if (p.min_p > 0) r.least_log_weight = std::max(r.least_log_weight, std::log(static_cast<double>(p.min_p)));
  r.seed = p.seed;
  r.position = position;
  r.choice = p.choice;
  r.temperature = p.temperature == 0 ? 0 : std::max(p.temperature, least_temperature);
  r.top_p = p.top_p;
  r.top_k = p.top_k;
  r.frequency_penalty = p.frequency_penalty;
  r.presence_penalty = p.presence_penalty;
  r.repetition_penalty = p.repetition_penalty;
  r.mask = mask_of(batch, rules);
  r.first_edit = static_cast<int32_t>(batch.edits.size());
  add_edits(batch.edits, rules);
  r.n_edits = static_cast<int32_t>(batch.edits.size()) - r.first_edit;
  batch.rows.push_back(r);
  batch.wants_logprobs |= p.n_logprobs >= 0;
  batch.n_best = std::max(batch.n_best, p.n_logprobs);
}

sampled_token sampler_state::sample(std::span<float> logits, int64_t position, const vocabulary_rules& rules) const {
  sample_batch batch(static_cast<int64_t>(logits.size()));
  add_rules(batch, position, rules);
  sampled_rows rows;
  sample_in_memory(logits, batch, rows);
  if (rows.ids[0] == sample_unsound) { // which one: the logits are as they were
    const auto at = std::find_if(logits.begin(), logits.end(), [](float x) { return !std::isfinite(x) && !(x < 0); });
    throw std::runtime_error(fmt::format("the forward pass is broken: the logit of token {} for position {} is {}",
                                         at - logits.begin(), position, *at));
  }
  if (rows.ids[0] < 0) refuse(rows.ids[0], position, batch.vocabulary);
  return token_of(rows, 0, params_);
}

bool sampler_state::ends_with(int32_t id, int32_t eos) const {
  if (id == eos && !params_.ignore_eos) return true;
  return std::find(params_.stop_ids.begin(), params_.stop_ids.end(), id) != params_.stop_ids.end();
}

void add_draft_rules(const sampler_state& sampler, std::span<const int32_t> drafts, int64_t position,
                     const sampler_state::vocabulary_rules& rules, sample_batch& batch) {
  sampler.add_rules(batch, position, rules);
  if (drafts.empty()) return;
  sampler_state ahead = sampler;
  for (const int32_t id : drafts) {
    ahead.see_generated(id);
    ahead.add_rules(batch, ++position, rules);
  }
}

int32_t accept_drafts(sampler_state& sampler, const sampled_rows& rows, size_t first, std::span<const int32_t> drafts,
                      int64_t position, const sampler_state::vocabulary_rules& rules, int64_t vocabulary,
                      std::vector<sampled_token>& out) {
  for (size_t j = 0;; ++j) {
    const int32_t id = rows.ids[first + j];
    if (id < 0) refuse(id, position + static_cast<int64_t>(j), vocabulary);
    out.push_back(token_of(rows, first + j, sampler.params()));
    sampler.see_generated(id);
    if (j == drafts.size() || id != drafts[j]) return static_cast<int32_t>(j);
    if (sampler.ends_with(id, rules.eos)) return static_cast<int32_t>(j + 1);
  }
}

} // namespace troupe
