// The scheduler's promises in virtual time: streams and prompts do not starve each other, whatever arrives.
#include "tests/actors/fair_world.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <set>
#include <string>

using namespace troupe;

namespace {

batch_limits real_limits() {
  batch_limits l;
  l.max_running = 64;
  l.chunk_tokens = 512;
  l.n_blocks = 16384;
  l.block_tokens = 64;
  l.max_gap_ms = 250;
  return l;
}

// 973 tokens/s of prompts and 23 of one stream, as the kit's (features.md 7.3, 7.4).
fair_machine kit() {
  fair_machine m;
  m.fixed_us = 40000;
  m.decode_row_us = 3000;
  m.prefill_row_us = 1e6 / 973;
  return m;
}

} // namespace

TEST_CASE("fairness: a 17-token chat into a running prompt of 181k tokens has its first token within two steps") {
  for (const bool with_stream : {false, true}) {
    CAPTURE(with_stream);
    fair_world w(real_limits(), kit());
    if (with_stream) {
      REQUIRE(w.arrive(3, 10, 3000));
      w.step();
    }
    REQUIRE(w.arrive(1, 181000, 10));
    for (int i = 0; i < 20; ++i) w.step();
    // It arrives in the middle of a step, which is the worst case.
    w.during = [&] {
      if (!w.streams.count(2)) {
        w.arrive(2, 17, 5);
        w[2].arrived_us -= w.step_us; // as if right after the step began
      }
    };
    while (!w.streams.count(2) || w[2].ended_us < 0) REQUIRE(w.step());
    CHECK(w[2].plan_first_token - w[2].plan_admissible <= 2);
    CHECK(w[2].first_us - w[2].arrived_us < 1'300'000); // the kit: 3.6 s, and 216 s with its threshold off
    const auto before = w[1].n_done;
    for (int i = 0; i < 20; ++i) w.step();
    CHECK(w[1].n_done > before); // and the long one goes on
    if (with_stream) CHECK(w[3].worst_gap_us <= 250'000);
  }
}

TEST_CASE("fairness: the long prompt keeps most of its speed while short chats come and go") {
  fair_world w(real_limits(), kit());
  REQUIRE(w.arrive(1, 60000, 10));
  uint64_t next = 2;
  while (w[1].first_us < 0) {
    if (w.n_plans % 4 == 0) REQUIRE(w.arrive(next++, 17, 20));
    REQUIRE(w.step());
  }
  const double alone_us = 60000 * kit().prefill_row_us + (60000.0 / 512) * kit().fixed_us;
  // Streams take their rows and the fixed part of more, shorter steps.
  CHECK(static_cast<double>(w[1].first_us) < 1.8 * alone_us);
  for (uint64_t id = 2; id < next; ++id)
    if (w[id].first_us >= 0) CHECK(w[id].plan_first_token - w[id].plan_admissible <= 2);
}

TEST_CASE("fairness: 8 long prompts all come to decode, and keep decoding together") {
  fair_world w(real_limits(), kit());
  for (uint64_t id = 1; id <= 8; ++id) REQUIRE(w.arrive(id, 20000, 4000));
  const auto all_decode = [&] {
    return std::all_of(w.streams.begin(), w.streams.end(), [](const auto& s) { return s.second.n_tokens > 0; });
  };
  int64_t first = -1;
  while (!all_decode()) {
    REQUIRE(w.step());
    for (const auto& [id, s] : w.streams) {
      if (s.n_tokens > 0 && first < 0) first = w.now_us;
      if (s.n_tokens == 0) CHECK(s.n_done > 0); // none stands still at the door
    }
  }
  // Nobody was deferred to the end of somebody's answer (4000 tokens are 170 s alone; the kit's newcomer waited 67 s).
  for (const auto& [id, s] : w.streams) {
    CHECK(s.ended_us < 0);
    CHECK(s.worst_gap_us <= 250'000);
  }
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(w.step());
    CHECK(w.n_decode_rows == 8);
  }
}

TEST_CASE("fairness: two prompts of 100k share the machine and come through at about the same time") {
  fair_world w(real_limits(), kit());
  REQUIRE(w.arrive(1, 100000, 10));
  REQUIRE(w.arrive(2, 100000, 10));
  while (w[1].first_us < 0 || w[2].first_us < 0) {
    REQUIRE(w.step());
    if (w[1].first_us < 0 && w[2].first_us < 0) CHECK(std::abs(w[1].n_done - w[2].n_done) <= 2 * 512);
  }
  const double both_us = 200000 * kit().prefill_row_us + (200000.0 / 512) * kit().fixed_us;
  CHECK(static_cast<double>(std::max(w[1].first_us, w[2].first_us)) < 1.02 * both_us);
}

TEST_CASE("fairness: O41, a stream beside a prompt of 200 chunks: its gap and the prompt's time are bounded") {
  auto l = real_limits();
  l.chunk_tokens = 128;
  fair_machine m;
  m.fixed_us = 3000;
  m.decode_row_us = 1000;
  m.prefill_row_us = 500;
  fair_world w(l, m);
  REQUIRE(w.arrive(1, 10, 100000));
  for (int i = 0; i < 50; ++i) w.step();
  REQUIRE(w.arrive(2, 200 * 128, 4));
  while (w[2].first_us < 0) REQUIRE(w.step());
  const double chunk_us = m.fixed_us + 128 * m.prefill_row_us;
  CHECK(static_cast<double>(w[1].worst_gap_us) <= 2 * chunk_us);
  CHECK(static_cast<double>(w[2].first_us - w[2].arrived_us) <= 1.35 * 200 * chunk_us);
}

TEST_CASE("fairness: O42, a prompt of 9 chunks that arrives during an answer of 1500 tokens is not put off") {
  fair_world w(real_limits(), kit());
  REQUIRE(w.arrive(1, 10, 1500));
  while (w.now_us < 2'000'000) w.step();
  const int64_t chunk = w.limits.max_gap_ms * 1000 / static_cast<int64_t>(kit().prefill_row_us) / 2;
  REQUIRE(w.arrive(2, 9 * chunk, 10));
  const auto arrived = w.n_plans;
  while (w[2].first_us < 0) REQUIRE(w.step());
  CHECK(w.n_plans - arrived <= 10);
  CHECK(w[1].ended_us < 0);
  CHECK(w[1].worst_gap_us <= 250'000);
}

TEST_CASE("fairness: background work moves on under a load of interactive prompts that never ends") {
  auto l = real_limits();
  l.max_running = 4;
  fair_world w(l, kit());
  uint64_t next = 100;
  REQUIRE(w.arrive(1, 3000, 5, 20)); // background
  REQUIRE(w.arrive(2, 3000, 5, 5));  // batch
  while ((w[1].ended_us < 0 || w[2].ended_us < 0) && w.now_us < 600'000'000) {
    while (w.policy.n_waiting() < 8) REQUIRE(w.arrive(next++, 700, 8));
    REQUIRE(w.step());
  }
  CHECK(w[1].ended_us >= 0);
  CHECK(w[2].ended_us >= 0);
  CHECK(w[2].ended_us < w[1].ended_us);
}

// One seed: a machine, limits and arrivals drawn at random; every promise checked in every step.
static void check_seed(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  batch_limits l;
  l.max_running = static_cast<int32_t>(pick(1, 24));
  l.max_queue = static_cast<int32_t>(pick(0, 40));
  l.chunk_tokens = static_cast<int32_t>(pick(32, 600));
  l.block_tokens = pick(4, 64);
  l.n_blocks = pick(4000, 12000) / l.block_tokens + 1;
  l.max_gap_ms = static_cast<int32_t>(pick(50, 300));
  const double gap_us = 1000.0 * l.max_gap_ms;
  fair_machine m;
  m.fixed_us = static_cast<double>(pick(100, static_cast<int64_t>(gap_us) / 5));
  m.decode_row_us = static_cast<double>(pick(10, static_cast<int64_t>(gap_us) / 3 / l.max_running));
  m.prefill_row_us = static_cast<double>(pick(5, static_cast<int64_t>(gap_us) / 100));
  m.per_position = pick(0, 1) ? 0.0 : 1e-5;
  m.noise = pick(0, 1) ? 0.0 : 0.05;
  fair_world w(l, m, seed);
  std::set<uint64_t> decoding; // live streams with a token, which the next plan must hold
  uint64_t next = 1;
  const int64_t mean_gap = pick(1, 12); // steps between arrivals
  int64_t n_learned = 0;
  std::set<uint64_t> undisturbed; // newcomers since whose arrival nothing else arrived
  const auto step = [&] {
    std::set<uint64_t> had(decoding);
    const int64_t rows_before = w.n_prefill_rows; // of the step before this one
    if (!w.step()) return false;
    std::set<uint64_t> got;
    for (const auto& r : w.plan.rows) CHECK(got.insert(static_cast<uint64_t>(r.id)).second);
    for (const auto id : had) CHECK_MESSAGE(got.count(id) == 1, "a stream was left out of a step, seed ", seed);
    CHECK(w.n_decode_rows + w.n_prefill_rows <= l.max_rows());
    // The gap, once the machine is known: what prompts add fits, but for an eighth that prompts always have.
    if (w.n_decode_rows > 0 && w.n_prefill_rows > 0 && n_learned > 8) {
      const double most = std::max(gap_us, w.decode_us + gap_us / 8 * 1.3 + m.prefill_row_us * 1.2) * (1 + m.noise);
      CHECK_MESSAGE(static_cast<double>(w.step_us) <= most, "a step of ", w.step_us, " us, seed ", seed);
    }
    ++n_learned;
    for (const auto& a : w.accepted) {
      const auto id = static_cast<uint64_t>(a.id);
      if (a.end == end_cause::none)
        decoding.insert(id);
      else
        decoding.erase(id);
    }
    for (auto& [id, s] : w.streams) {
      if (s.plan_admissible < 0 || s.plan_first_token >= 0) continue;
      const auto n = w.n_plans - s.plan_admissible;
      if (n >= 2) CHECK_MESSAGE(s.plan_first_rows >= 0, "no chunk within two steps, seed ", seed, " turn ", id);
      if (n == 2 && undisturbed.count(id) && s.n_prompt <= std::min(rows_before, w.n_prefill_rows))
        CHECK_MESSAGE(s.plan_first_token >= 0, "no token within two steps, seed ", seed, " turn ", id);
    }
    return true;
  };
  for (int i = 0; i < 400; ++i) {
    for (int64_t n = pick(0, mean_gap) == 0 ? pick(1, 6) : 0; n > 0; --n) {
      const int64_t n_prompt = pick(0, 3) ? pick(1, 200) : pick(200, 3000);
      const auto id = next++;
      if (w.arrive(id, n_prompt, pick(1, 60), static_cast<int32_t>(pick(0, 12)))) {
        undisturbed.clear();
        undisturbed.insert(id);
        for (const auto& [other, s] : w.streams)
          if (other != id && s.n_tokens == 0 && s.n_prompt - s.n_done <= l.max_rows()) undisturbed.clear();
      }
    }
    if (pick(0, 30) == 0 && next > 1) {
      const auto id = static_cast<uint64_t>(pick(1, static_cast<int64_t>(next)));
      w.policy.cancel(turn_id{id});
      decoding.erase(id);
      if (w.streams.count(id)) w.streams.erase(id);
    }
    CHECK(w.policy.n_blocks_reserved() <= l.n_blocks);
    CHECK(w.policy.n_running() <= l.max_running);
    CHECK(w.policy.n_waiting() <= l.max_queue);
    if (!step()) w.now_us += pick(0, 50000);
  }
  for (int i = 0; i < 100000 && step(); ++i) {}
  CHECK_MESSAGE(w.policy.is_idle(), "something starved, seed ", seed);
  for (const auto& [id, s] : w.streams) CHECK_MESSAGE(s.ended_us >= 0, "never ended, seed ", seed, " turn ", id);
}

// TROUPE_SEED replays one seed.
static void check_seeds(uint64_t first, uint64_t n) {
  if (const char* one = std::getenv("TROUPE_SEED")) {
    check_seed(std::strtoull(one, nullptr, 10));
    return;
  }
  for (uint64_t seed = first; seed < first + n; ++seed) {
    CAPTURE(seed);
    INFO("replay with TROUPE_SEED=", seed);
    check_seed(seed);
  }
}

TEST_CASE("fairness: every promise holds for 100 random loads") { check_seeds(1, 100); }
TEST_CASE("fairness: every promise holds for 4000 random loads" * doctest::test_suite("slow")) {
  check_seeds(1001, 4000);
}
