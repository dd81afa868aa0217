// The sampling chain rule by rule on small logits, and its draws against the exact distribution. Spec: api.md 2.1.
#include "gpu/philox.h"
#include "model/sampling.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>

using namespace troupe;

namespace {

using rules = sampler_state::vocabulary_rules;
constexpr float never = -std::numeric_limits<float>::infinity();
const rules no_rules = {.suppressed = {}, .eos = 1};

sampled_token once(const sampling_params& p, std::vector<float> logits, int64_t position = 0,
                   const rules& r = no_rules) {
  return sampler_state(p).sample(logits, position, r);
}

std::string refusal(const sampling_params& p, std::vector<float> logits, const rules& r = no_rules) {
  try {
    once(p, std::move(logits), 33, r);
  } catch (const std::runtime_error& e) { return e.what(); }
  return "accepted";
}

sampling_params greedy() {
  sampling_params p;
  p.temperature = 0;
  return p;
}

// How often each id comes over n positions.
std::vector<int> counts(const sampling_params& p, const std::vector<float>& logits, int n, const rules& r = no_rules) {
  std::vector<int> seen(logits.size());
  sampler_state state(p);
  for (int i = 0; i < n; ++i) {
    std::vector<float> scratch = logits;
    ++seen[static_cast<size_t>(state.sample(scratch, i, r).id)];
  }
  return seen;
}

std::set<int> support(const sampling_params& p, const std::vector<float>& logits, int n = 2000) {
  std::set<int> ids;
  const std::vector<int> seen = counts(p, logits, n);
  for (size_t i = 0; i < seen.size(); ++i)
    if (seen[i] > 0) ids.insert(static_cast<int>(i));
  return ids;
}

std::vector<float> logs(std::initializer_list<double> probabilities) {
  std::vector<float> out;
  for (const double p : probabilities) out.push_back(static_cast<float>(std::log(p)));
  return out;
}

std::vector<float> noise(size_t n, uint32_t seed, float scale) {
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) { // a sum of uniforms, near enough to a normal
    const auto bits = philox({static_cast<uint32_t>(i), 0, 0, 0}, {seed, 1});
    float sum = 0;
    for (const uint32_t b : bits) sum += static_cast<float>(b) / 4294967296.0f - 0.5f;
    out[i] = scale * sum;
  }
  return out;
}

// The chi-square statistic of the counts, and whether an impossible id came.
double chi_square(const std::vector<int>& seen, const std::vector<double>& expected, int n) {
  double sum = 0;
  for (size_t i = 0; i < seen.size(); ++i) {
    if (expected[i] == 0) {
      CHECK(seen[i] == 0);
      continue;
    }
    const double mean = expected[i] * n;
    sum += (seen[i] - mean) * (seen[i] - mean) / mean;
  }
  return sum;
}

} // namespace

TEST_CASE("sampling: temperature 0 takes the largest, the lowest id on ties") {
  CHECK(once(greedy(), {1, 3, 2}).id == 1);
  CHECK(once(greedy(), {2, 5, 5, 5}).id == 1);
  CHECK(once(greedy(), {never, never, -1e30f}).id == 2);
  CHECK(once(greedy(), {-0.0f, 0.0f}).id == 0);
  CHECK(once(greedy(), {-7}).id == 0);
}

TEST_CASE("sampling: greedy agrees with a tiny temperature, top_k 1, a tiny top_p and min_p 1") {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> logits = noise(300, seed, 8);
    const int32_t id = once(greedy(), logits).id;
    CHECK(id == std::max_element(logits.begin(), logits.end()) - logits.begin());
    sampling_params p;
    p.seed = seed;
    p.top_k = 1;
    CHECK(once(p, logits).id == id);
    p = {};
    p.top_p = 1e-6f;
    CHECK(once(p, logits).id == id);
    p = {};
    p.min_p = 1;
    CHECK(once(p, logits).id == id);
  }
  sampling_params p;
  p.temperature = 1e-9f; // clamped to 0.01: a gap of 1 is then e^-100
  CHECK(support(p, {0, 1, 0.5f}) == std::set<int>{1});
  CHECK(support(p, {0, 0.001f}) == std::set<int>{0, 1}); // a gap of 0.1 after the clamp: both come
}

TEST_CASE("sampling: ties at a cut keep the lower ids") {
  sampling_params p;
  p.top_k = 2;
  CHECK(support(p, {1, 1, 1, 1}) == std::set<int>{0, 1});
  p = {};
  p.top_p = 0.5f;
  CHECK(support(p, {1, 1, 1, 1}) == std::set<int>{0, 1});
  p.top_p = 0.51f;
  CHECK(support(p, {1, 1, 1, 1}) == std::set<int>{0, 1, 2});
}

TEST_CASE("sampling: top_p is the smallest set that holds the mass, after top_k and min_p") {
  const std::vector<float> logits = logs({0.05, 0.5, 0.15, 0.3});
  sampling_params p;
  p.top_p = 0.79f;
  CHECK(support(p, logits) == std::set<int>{1, 3});
  p.top_p = 0.81f;
  CHECK(support(p, logits) == std::set<int>{1, 2, 3});
  p.top_p = 0.7f; // of the two that top_k keeps the first holds 0.625, of all it holds 0.5
  p.top_k = 2;
  CHECK(support(p, logits) == std::set<int>{1, 3});
  p.top_p = 0.6f;
  CHECK(support(p, logits) == std::set<int>{1});
  p = {};
  p.min_p = 0.25f; // 0.125 and above stay: mass 0.95, of which 0.84 is needed
  p.top_p = 0.83f;
  CHECK(support(p, logits) == std::set<int>{1, 3}); // 0.8 of 0.95 is 0.842
}

TEST_CASE("sampling: min_p is relative to the best and sees the temperature") {
  const std::vector<float> logits = logs({0.05, 0.5, 0.15, 0.3});
  sampling_params p;
  p.min_p = 0.2f;
  CHECK(support(p, logits) == std::set<int>{1, 2, 3});
  p.min_p = 0.4f;
  CHECK(support(p, logits) == std::set<int>{1, 3});
  p.temperature = 2; // ratios become their square roots: 0.316, 1, 0.548, 0.775
  CHECK(support(p, logits) == std::set<int>{1, 2, 3});
}

TEST_CASE("sampling: a bias shifts, is clamped to 100, and -100 bans") {
  sampling_params p = greedy();
  p.logit_bias = {{2, 1.5f}};
  CHECK(once(p, {0, 1, 0}).id == 2);
  p.logit_bias = {{2, 1e9f}};
  CHECK(once(p, {0, 101, 0}).id == 1);
  p.logit_bias = {{2, -100.0f}};
  CHECK(once(p, {-500, -600, 0}).id == 0);
  p.logit_bias = {{2, -99.0f}};
  CHECK(once(p, {-500, -600, 0}).id == 2);
  p.logit_bias = {{-1, 50.0f}, {3, 50.0f}}; // no such ids: nothing happens
  CHECK(once(p, {0, 1, 0}).id == 1);
}

TEST_CASE("sampling: allowed ids mask all others, even those with a bias") {
  sampling_params p = greedy();
  p.allowed_ids = {0, 3, 99};
  CHECK(once(p, {1, 9, 9, 2}).id == 3);
  p.logit_bias = {{1, 100.0f}, {0, 5.0f}};
  CHECK(once(p, {1, 9, 9, 2}).id == 0);
  p.allowed_ids = {99};
  CHECK(refusal(p, {1, 2}) == "no token can be sampled for position 33: every one of 2 is masked");
}

TEST_CASE("sampling: suppressed ids come only when a bias or the allowed list asks for them") {
  const rules r = {.suppressed = {0, 2, 77}, .eos = 1};
  sampling_params p = greedy();
  const std::vector<float> logits = {9, 1, 8, 2};
  CHECK(once(p, logits, 0, r).id == 3);
  p.logit_bias = {{2, 0.5f}};
  CHECK(once(p, logits, 0, r).id == 2);
  p.logit_bias = {{2, -0.5f}, {0, 0.0f}};
  CHECK(once(p, logits, 0, r).id == 3);
  p.logit_bias.clear();
  p.allowed_ids = {0, 1};
  CHECK(once(p, logits, 0, r).id == 0);
  p.allowed_ids.clear();
  p.suppress_reserved = false;
  CHECK(once(p, logits, 0, r).id == 0);
}

TEST_CASE("sampling: a bad word is banned where its last token would complete it") {
  sampling_params p = greedy();
  p.bad_words = {{4}, {2, 3}, {0, 2, 1}, {}};
  sampler_state state(p);
  const auto next = [&] {
    std::vector<float> logits = {0, 5, 1, 6, 9};
    return state.sample(logits, 0, {.suppressed = {}, .eos = 1}).id;
  };
  CHECK(next() == 3); // 4 is banned at once
  state.see_generated(2);
  CHECK(next() == 1); // 2 was seen: not 3
  state.see_generated(0);
  CHECK(next() == 3);
  state.see_generated(2);
  CHECK(next() == 2); // 0 2 were seen: neither 3 nor 1
  state.see_generated(0);
  state.see_generated(3);
  CHECK(next() == 3);
}

TEST_CASE("sampling: the end and stop ids wait for min_tokens") {
  sampling_params p = greedy();
  p.min_tokens = 2;
  p.stop_ids = {3, 50};
  sampler_state state(p);
  const auto next = [&] {
    std::vector<float> logits = {0, 9, 1, 8};
    return state.sample(logits, 0, no_rules).id;
  };
  CHECK(next() == 2);
  state.see_generated(2);
  CHECK(next() == 2);
  state.see_generated(2);
  CHECK(next() == 1);
}

TEST_CASE("sampling: frequency and presence penalties count generated tokens only") {
  sampling_params p = greedy();
  p.frequency_penalty = 0.5f;
  sampler_state often(p);
  p.frequency_penalty = 0;
  p.presence_penalty = 0.8f;
  sampler_state present(p);
  const auto next = [](sampler_state& s) {
    std::vector<float> logits = {2, 1.25f, 0};
    return s.sample(logits, 0, no_rules).id;
  };
  for (sampler_state* s : {&often, &present}) {
    s->see_prompt(std::vector<int32_t>{0, 0, 0, 0});
    CHECK(next(*s) == 0);
    s->see_generated(0);
  }
  CHECK(next(often) == 0);   // 2 - 0.5
  CHECK(next(present) == 1); // 2 - 0.8
  often.see_generated(0);
  present.see_generated(1); // 1.25 - 0.8 against 2 - 0.8
  CHECK(next(often) == 1);
  CHECK(next(present) == 0);
}

TEST_CASE("sampling: the repetition penalty divides positive and multiplies negative logits, once an id") {
  sampling_params p = greedy();
  p.repetition_penalty = 2;
  sampler_state state(p);
  state.see_prompt(std::vector<int32_t>{0, 0, 129264, -1});
  const auto next = [&](std::vector<float> logits) { return state.sample(logits, 0, no_rules).id; };
  CHECK(next({4, 2.1f, 0}) == 1);
  CHECK(next({4, 1.9f, 0}) == 0);
  CHECK(next({-1, -1.9f, -5}) == 1);
  CHECK(next({-1, -2.1f, -5}) == 0);
  state.see_generated(0); // in both: still halved once
  state.see_generated(1);
  CHECK(next({4, 3.9f, 1.9f}) == 0);
  CHECK(next({4, 3.9f, 2.1f}) == 2);
  p.repetition_penalty = 1e30f; // must not overflow into a ban
  sampler_state fierce(p);
  fierce.see_prompt(std::vector<int32_t>{0});
  std::vector<float> logits = {-1e30f};
  CHECK(fierce.sample(logits, 0, no_rules).id == 0);
}

TEST_CASE("sampling: log-probabilities are of the raw logits, best first, ties by id") {
  sampling_params p = greedy();
  p.n_logprobs = 3;
  p.logit_bias = {{1, -100.0f}};
  p.temperature = 0;
  const sampled_token t = once(p, logs({0.1, 0.4, 0.2, 0.1, 0.2}));
  CHECK(t.id == 2);
  CHECK(t.logprob == doctest::Approx(std::log(0.2)));
  REQUIRE(t.best.size() == 3);
  CHECK(t.best[0].id == 1);
  CHECK(t.best[0].logprob == doctest::Approx(std::log(0.4)));
  CHECK(t.best[1].id == 2);
  CHECK(t.best[2].id == 4);
  p.n_logprobs = 0;
  const sampled_token alone = once(p, {1000, 1001, never}); // large logits do not overflow
  CHECK(alone.best.empty());
  CHECK(alone.logprob == doctest::Approx(-1.0 - std::log1p(std::exp(-1.0))));
  p.n_logprobs = 20; // more than there are
  CHECK(once(p, {1, 2, never}).best.size() == 3);
  CHECK(once(p, {1, 2, never}).best[2].logprob == never);
}

TEST_CASE("sampling: a broken forward fails by name, it never becomes a token") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::string head = "the forward pass is broken: the logit of token ";
  CHECK(refusal(greedy(), {nan, nan}) == head + "0 for position 33 is nan");
  CHECK(refusal({}, {1, 2, nan}) == head + "2 for position 33 is nan");
  CHECK(refusal(greedy(), {1, -never}) == head + "1 for position 33 is inf");
  CHECK(refusal({}, {never, never}) == "no token can be sampled for position 33: every one of 2 is masked");
  CHECK(refusal(greedy(), {}) == "no token can be sampled for position 33: every one of 0 is masked");
  sampling_params p;
  p.n_logprobs = 2;
  CHECK(refusal(p, {never}) == "no token can be sampled for position 33: every one of 1 is masked");
  CHECK(refusal({}, {1, 2}, {.suppressed = {0, 1}, .eos = 1}).find("every one of 2 is masked") != std::string::npos);
}

TEST_CASE("sampling: draws follow the exact distribution") {
  const int n = 40000;
  const std::vector<double> exact = {0.02, 0.4, 0, 0.08, 0.25, 0.25};
  const std::vector<float> logits = [&] {
    std::vector<float> l = logs({0.02, 0.4, 1, 0.08, 0.25, 0.25});
    l[2] = never;
    return l;
  }();
  sampling_params p;
  p.seed = 11;
  CHECK(chi_square(counts(p, logits, n), exact, n) < 18.5); // 4 degrees of freedom: exceeded once in 1000 seeds
  p.temperature = 2;
  double total = 0;
  std::vector<double> flat;
  for (const double e : exact) flat.push_back(std::sqrt(e)), total += std::sqrt(e);
  for (double& f : flat) f /= total;
  CHECK(chi_square(counts(p, logits, n), flat, n) < 18.5);
  p.temperature = 1;
  p.top_p = 0.7f;                                                                                  // 0.4 + 0.25 + 0.25
  CHECK(chi_square(counts(p, logits, n), {0, 0.4 / 0.9, 0, 0, 0.25 / 0.9, 0.25 / 0.9}, n) < 13.9); // 2 degrees
  p.top_k = 2; // 0.4 and the lower of the two 0.25: 0.615 and 0.385 of what is left
  CHECK(chi_square(counts(p, logits, n), {0, 0.4 / 0.65, 0, 0, 0.25 / 0.65, 0}, n) < 10.9); // 1 degree
}

TEST_CASE("sampling: a wide vocabulary is drawn exactly, whatever part of it has to be sorted") {
  const size_t vocabulary = 1000;
  const int n = 20000;
  const std::vector<float> logits = noise(vocabulary, 3, 2);
  std::vector<double> exact;
  double total = 0;
  for (const float l : logits) exact.push_back(std::exp(double{l})), total += exact.back();
  for (double& e : exact) e /= total;
  sampling_params p;
  p.seed = 4;
  // 999 degrees of freedom: mean 999, deviation 44.7; five deviations.
  CHECK(std::abs(chi_square(counts(p, logits, n), exact, n) - 999) < 224);
}

TEST_CASE("sampling: the same seed, choice and position give the same token, others do not") {
  const std::vector<float> logits = noise(500, 9, 1);
  const auto run = [&](uint64_t seed, int32_t choice, int64_t start) {
    sampling_params p;
    p.seed = seed;
    p.choice = choice;
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < 20; ++i) ids.push_back(once(p, logits, start + i).id);
    return ids;
  };
  const auto base = run(1, 0, 100);
  CHECK(run(1, 0, 100) == base);
  CHECK(run(2, 0, 100) != base);
  CHECK(run(1, 1, 100) != base);
  CHECK(run(1, 0, 101) != base);
  CHECK(std::equal(base.begin() + 1, base.end(), run(1, 0, 101).begin())); // by position, not by order of calls
}

TEST_CASE("sampling: replaying the ids rebuilds the state") {
  sampling_params p;
  p.repetition_penalty = 1.3f;
  p.frequency_penalty = 0.4f;
  p.bad_words = {{7, 8}, {1, 2, 3}};
  p.min_tokens = 5;
  const std::vector<float> logits = noise(50, 12, 3);
  const std::vector<int32_t> prompt = {3, 4, 5, 3};
  sampler_state live(p);
  live.see_prompt(prompt);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < 30; ++i) {
    sampler_state again(p);
    again.see_prompt(std::span(prompt).first(2)); // in two parts
    again.see_prompt(std::span(prompt).last(2));
    for (const int32_t id : ids) again.see_generated(id);
    std::vector<float> a = logits, b = logits;
    const int32_t id = live.sample(a, 4 + i, no_rules).id;
    CHECK(again.sample(b, 4 + i, no_rules).id == id);
    CHECK(a == b);
    live.see_generated(id);
    ids.push_back(id);
  }
}
