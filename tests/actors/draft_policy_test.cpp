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
    std::vector<draft_policy::request> requests;
    for (auto& s : sequences) offers.push_back({&s, 5});
    for (auto& s : sequences) requests.push_back({&s});
    policy.choose(offers, 0);
    const auto n = static_cast<int64_t>(sequences.size());
    policy.ask(requests, n);
    int64_t rows = n, n_drafted = 0;
    const int64_t before = n_tokens;
    std::bernoulli_distribution is_right(right);
    for (size_t i = 0; i < sequences.size(); ++i) {
      const int32_t k = offers[i].n_chosen;
      rows += k;
      const auto& ids = sequences[i].ids; // 1 where it is right
      size_t accepted = 0;
      while (accepted < static_cast<size_t>(k) && ids[accepted] == 1) ++accepted;
      policy.observe_run(sequences[i], std::vector<int32_t>(accepted + 1, 1));
      n_tokens += static_cast<int64_t>(accepted) + 1;
      n_drafts += k;
      if (!requests[i].is_wanted) continue;
      ++n_drafted;
      std::vector<int32_t> made;
      for (int j = 0; j < 5; ++j) made.push_back(is_right(random));
      policy.take(sequences[i], std::move(made), std::vector<float>(5, static_cast<float>(says)));
    }
    const int64_t drafting = n_drafted > 0 ? draft_us : 0, cost = step(n, rows) + drafting;
    policy.observe_step({n, rows, cost, n_drafted, drafting, n_tokens - before, false});
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

TEST_CASE(
    "draft_policy: a cost curve that is walked costs what it costs anywhere, before, between and beyond its points") {
  const std::vector<std::vector<std::pair<double, double>>> curves{{},
                                                                   {{4, 1}},
                                                                   {{4, 1}, {8, 1.5}},
                                                                   {{4, 1}, {5, 1.4}, {9, 1.2}, {20, 3}},
                                                                   {{64, 1}, {96, 1.1}, {128, 1.1}, {384, 2}}};
  for (const auto& points : curves) {
    const cost_curve curve(points);
    size_t from = 1;
    double before = 0;
    for (double rows = 1; rows < 500; rows += rows < 30 ? 0.5 : 7) {
      const double cost = curve.at(rows, from);
      CHECK(cost == curve.at(rows));
      CHECK(cost >= before); // rates are compared by product: costs are above 0 and do not fall
      CHECK((points.empty() || cost > 0));
      before = cost;
    }
  }
}

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

TEST_CASE("draft_policy: a head that promises too much is found out") {
  played p(
      {5, 5, true}, 1, [](int64_t, int64_t rows) { return 5'000 + 2'000 * rows; }, 200);
  p.right = 0.2;
  p.says = 0.9;
  p.play();
  CHECK(p.depth < 0.8);
}

TEST_CASE("draft_policy: sure sequences get their drafts before unsure ones, each in order") {
  draft_policy policy({5, 5, true});
  for (int i = 0; i < 3; ++i)
    for (int64_t rows = 2; rows <= 12; ++rows) policy.observe_step({2, rows, 10'000 + 1'500 * rows, 2, 100, 2, false});
  sequence_drafts sure, unsure;
  policy.take(sure, {1, 1, 1, 1, 1}, {.98F, .98F, .98F, .98F, .98F});
  policy.take(unsure, {1, 1, 1, 1, 1}, {.5F, .9F, .9F, .9F, .9F});
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
  sequence_drafts d;
  policy.take(d, {1, 1, 1, 1, 1}, {.9F, .9F, .9F, .9F, .9F});
  const auto wants = [&d](draft_policy& of) {
    std::vector<draft_policy::request> requests{{&d}};
    of.ask(requests, 1);
    return requests[0].is_wanted;
  };
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
  CHECK(!wants(policy));
  policy.set_max(-3);
  CHECK(policy.max_drafts() == 0);
  policy.set_max(1'000'000);
  CHECK(policy.max_drafts() == 5);
  draft_policy none({0, 16, false});
  CHECK(!wants(none));
}

TEST_CASE("draft_policy: what is only made is judged by the tokens that come, and its rest still guesses") {
  draft_policy policy({5, 5, true});
  sequence_drafts d;
  policy.take(d, {4, 5, 6, 7, 8}, {.9F, .9F, .9F, .9F, .9F});
  policy.observe_run(d, std::vector<int32_t>{4}); // nothing was verified
  CHECK(d.ids == std::vector<int32_t>{5, 6, 7, 8});
  CHECK(d.n_used == 1);
  policy.observe_run(d, std::vector<int32_t>{5, 6}); // one was
  CHECK(d.ids == std::vector<int32_t>{7, 8});
  CHECK(d.right == doctest::Approx(d.promised).epsilon(0.15));
  policy.observe_run(d, std::vector<int32_t>{9});
  CHECK(d.ids.empty());
  CHECK(d.confidence.empty());
  CHECK(d.trust() < 1);
  policy.take(d, {1, 2}, {.9F}); // one confidence is missing
  CHECK(d.ids.empty());
}

TEST_CASE("step_costs: ratios to plain steps near by: other load and outliers leave them as they are") {
  step_costs costs;
  CHECK(!costs.curve(1).is_known());
  for (int i = 0; i < 30; ++i) {
    const int64_t load = i < 10 ? 100 : i < 20 ? 300 : 100; // all steps become slower, then faster
    costs.observe(1, 1, load, 0, 0);
    costs.observe(1, 1, load, 0, 0);
    costs.observe(1, 5, i % 7 == 3 ? 50 * load : 3 * load, 1, load / 2);
  }
  CHECK(costs.curve(1).at(1) == doctest::Approx(1));
  CHECK(costs.curve(1).at(3) == doctest::Approx(2));
  CHECK(costs.curve(1).at(9) == doctest::Approx(5)); // the line goes on
  CHECK(costs.drafting(1).at(1) == doctest::Approx(0.5));
  for (int i = 0; i < 12; ++i) costs.observe(1, 5, 300, 0, 0);
  for (int i = 0; i < 40; ++i) costs.observe(1, 5, 9000, 0, 0); // the plain ones are too old to compare with
  CHECK(costs.curve(1).at(5) == doctest::Approx(3));
  CHECK(costs.n_since_plain(1) == 53);
}

TEST_CASE("step_costs: a number of sequences that was not measured takes the curve of the nearest, in its own unit") {
  step_costs costs;
  for (int i = 0; i < 5; ++i) {
    costs.observe(2, 2, 200, 0, 0);
    costs.observe(2, 4, 300, 2, 60);
    costs.observe(2, 12, 700, 2, 60);
  }
  CHECK(costs.curve(2).at(4) == doctest::Approx(1.5));
  CHECK(costs.curve(4).at(4) == doctest::Approx(1));
  CHECK(costs.curve(4).at(12) == doctest::Approx(7.0 / 3));
  CHECK(costs.drafting(4).at(2) == doctest::Approx(0.2)); // 60 of the 300 that four rows take
  costs.observe(8, 8, 1000, 0, 0);
  costs.observe(8, 16, 900, 0, 0); // more rows are never cheaper
  CHECK(costs.curve(8).at(16) >= 1);
}

TEST_CASE("drafts: a drafter that is right less than half as often as it believes is told, until it is right again "
          "(features 6.14)") {
  played p(
      {5, 5, false}, 4, [](int64_t, int64_t) { return 100; }, 10);
  p.right = 0.5; // below what it says, but no fault
  for (int i = 0; i < 2000; ++i) p.round();
  CHECK(!p.policy.is_weak());
  p.right = 0.3; // as with keys in another layout
  for (int i = 0; i < 2000; ++i) p.round();
  CHECK(p.policy.is_weak());
  p.right = 0.9;
  for (int i = 0; i < 2000; ++i) p.round();
  CHECK(!p.policy.is_weak());
}
