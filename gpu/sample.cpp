// The sampling chain of api.md 2.1 on host memory: masks and edits, temperature, min_p, top_k, top_p, draw.
#include "gpu/sample.h"

#include "gpu/philox.h"
#include "storage/check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

namespace troupe {
namespace {

constexpr float banned = -std::numeric_limits<float>::infinity();
constexpr float most = std::numeric_limits<float>::max();

struct candidate {
  float logit;
  int32_t id;
};

// The one order of everything here: larger logits first, equal ones by id.
bool before(const candidate& a, const candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }

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

// No NaN and no +infinity; -infinity is a legal "never".
bool is_sound(std::span<const float> logits) {
  constexpr size_t n_lanes = 16;
  int unsound[n_lanes] = {};
  size_t i = 0;
  for (; i + n_lanes <= logits.size(); i += n_lanes)
    for (size_t k = 0; k < n_lanes; ++k) unsound[k] |= !(logits[i + k] <= most); // true for NaN too
  for (; i < logits.size(); ++i) unsound[0] |= !(logits[i] <= most);
  return std::none_of(unsound, unsound + n_lanes, [](int u) { return u != 0; });
}

// log(sum(exp(logits))) in f64.
double log_sum(std::span<const float> logits, float largest) {
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - largest);
  return largest + std::log(sum);
}

// The n best of the raw logits; what is behind the vocabulary's end stays as it was.
void write_best(const sample_args& a, int64_t row, std::span<const float> logits, double log_total) {
  const int64_t n = a.best_ids.shape[1];
  std::vector<candidate> all(logits.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = {logits[i], static_cast<int32_t>(i)};
  const auto end = all.begin() + std::min<std::ptrdiff_t>(n, static_cast<std::ptrdiff_t>(all.size()));
  std::partial_sort(all.begin(), end, all.end(), before);
  for (std::ptrdiff_t i = 0; i < end - all.begin(); ++i) {
    a.best_ids.i32()[row * n + i] = all[static_cast<size_t>(i)].id;
    a.best_logprobs.f32()[row * n + i] = static_cast<float>(all[static_cast<size_t>(i)].logit - log_total);
  }
}

// Keeps a finite logit finite, so that no penalty bans a token by overflow.
float bounded(float logit, float value) { return std::isfinite(logit) ? std::clamp(value, -most, most) : logit; }

float edited(const logit_edit& e, const sample_row& rules, bool is_allowed) {
  if ((e.what & logit_edit::ban) != 0) return banned;
  float logit = is_allowed || (e.what & logit_edit::lift) != 0 ? e.raw : banned;
  logit += e.bias;
  if ((e.what & logit_edit::repeated) != 0 && rules.repetition_penalty != 1)
    logit = bounded(logit, logit > 0 ? logit / rules.repetition_penalty : logit * rules.repetition_penalty);
  if ((e.what & logit_edit::generated) != 0)
    logit = bounded(logit, logit - rules.frequency_penalty * static_cast<float>(e.count) - rules.presence_penalty);
  return logit;
}

// Masks and edits, in place.
void change(const sample_args& a, const sample_row& rules, std::span<float> logits) {
  const auto n_words = static_cast<int64_t>((logits.size() + 31) / 32);
  const uint32_t* mask = rules.mask >= 0 ? a.masks + rules.mask * n_words : nullptr;
  const std::span edits(a.edits + rules.first_edit, static_cast<size_t>(rules.n_edits));
  const auto is_in = [&](int32_t id) { return id >= 0 && static_cast<size_t>(id) < logits.size(); };
  for (logit_edit& e : edits) {
    if (!is_in(e.id)) continue;
    e.raw = logits[static_cast<size_t>(e.id)];
    e.value = edited(e, rules, mask == nullptr || (mask[e.id / 32] >> (e.id % 32) & 1U) != 0);
  }
  for (int64_t w = 0; mask != nullptr && w < n_words; ++w) {
    if (mask[w] == ~0U) continue;
    for (int64_t id = w * 32; id < std::min((w + 1) * 32, static_cast<int64_t>(logits.size())); ++id)
      if ((mask[w] >> (id % 32) & 1U) == 0) logits[static_cast<size_t>(id)] = banned;
  }
  for (const logit_edit& e : edits)
    if (is_in(e.id)) logits[static_cast<size_t>(e.id)] = e.value;
}

// The candidates that pass min_p and top_k, in no order. Both keep a prefix of the one order, so their turn is free.
std::vector<candidate> filter(std::span<const float> logits, candidate best, const sample_row& rules) {
  const int32_t top_k = rules.top_k;
  std::vector<candidate> kept;
  for (size_t i = 0; i < logits.size(); ++i)
    if ((static_cast<double>(logits[i]) - best.logit) / rules.temperature >= rules.least_log_weight)
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

int32_t draw_row(const sample_args& a, const sample_row& rules, std::span<float> logits) {
  change(a, rules, logits);
  const candidate best = best_of(logits);
  if (best.id < 0) return sample_all_masked;
  if (rules.temperature == 0) return best.id;
  return draw(filter(logits, best, rules), best, rules.temperature, rules.top_p,
              random_unit(rules.seed, rules.choice, rules.position));
}

} // namespace

void sample_rows_host(const sample_args& a) {
  const int64_t n_rows = a.ids.n_elements(), width = n_rows == 0 ? 0 : a.logits.n_elements() / n_rows;
  std::vector<float> raw;
  for (int64_t r = 0; r < n_rows; ++r) {
    const std::span logits(a.logits.f32() + r * width, static_cast<size_t>(width));
    if (!is_sound(logits)) {
      a.ids.i32()[r] = sample_unsound;
      if (a.logprobs) a.logprobs.f32()[r] = std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    double log_total = 0;
    if (a.logprobs || a.best_ids) {
      raw.assign(logits.begin(), logits.end());
      log_total = log_sum(raw, best_of(raw).logit);
      if (a.best_ids) write_best(a, r, raw, log_total);
    }
    const int32_t id = a.ids.i32()[r] = draw_row(a, a.rows[r], logits);
    if (a.logprobs)
      a.logprobs.f32()[r] = id < 0 ? std::numeric_limits<float>::quiet_NaN()
                                   : static_cast<float>(raw[static_cast<size_t>(id)] - log_total);
  }
}

void sample_in_memory(std::span<float> logits, const sample_batch& batch, sampled_rows& out) {
  const size_t n = batch.rows.size(), n_best = batch.wants_logprobs ? static_cast<size_t>(batch.n_best) : 0;
  TROUPE_CHECK(logits.size() == n * static_cast<size_t>(batch.vocabulary), "every row of rules has a row of logits");
  out.n_best = static_cast<int32_t>(n_best);
  out.ids.resize(n);
  out.logprobs.assign(batch.wants_logprobs ? n : 0, 0);
  out.best_ids.assign(n * n_best, -1);
  out.best_logprobs.assign(n * n_best, 0);
  std::vector<logit_edit> edits = batch.edits; // the kernels write into theirs
  const auto rows = static_cast<int64_t>(n), best = static_cast<int64_t>(n_best);
  sample_args a;
  a.ids = tensor(out.ids.data(), dtype::i32, {rows});
  if (batch.wants_logprobs) a.logprobs = tensor(out.logprobs.data(), dtype::f32, {rows});
  if (best > 0) {
    a.best_ids = tensor(out.best_ids.data(), dtype::i32, {rows, best});
    a.best_logprobs = tensor(out.best_logprobs.data(), dtype::f32, {rows, best});
  }
  a.logits = tensor(logits.data(), dtype::f32, {rows, batch.vocabulary});
  a.rows = batch.rows.data();
  a.edits = edits.data();
  a.masks = batch.masks.data();
  sample_rows_host(a);
}

} // namespace troupe
