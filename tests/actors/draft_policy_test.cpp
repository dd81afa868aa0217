// Depth by made-up costs and acceptance, in virtual rounds.
#include "actors/draft_policy.h"

#include <doctest/doctest.h>

#include <functional>
#include <random>

using namespace troupe;

namespace {

using cost_of_step = std::function<int64_t(int64_t n_sequences, int64_t n_rows)>;

// Sequences whose drafts are right with a fixed probability, on a device with a given cost.
struct played {
  draft_policy policy;
  std::vector<sequence_drafts> sequences;
  double right = 0.9, says = 0.9; // the truth, and what the confidence head believes
  cost_of_step step;
  int64_t draft_us = 0;
  std::mt19937 random{7};
  int64_t n_tokens = 0, n_us = 0, n_drafts = 0;

  played(draft_limits l, size_t n, cost_of_step cost, int64_t drafting)
      : policy(l), sequences(n), step(std::move(cost)), draft_us(drafting) {}

  void round() {
    std::vector<draft_policy::offer> offers;
    for (auto& s : sequences) offers.push_back({&s, 5});
    policy.choose(offers, 0);
    const auto n = static_cast<int64_t>(sequences.size());
    const bool wants = policy.wants_drafts(n);
    int64_t rows = n;
    std::bernoulli_distribution is_right(right);
    for (size_t i = 0; i < sequences.size(); ++i) {
      const int32_t k = offers[i].n_chosen;
      rows += k;
      int32_t accepted = 0;
      while (accepted < k && is_right(random)) ++accepted;
      draft_policy::observe_run(sequences[i], k, accepted);
      n_tokens += accepted + 1;
      n_drafts += k;
      sequences[i].ids.assign(wants ? 5 : 0, 1);
      sequences[i].confidence.assign(wants ? 5 : 0, static_cast<float>(says));
    }
    const int64_t drafting = wants ? draft_us : 0, cost = step(n, rows) + drafting;
    policy.observe_cost(n, rows, cost, wants ? n : 0, drafting);
    n_us += cost;
  }
  // Mean drafts of a sequence and round, and tokens a second, after the trials.
  double depth = 0, rate = 0;
  void play(int rounds = 600) {
    for (int i = 0; i < 200; ++i) round();
    n_tokens = n_us = n_drafts = 0;
    for (int i = 0; i < rounds; ++i) round();
    depth = static_cast<double>(n_drafts) / rounds / static_cast<double>(sequences.size());
    rate = static_cast<double>(n_tokens) / static_cast<double>(n_us);
  }
};

double rate_at(int32_t depth, double right, size_t n, const cost_of_step& cost, int64_t draft_us) {
  played p({5, depth, false}, n, cost, draft_us);
  if (depth == 0) p.policy = draft_policy({0, 0, true});
  p.right = right;
  p.play();
  return p.rate;
}

int64_t flat(int64_t, int64_t rows) { return 10'000 + 10 * rows; }
int64_t linear(int64_t, int64_t rows) { return 100 + 5'000 * rows; }

} // namespace

TEST_CASE("draft_policy: rows that cost nothing and right guesses are taken to the full depth") {
  played p({5, 5, true}, 1, flat, 500);
  p.play();
  CHECK(p.depth > 4.7); // a trial round goes lower
}

TEST_CASE("draft_policy: rows at full price are not worth uncertain guesses, and nothing is drafted") {
  played p({5, 5, true}, 1, linear, 4'000);
  p.right = p.says = 0.5;
  p.play();
  CHECK(p.depth < 0.15);
  CHECK(p.rate > 0.97 * rate_at(0, 0.5, 1, linear, 0));
}

TEST_CASE("draft_policy: no fixed depth is faster, at any acceptance, batch and slope") {
  for (const size_t n : {size_t{1}, size_t{4}, size_t{32}})
    for (const double right : {0.3, 0.7, 0.95})
      for (const int64_t per_row : {20, 1'000, 4'000}) {
        const cost_of_step cost = [=](int64_t, int64_t rows) { return 5'000 + per_row * rows; };
        const int64_t drafting = 300 + static_cast<int64_t>(n) * per_row / 8;
        played p({5, 5, true}, n, cost, drafting);
        p.right = p.says = right;
        p.play();
        for (int32_t depth = 0; depth <= 5; ++depth) {
          CAPTURE(n);
          CAPTURE(right);
          CAPTURE(per_row);
          CAPTURE(depth);
          CHECK(p.rate > 0.94 * rate_at(depth, right, n, cost, drafting));
        }
      }
}

TEST_CASE("draft_policy: a head that promises too much is found out, for its sequence alone") {
  played p(
      {5, 5, true}, 1, [](int64_t, int64_t rows) { return 5'000 + 2'000 * rows; }, 200);
  p.right = 0.2;
  p.says = 0.9;
  p.play();
  CHECK(p.sequences[0].trust() < 0.5F);
  CHECK(p.depth < 0.8);
}

TEST_CASE("draft_policy: sure sequences get their drafts before unsure ones, each in order") {
  draft_policy policy({5, 5, true});
  for (int i = 0; i < 3; ++i)
    for (int64_t rows = 2; rows <= 12; ++rows) policy.observe_cost(2, rows, 10'000 + 1'500 * rows, 2, 100);
  sequence_drafts sure{{1, 1, 1, 1, 1}, {.98F, .98F, .98F, .98F, .98F}},
      unsure{{1, 1, 1, 1, 1}, {.5F, .9F, .9F, .9F, .9F}};
  std::vector<draft_policy::offer> offers{{&unsure, 5}, {&sure, 5}};
  for (int i = 0; i < 30; ++i) policy.choose(offers, 0);
  CHECK(offers[1].n_chosen == 5);
  CHECK(offers[0].n_chosen < 5);
  offers[1].n_useful = 2; // it ends soon
  policy.choose(offers, 0);
  CHECK(offers[1].n_chosen == 2);
}

TEST_CASE("draft_policy: the limit is set while it runs, within what the model drafts") {
  draft_policy policy({5, 16, false});
  sequence_drafts d{{1, 1, 1, 1, 1}, {.9F, .9F, .9F, .9F, .9F}};
  std::vector<draft_policy::offer> offers{{&d, 5}};
  const auto chosen = [&] {
    policy.choose(offers, 0);
    return offers[0].n_chosen;
  };
  CHECK(policy.max_drafts() == 5);
  CHECK(chosen() == 5);
  policy.set_max(2);
  CHECK(chosen() == 2);
  policy.set_max(0);
  CHECK(chosen() == 0);
  CHECK(!policy.wants_drafts(1));
  policy.set_max(-3);
  CHECK(policy.max_drafts() == 0);
  policy.set_max(1'000'000);
  CHECK(policy.max_drafts() == 5);
  draft_policy none({0, 16, false});
  CHECK(!none.wants_drafts(1));
}

TEST_CASE("step_costs: medians ignore outliers, curves interpolate, fall back to the nearest batch and go on beyond") {
  step_costs costs;
  CHECK(!costs.curve(1).is_known());
  for (const int64_t us : {100, 101, 9'000, 99, 100}) costs.observe(1, 1, us);
  CHECK(!costs.curve(1).is_known());
  CHECK(costs.curve(1).at(2) == doctest::Approx(200)); // one point: in proportion
  for (int i = 0; i < 5; ++i) costs.observe(1, 5, 300);
  CHECK(costs.curve(1).at(1) == doctest::Approx(100));
  CHECK(costs.curve(1).at(3) == doctest::Approx(200));
  CHECK(costs.curve(7).at(9) == doctest::Approx(500));
  costs.observe(8, 8, 350);
  CHECK(costs.curve(8).at(8) == doctest::Approx(450)); // a single cell is no slope yet
  costs.observe(8, 16, 340);                           // more rows are never cheaper
  CHECK(costs.curve(8).at(16) == doctest::Approx(350));
  for (int i = 0; i < 20; ++i) costs.observe(1, 5, 500); // the old ones are forgotten
  CHECK(costs.curve(1).at(5) == doctest::Approx(500));
}
