// The sampler on the device against model/sampling.h: the same tokens for equal logits, rules by rules.
#include "gpu/sample.h"
#include "model/sampling.h"
#include "tests/cuda/twins.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr float never = -std::numeric_limits<float>::infinity();

// A turn: its rules, what it saw, and the masks and edits that follow for the device.
struct turn {
  sampling_params p;
  std::vector<int32_t> prompt, generated, suppressed;
  int64_t position = 0;
};

class device_sampler {
public:
  explicit device_sampler(backend& b, int64_t vocabulary) : b_(b), n_(vocabulary) {}

  sampled_rows sample(const std::vector<float>& values, const std::vector<turn>& turns) {
    const auto rows = static_cast<int64_t>(turns.size());
    sample_batch batch(n_);
    for (const turn& t : turns) {
      sampler_state s(t.p);
      s.see_prompt(t.prompt);
      for (const int32_t id : t.generated) s.see_generated(id);
      batch.suppressed_mask = -1; // each turn has its own here
      s.add_rules(batch, t.position, {.suppressed = t.suppressed, .eos = -1});
    }
    const tensor logits = b_.allocate(dtype::f32, {rows, n_}, "test");
    b_.upload(logits, values.data(), logits.size_bytes());
    const auto sampler = b_.make_sampler(n_, rows);
    REQUIRE(sampler);
    REQUIRE(sampler->has_room(batch));
    sampled_rows out;
    sampler->sample(logits, batch, out);
    return out;
  }

private:
  backend& b_;
  int64_t n_;
};

sampled_token on_host(const turn& t, std::vector<float> logits) {
  sampler_state s(t.p);
  s.see_prompt(t.prompt);
  for (const int32_t id : t.generated) s.see_generated(id);
  sampler_state::vocabulary_rules rules;
  rules.suppressed = t.suppressed;
  rules.eos = -1;
  return s.sample(logits, t.position, rules);
}

// All turns in one call, and each against the host.
void same_tokens(const std::string& what, backend& b, int64_t vocabulary, const std::vector<float>& logits,
                 const std::vector<turn>& turns) {
  const auto got = device_sampler(b, vocabulary).sample(logits, turns);
  size_t n_same = 0;
  for (size_t r = 0; r < turns.size(); ++r) {
    const auto first = logits.begin() + static_cast<int64_t>(r) * vocabulary;
    const int32_t want = on_host(turns[r], {first, first + vocabulary}).id;
    CHECK_MESSAGE(got.ids[r] == want, what << " row " << r);
    n_same += got.ids[r] == want ? 1 : 0;
  }
  MESSAGE("sample, " << what << ": " << std::string(n_same == turns.size() ? "equal bits" : "bits differ")
                     << ", bound equal");
}

std::vector<turn> mixed_turns(int n, int64_t first_position) {
  std::vector<turn> turns(static_cast<size_t>(n));
  constexpr float temperatures[] = {1, 0.7F, 2, 0, 1, 0.05F, 1.3F}, top_ps[] = {1, 0.95F, 0.5F, 1e-6F, 0.99F};
  constexpr int32_t top_ks[] = {0, 0, 40, 1, 5000, 3};
  for (int i = 0; i < n; ++i) {
    turn& t = turns[static_cast<size_t>(i)];
    t.p.seed = 0x123456789AULL * static_cast<uint64_t>(i + 1);
    t.p.choice = i % 3;
    t.position = first_position + 7 * i;
    t.p.temperature = temperatures[i % 7], t.p.top_p = top_ps[i % 5], t.p.top_k = top_ks[i / 2 % 6];
    t.p.min_p = i % 4 == 3 ? 0.02F : 0;
  }
  return turns;
}

} // namespace

TEST_CASE("cuda sample: tokens are the host's for every mix of temperature, min_p, top_k and top_p") {
  auto b = make_cuda_backend({.scratch_bytes = 64 << 20});
  unsigned seed = 1;
  for (const int64_t vocabulary : {1, 2, 37, 1000, 4099, 129280})
    for (const float spread : {0.01F, 0.5F, 3.0F, 20.0F}) {
      const int rows = vocabulary > 5000 ? 35 : 70;
      const std::vector<float> logits = random_floats(rows * vocabulary, ++seed, spread);
      same_tokens("V=" + std::to_string(vocabulary) + " spread " + std::to_string(spread), *b, vocabulary, logits,
                  mixed_turns(rows, seed));
    }
}

TEST_CASE("cuda sample: many equal logits keep the lower ids") {
  auto b = make_cuda_backend({.scratch_bytes = 64 << 20});
  for (const int64_t vocabulary : {300, 20000, 129280}) {
    std::vector<float> logits = random_floats(30 * vocabulary, 5, 2);
    for (size_t i = 0; i < logits.size(); ++i)
      logits[i] = i < logits.size() / 3 ? 0 : i < logits.size() / 2 ? std::round(logits[i]) : -std::fabs(logits[i]);
    logits[0] = -0.0F;
    same_tokens("ties, V=" + std::to_string(vocabulary), *b, vocabulary, logits, mixed_turns(30, 11));
  }
}

TEST_CASE("cuda sample: masks, biases and penalties act as the host's") {
  auto b = make_cuda_backend({.scratch_bytes = 64 << 20});
  for (const int64_t vocabulary : {64, 3001, 129280}) {
    std::vector<turn> turns = mixed_turns(24, 3);
    std::mt19937 random(8);
    const auto any = [&] { return static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary)); };
    for (size_t i = 0; i < turns.size(); ++i) {
      turn& t = turns[i];
      if (i % 2 == 0) {
        t.p.repetition_penalty = 1.3F, t.p.frequency_penalty = 0.2F, t.p.presence_penalty = 0.4F;
        for (int k = 0; k < 40; ++k) t.prompt.push_back(any()), t.generated.push_back(any());
        t.prompt.push_back(static_cast<int32_t>(vocabulary) + 9);
      }
      std::map<int32_t, float> biases;
      for (int k = 0; k < 6 && i % 3 == 0; ++k) biases[any()] = k == 0 ? -100.0F : static_cast<float>(k) - 2.5F;
      biases.erase(0);
      t.p.logit_bias.assign(biases.begin(), biases.end());
      if (i % 4 == 1)
        for (int k = 0; k < 20; ++k) t.p.allowed_ids.push_back(any());
      if (i % 4 == 2)
        for (int32_t id = 0; id < vocabulary; id += 3) t.suppressed.push_back(id);
      std::sort(t.p.allowed_ids.begin(), t.p.allowed_ids.end());
      t.p.allowed_ids.erase(std::unique(t.p.allowed_ids.begin(), t.p.allowed_ids.end()), t.p.allowed_ids.end());
    }
    same_tokens("rules, V=" + std::to_string(vocabulary), *b, vocabulary, random_floats(24 * vocabulary, 6, 3), turns);
  }
}

TEST_CASE("cuda sample: log-probabilities are of the raw logits, best first") {
  auto b = make_cuda_backend({.scratch_bytes = 64 << 20});
  for (const int64_t vocabulary : {3, 1000, 129280}) {
    std::vector<turn> turns = mixed_turns(6, 1);
    for (turn& t : turns) t.p.n_logprobs = 20, t.p.logit_bias = {{1, 30.0F}, {2, -100.0F}};
    std::vector<float> logits = random_floats(6 * vocabulary, 9, 4);
    for (size_t i = 0; i < logits.size(); i += 3) logits[i] = std::round(logits[i]);
    const auto got = device_sampler(*b, vocabulary).sample(logits, turns);
    double worst = 0;
    for (size_t r = 0; r < turns.size(); ++r) {
      const auto first = logits.begin() + static_cast<int64_t>(r) * vocabulary;
      const sampled_token want = on_host(turns[r], {first, first + vocabulary});
      CHECK(got.ids[r] == want.id);
      worst = std::max(worst, distance(got.logprobs[r], want.logprob));
      for (size_t i = 0; i < 20; ++i) {
        const size_t at = r * 20 + i;
        CHECK(got.best_ids[at] == (i < want.best.size() ? want.best[i].id : -1));
        if (i < want.best.size()) worst = std::max(worst, distance(got.best_logprobs[at], want.best[i].logprob));
      }
    }
    MESSAGE("sample logprobs, V=" << vocabulary << ": max error " << worst << ", bound 4e-6");
    CHECK(worst <= 4e-6);
  }
}

TEST_CASE("cuda sample: a row alone has the token it has among others, in slabs too") {
  auto b = make_cuda_backend({.scratch_bytes = 64 << 20}),
       small = make_cuda_backend({.scratch_bytes = 3 << 20}); // two rows
  const int64_t vocabulary = 129280;
  const auto logits = random_floats(9 * vocabulary, 3, 2);
  const auto turns = mixed_turns(9, 100);
  const auto together = device_sampler(*b, vocabulary).sample(logits, turns).ids;
  CHECK(device_sampler(*small, vocabulary).sample(logits, turns).ids == together);
  for (size_t r = 0; r < turns.size(); ++r) {
    const auto first = logits.begin() + static_cast<int64_t>(r) * vocabulary;
    CHECK(device_sampler(*b, vocabulary).sample({first, first + vocabulary}, {turns[r]}).ids[0] == together[r]);
  }
}

TEST_CASE("cuda sample: a broken forward and a row that is all masked are told, the others have their tokens") {
  auto b = make_cuda_backend({.scratch_bytes = 64 << 20});
  std::vector<turn> turns(6);
  turns[2].p.logit_bias = {{7, -100.0F}}; // hides a NaN from the draw, not from the check
  turns[4].suppressed = {7};
  std::vector<float> logits = random_floats(6 * 50, 4);
  logits[1 * 50 + 49] = INFINITY;
  logits[2 * 50 + 7] = NAN;
  std::fill_n(logits.begin() + 3 * 50, 50, never);
  logits[4 * 50 + 7] = NAN;
  logits[5 * 50 + 3] = never;
  const auto ids = device_sampler(*b, 50).sample(logits, turns).ids;
  CHECK(ids[0] == on_host(turns[0], {logits.begin(), logits.begin() + 50}).id);
  CHECK(ids[1] == sample_unsound);
  CHECK(ids[2] == sample_unsound);
  CHECK(ids[3] == sample_all_masked);
  CHECK(ids[4] == sample_unsound);
  CHECK(ids[5] == on_host(turns[5], {logits.begin() + 250, logits.end()}).id);
}
