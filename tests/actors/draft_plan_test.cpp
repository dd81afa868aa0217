// Rows of drafts in the plan: what ranks were given room for, and the gap of streams beside prompts.
#include "actors/request.h"
#include "tests/actors/fair_world.h"
#include "tests/actors/world.h"

#include <doctest/doctest.h>

using namespace troupe;

namespace {

batch_limits draft_plan_limits(int32_t n_sequences, int32_t n_drafts) {
  batch_limits l;
  l.max_running = n_sequences;
  l.max_queue = 1000;
  l.chunk_tokens = 8;
  l.n_blocks = 4000;
  l.block_tokens = 16;
  l.drafts = {n_drafts, n_drafts, false};
  return l;
}

int64_t n_planned(const step_plan& plan) {
  int64_t n = 0;
  for (const auto& r : plan.rows) n += static_cast<int64_t>(r.tokens.size());
  return n;
}

struct rigged_ring {
  rigged_ring(int32_t block, int32_t wrong_every)
      : r(w, limits(block), 1, [=, this](ring_config& c) {
          c.make_rank = [=, this](int32_t) {
            r.scripts[0]->draft_block = block;
            r.scripts[0]->wrong_every = wrong_every;
            rank_parts p;
            p.weights = std::make_unique<scripted_model>(r.scripts[0], tiny_text()->words()->size());
            return p;
          };
        }) {}
  static batch_limits limits(int32_t block) {
    auto l = scripted_ring::small_limits();
    l.drafts = {block, block, false};
    return l;
  }
  world w;
  scripted_ring r;
};

} // namespace

TEST_CASE("O43: 1 to 16 sequences times 0 to 7 drafts: each such step is planned, and fits what ranks were given") {
  for (int32_t n = 1; n <= 16; ++n)
    for (int32_t k = 0; k <= 7; ++k) {
      CAPTURE(n);
      CAPTURE(k);
      const auto l = draft_plan_limits(n, k);
      fair_world w(l, {5000, 1000, 100, 0, 0, 1.0});
      for (int32_t i = 0; i < n; ++i) REQUIRE(w.arrive(static_cast<uint64_t>(i) + 1, 1, 400));
      bool is_whole = false; // all sequences with all drafts at once
      while (w.step()) {
        CHECK(n_planned(w.plan) <= l.max_rows_and_drafts());
        is_whole = is_whole || n_planned(w.plan) == int64_t{n} * (1 + k);
      }
      CHECK(is_whole);
    }
}

TEST_CASE("O43: with prompts beside them, parked turns and depths that vary, no step exceeds what ranks were given") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    auto l = draft_plan_limits(static_cast<int32_t>(1 + random() % 16), static_cast<int32_t>(random() % 8));
    l.chunk_tokens = static_cast<int32_t>(1 + random() % 60);
    l.drafts.is_adaptive = random() % 2 == 0;
    l.overcommit = random() % 2 == 0;
    l.n_blocks = static_cast<int64_t>(20 + random() % 60);
    fair_world w(l, {5000, 1000, 100, 0, 0.05, 0.7}, seed);
    uint64_t id = 1;
    for (int i = 0; i < 400; ++i) {
      if (random() % 5 == 0)
        w.arrive(id++, static_cast<int64_t>(1 + random() % 150), static_cast<int64_t>(1 + random() % 80));
      if (!w.step()) w.now_us += 10'000;
      CHECK(n_planned(w.plan) <= l.max_rows_and_drafts());
      for (const auto& r : w.plan.rows) CHECK(r.n_drafts <= l.drafts.block);
    }
    while (w.step()) CHECK(n_planned(w.plan) <= l.max_rows_and_drafts());
    CHECK(w.policy.is_idle());
  }
}

TEST_CASE("fairness: rows of drafts count in the gap of streams beside a long prompt") {
  auto l = draft_plan_limits(16, 5);
  l.chunk_tokens = 2048;
  for (const bool is_adaptive : {false, true}) {
    CAPTURE(is_adaptive);
    l.drafts.is_adaptive = is_adaptive;
    fair_world w(l, {5000, 3000, 500, 0, 0, 0.9});
    for (uint64_t i = 1; i <= 8; ++i) REQUIRE(w.arrive(i, 10, 2000)); // up to 48 rows: 149 of 250 ms
    for (int i = 0; i < 30; ++i) REQUIRE(w.step());
    REQUIRE(w.arrive(9, 20000, 10));
    int n_steps = 0;
    while (w[9].first_us < 0 && w[1].ended_us < 0) {
      REQUIRE(w.step());
      if (w.n_prefill_rows == 0 || ++n_steps <= 8) continue; // known after a few
      CHECK(w.step_us <= 1000 * l.max_gap_ms);
      if (w[9].n_done < w[9].n_prompt) CHECK(w.n_prefill_rows >= 60); // an eighth of the gap
    }
    CHECK(n_steps > 20);
  }
}

TEST_CASE("6.14: a rigged drafter is accepted exactly as often as it is right") {
  for (const int32_t wrong_every : {1, 2, 3, 4, 5, 6, 7, 11}) {
    CAPTURE(wrong_every);
    constexpr int64_t max_tokens = 60, block = 5;
    rigged_ring ring(block, wrong_every);
    auto& r = ring.r;
    r.say(std::string(200, 'y') + " a b c d e f g h i j k l m n o p q r s t u v w x y z");
    auto request = r.completion("Go", max_tokens);
    request.sampling.ignore_eos = true;
    const auto out = std::make_shared<recording_sink>();
    r.start(request, out);
    ring.w.run();
    int64_t n_accepted = 0, n_drafts = 0;
    for (int64_t newest = 0; newest + 1 < max_tokens;) {
      const int64_t n = std::min(block, max_tokens - newest - 2);
      int64_t right = 0;
      while (right < n && (newest + 1 + right) % wrong_every != wrong_every - 1) ++right;
      n_drafts += n;
      n_accepted += right;
      newest += right + 1;
    }
    CHECK(out->usage.completion_tokens == max_tokens);
    CHECK(out->usage.accepted_drafts == n_accepted);
    CHECK(out->usage.accepted_drafts + out->usage.rejected_drafts == n_drafts);
  }
}
