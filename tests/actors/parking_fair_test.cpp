// Parking in virtual time: who gives way, who comes back, and that turns move on instead of chasing each other's
// blocks.
#include "tests/actors/fair_world.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

using namespace troupe;

namespace {

batch_limits tight_limits(int64_t n_blocks) {
  batch_limits l;
  l.max_running = 8;
  l.max_queue = 1000;
  l.chunk_tokens = 64;
  l.block_tokens = 16;
  l.n_blocks = n_blocks;
  l.overcommit = true;
  return l;
}

// Follows plans: what each turn gained since it last started, and how often it was parked.
struct parking_log {
  std::map<uint64_t, int64_t> tokens_at_start; // of those that came back
  std::map<uint64_t, int> n_parked;
  std::vector<uint64_t> order;
  int64_t least_gain = 1 << 30; // between coming back and being parked again

  void watch(fair_world& w) {
    for (const auto& e : w.plan.ended) {
      const auto id = static_cast<uint64_t>(e.id);
      if (!e.is_parked) continue;
      order.push_back(id);
      const auto& s = w.streams.at(id);
      // This step's results are in n_tokens already, but a parked turn had no part in it.
      if (n_parked[id]++ > 0) least_gain = std::min(least_gain, s.n_tokens - tokens_at_start.at(id));
    }
    for (const auto& s : w.plan.started) {
      const auto id = static_cast<uint64_t>(s.id);
      tokens_at_start[id] = static_cast<int64_t>(s.generated.size());
    }
  }
};

bool run_step(fair_world& w, parking_log& log) {
  if (!w.step()) return false;
  log.watch(w);
  return true;
}

struct load_result {
  int64_t us = 0, n_parkings = 0, least_gain = 0;
};

load_result run_load(uint64_t seed, bool overcommit, bool has_classes, double draft_right) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  auto l = tight_limits(pick(70, 120));
  l.overcommit = overcommit;
  if (draft_right > 0) l.drafts = {5, 5, false};
  fair_world w(l, {5000, 1000, 100, 0, 0, draft_right}, seed);
  parking_log log;
  uint64_t id = 1;
  for (int i = 0; i < 3000; ++i) {
    if (i % 25 == 0 && i < 1500) {
      const int64_t n_prompt = pick(0, 4) ? pick(1, 100) : pick(100, 500);
      REQUIRE(w.arrive(id++, n_prompt, pick(1, 500), has_classes ? static_cast<int32_t>(pick(0, 12)) : 0));
    }
    CHECK(w.policy.n_blocks_reserved() <= l.n_blocks);
    if (!run_step(w, log)) w.now_us += 20'000;
  }
  while (run_step(w, log)) {}
  CHECK(w.policy.is_idle());
  CHECK(w.policy.n_blocks_reserved() == 0);
  for (const auto& [turn, s] : w.streams) {
    CAPTURE(turn);
    CHECK(s.ended_us >= 0);
    // Each coming back is worth a block of tokens, but for four times while a lower class gives way.
    CHECK(log.n_parked[turn] <= 5 + s.n_tokens / l.block_tokens);
  }
  CHECK((overcommit || w.policy.n_parkings() == 0));
  return {w.now_us, w.policy.n_parkings(), log.least_gain};
}

} // namespace

TEST_CASE("parking: no thrash; in 100 random loads a turn that came back gains a block of tokens before it is parked "
          "again") {
  for (const double draft_right : {0.0, 0.8}) {
    CAPTURE(draft_right);
    int64_t n_parkings = 0, us = 0, reserved_us = 0;
    for (uint64_t seed = 1; seed <= 50; ++seed) {
      CAPTURE(seed);
      const auto one_class = run_load(seed, true, false, draft_right);
      CHECK(one_class.least_gain >= 16);
      const auto classes = run_load(seed, true, true, draft_right);
      n_parkings += one_class.n_parkings + classes.n_parkings;
      us += one_class.us;
      reserved_us += run_load(seed, false, false, draft_right).us;
    }
    CHECK(n_parkings > 100);
    // Here all that a parked turn had is computed again, and still the loads end about as soon as with all reserved.
    CHECK(static_cast<double>(us) < 1.1 * static_cast<double>(reserved_us));
    MESSAGE("parked ", n_parkings,
            " times; time of reserving: ", static_cast<double>(us) / static_cast<double>(reserved_us));
  }
}

TEST_CASE("parking: a background turn under interactive load is parked a bounded number of times, and ends") {
  fair_world w(tight_limits(60), {});
  parking_log log;
  REQUIRE(w.arrive(1, 100, 700, 20));
  uint64_t next = 100;
  while (w[1].ended_us < 0) {
    while (w.policy.n_waiting() < 3) REQUIRE(w.arrive(next++, 50, 300));
    REQUIRE(run_step(w, log));
    REQUIRE(w.now_us < 3'000'000'000);
  }
  CHECK(log.n_parked[1] >= 1);
  CHECK(log.n_parked[1] <= 5 + 700 / 16);
}

TEST_CASE("parking: when every running turn is paused and holds all blocks, they give way to who waits") {
  fair_world w(tight_limits(20), {});
  parking_log log;
  REQUIRE(w.arrive(1, 60, 200));
  for (int i = 0; i < 70; ++i) REQUIRE(run_step(w, log));
  REQUIRE(w.arrive(2, 60, 40));
  w.set_paused(1, true); // alone, it keeps its place: nobody needs it
  CHECK(w.policy.n_paused() == 1);
  while (w[2].ended_us < 0) REQUIRE(run_step(w, log));
  CHECK(w[1].ended_us < 0);
  REQUIRE(w.arrive(3, 250, 60)); // needs all there is
  while (w[3].ended_us < 0) REQUIRE(run_step(w, log));
  CHECK(log.order == std::vector<uint64_t>{1});
  while (run_step(w, log)) {} // its reader is still behind
  CHECK(w[1].ended_us < 0);
  const auto n_before = w[1].n_tokens;
  w.set_paused(1, false);
  CHECK(w.policy.n_paused() == 0);
  while (w[1].ended_us < 0) REQUIRE(run_step(w, log));
  CHECK(w[1].n_tokens == 200);
  CHECK(n_before < 200);
}

TEST_CASE("parking: a paused turn that was parked keeps nobody waiting, and leaves nothing when its client goes") {
  fair_world w(tight_limits(20), {});
  parking_log log;
  REQUIRE(w.arrive(1, 60, 200));
  for (int i = 0; i < 70; ++i) REQUIRE(run_step(w, log));
  w.set_paused(1, true);
  for (uint64_t id = 2; id < 6; ++id) REQUIRE(w.arrive(id, 150, 100));
  while (run_step(w, log)) {}
  for (uint64_t id = 2; id < 6; ++id) CHECK(w[id].ended_us >= 0);
  CHECK(log.n_parked[1] == 1);
  CHECK_FALSE(w.policy.is_idle());
  w.cancel(1);
  CHECK(w.policy.is_idle());
  CHECK(w.policy.n_paused() == 0);
  CHECK(w.policy.plan(w.now()).ended.size() == 1);
}

TEST_CASE("parking: a paused turn gives way to the first that waits before another passes that one by") {
  auto l = tight_limits(40);
  l.max_running = 2;
  fair_world w(l, {});
  parking_log log;
  REQUIRE(w.arrive(1, 60, 200));
  REQUIRE(w.arrive(4, 60, 200));
  for (int i = 0; i < 70; ++i) REQUIRE(run_step(w, log));
  REQUIRE(w.arrive(2, 20, 20, 0, 2)); // needs both slots
  REQUIRE(w.arrive(3, 20, 20));       // one would do
  w.set_paused(1, true);
  w.cancel(4);
  for (int i = 0; i < 2; ++i) REQUIRE(run_step(w, log));
  CHECK(w[2].n_done > 0);
  CHECK(w[3].n_done == 0);
  CHECK(log.order == std::vector<uint64_t>{1});
}

TEST_CASE("parking: a paused interactive turn does not give way to background work") {
  fair_world w(tight_limits(20), {});
  parking_log log;
  REQUIRE(w.arrive(1, 60, 200));
  for (int i = 0; i < 70; ++i) REQUIRE(run_step(w, log));
  w.set_paused(1, true);
  REQUIRE(w.arrive(2, 250, 60, 20));
  CHECK_FALSE(w.step());
  REQUIRE(w.arrive(3, 250, 60)); // interactive: it may
  while (w[3].ended_us < 0) REQUIRE(run_step(w, log));
  CHECK(log.order == std::vector<uint64_t>{1});
}

TEST_CASE("parking: what a turn finds of itself in the prefix cache is not counted as cached") {
  batch_policy p(tight_limits(8));
  const auto admit = [&](uint64_t id, int64_t n_prompt, int64_t max_tokens) {
    turn_admit t{turn_id{id}, {}};
    auto& s = t.sequences.emplace_back();
    s.turn = t.turn;
    s.id = sequence_id{id};
    s.prompt.assign(static_cast<size_t>(n_prompt), 5);
    s.max_tokens = max_tokens;
    REQUIRE_FALSE(p.admit(std::move(t), {}));
  };
  std::vector<accepted_tokens> out;
  const auto step = [&](int64_t n_cached) {
    const auto plan = p.plan({});
    step_result result;
    for (const auto& r : plan.rows) {
      auto& one = result.results.emplace_back();
      one.id = r.id;
      one.n_tokens = r.start + static_cast<int64_t>(r.tokens.size());
      one.cached_tokens = n_cached;
      if (r.samples) one.tokens.emplace_back().id = 7;
    }
    out.clear();
    p.accept(std::move(result), {}, out);
    return plan;
  };
  admit(1, 100, 20);
  step(3); // 64 of 100 rows
  p.set_paused(turn_id{1}, true);
  admit(2, 60, 4);
  while (p.n_running() == 1) step(0);
  p.set_paused(turn_id{1}, false);
  for (out.clear(); out.empty() || out[0].id != sequence_id{1};) step(64);
  CHECK(out[0].cached_tokens == 3);
}
