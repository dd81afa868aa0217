// Admission and planning: bounds, order, and what must hold whatever arrives.
#include "actors/batch_policy.h"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>

using namespace troupe;

namespace {

using instant = batch_policy::time;

batch_limits limits() {
  batch_limits l;
  l.max_running = 4;
  l.max_queue = 8;
  l.chunk_tokens = 16;
  l.n_blocks = 40;
  l.block_tokens = 8;
  return l;
}

turn_admit turn(uint64_t id, int64_t n_prompt, int64_t max_tokens, int n = 1, int32_t priority = 0) {
  turn_admit t{turn_id{id}, {}};
  for (int i = 0; i < n; ++i) {
    auto& s = t.sequences.emplace_back();
    s.turn = t.turn;
    s.id = sequence_id{id * 100 + static_cast<uint64_t>(i)};
    s.priority = priority;
    s.prompt.assign(static_cast<size_t>(n_prompt), 5);
    s.max_tokens = max_tokens;
  }
  return t;
}

// Answers a plan as a model would: token 7 for each sampled row.
step_result answer_to(const step_plan& plan, int32_t token = 7) {
  step_result r;
  for (const auto& row : plan.rows) {
    auto& s = r.results.emplace_back();
    s.id = row.id;
    s.n_tokens = row.start + static_cast<int64_t>(row.tokens.size());
    if (row.samples) s.tokens.emplace_back().id = token;
  }
  return r;
}

int64_t n_rows(const step_plan& plan) {
  int64_t n = 0;
  for (const auto& r : plan.rows) n += static_cast<int64_t>(r.tokens.size());
  return n;
}

} // namespace

TEST_CASE("batch_policy: decoding sequences come first, then chunks of several prompts") {
  batch_policy p(limits());
  CHECK_FALSE(p.admit(turn(1, 3, 9), instant{}));
  auto plan = p.plan(instant{});
  std::vector<accepted_tokens> out;
  p.accept(answer_to(plan), instant{}, out);
  CHECK(out.size() == 1);
  CHECK_FALSE(p.admit(turn(2, 10, 9), instant{}));
  CHECK_FALSE(p.admit(turn(3, 10, 9), instant{}));
  plan = p.plan(instant{});
  REQUIRE(plan.rows.size() == 3);
  CHECK(plan.rows[0].id == sequence_id{100});
  CHECK(plan.rows[0].start == 3);
  CHECK(plan.rows[0].tokens == std::vector<int32_t>{7});
  CHECK(plan.rows[1].tokens.size() == 10);
  CHECK(plan.rows[1].samples);
  CHECK(plan.rows[2].tokens.size() == 5); // what is left of the step
  CHECK_FALSE(plan.rows[2].samples);
}

TEST_CASE("batch_policy: end token, stop ids and length end a sequence; what lies behind an end is dropped") {
  batch_policy p(limits());
  auto t = turn(1, 2, 3);
  t.sequences[0].sampling.stop_ids = {44};
  CHECK_FALSE(p.admit(std::move(t), instant{}));
  std::vector<accepted_tokens> out;
  SUBCASE("end token") {
    p.accept(answer_to(p.plan(instant{}), 1), instant{}, out);
    CHECK(out.at(0).end == end_cause::eos);
  }
  SUBCASE("stop id") {
    p.accept(answer_to(p.plan(instant{}), 44), instant{}, out);
    CHECK(out.at(0).end == end_cause::stop_token);
  }
  SUBCASE("length, in the middle of what a step gave") {
    auto r = answer_to(p.plan(instant{}));
    for (int i = 0; i < 4; ++i) r.results[0].tokens.push_back({9, 0, {}});
    p.accept(std::move(r), instant{}, out);
    CHECK(out.at(0).end == end_cause::length);
    CHECK(out.at(0).tokens.size() == 3);
  }
  SUBCASE("no token where one was due") {
    auto r = answer_to(p.plan(instant{}));
    r.results[0].tokens.clear();
    p.accept(std::move(r), instant{}, out);
    CHECK(out.at(0).end == end_cause::failed);
  }
  CHECK(p.is_idle());
  CHECK(p.n_blocks_reserved() == 0);
  CHECK(p.plan(instant{}).ended.size() == 1);
}

TEST_CASE("batch_policy: what can never run is refused at once, with the reason") {
  batch_policy p(limits());
  CHECK(p.admit(turn(1, 400, 1), instant{})->status == 400);  // more blocks than there are
  CHECK(p.admit(turn(2, 2, 2, 5), instant{})->status == 400); // more choices than slots
  CHECK_FALSE(p.admit(turn(3, 2, 2), instant{}));
  CHECK(p.admit(turn(3, 2, 2), instant{})->status == 500); // an id in use
  p.refuse_new();
  CHECK(p.admit(turn(4, 2, 2), instant{})->status == 503);
}

TEST_CASE("batch_policy: the queue keeps order within a class, and interactive goes before batch") {
  auto l = limits();
  l.max_running = 1;
  batch_policy p(l);
  CHECK_FALSE(p.admit(turn(1, 2, 1), instant{}));
  CHECK_FALSE(p.admit(turn(2, 2, 1, 1, 5), instant{}));
  CHECK_FALSE(p.admit(turn(3, 2, 1), instant{}));
  std::vector<sequence_id> order;
  std::vector<accepted_tokens> out;
  while (!p.is_idle()) {
    const auto plan = p.plan(instant{});
    for (const auto& s : plan.started) order.push_back(s.id);
    p.accept(answer_to(plan), instant{}, out);
  }
  CHECK(order == std::vector<sequence_id>{sequence_id{100}, sequence_id{300}, sequence_id{200}});
}

TEST_CASE("batch_policy: a paused stream keeps its place and gets no rows") {
  batch_policy p(limits());
  CHECK_FALSE(p.admit(turn(1, 2, 5), instant{}));
  CHECK_FALSE(p.admit(turn(2, 2, 5), instant{}));
  std::vector<accepted_tokens> out;
  p.accept(answer_to(p.plan(instant{})), instant{}, out);
  p.set_paused(turn_id{1}, true);
  auto plan = p.plan(instant{});
  REQUIRE(plan.rows.size() == 1);
  CHECK(plan.rows[0].id == sequence_id{200});
  p.accept(answer_to(plan), instant{}, out);
  p.cancel(turn_id{2});
  p.plan(instant{});
  CHECK_FALSE(p.has_step(instant{}));
  p.set_paused(turn_id{1}, false);
  plan = p.plan(instant{});
  REQUIRE(plan.rows.size() == 1);
  CHECK(plan.rows[0].start == 2);
}

TEST_CASE("batch_policy: random arrivals, results, cancels and pauses keep every invariant") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto pick = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
    };
    const auto l = limits();
    batch_policy p(l);
    uint64_t next_turn = 1;
    std::map<sequence_id, int32_t> slots;   // running now, by what the plans said
    std::map<sequence_id, int64_t> reached; // positions planned
    std::set<sequence_id> known, ended_said;
    std::vector<accepted_tokens> out;
    std::map<sequence_id, int> ends;
    instant now{};
    const auto step = [&] {
      const auto plan = p.plan(now);
      for (const auto& e : plan.ended) {
        CHECK(ended_said.insert(e.id).second); // once
        slots.erase(e.id);
      }
      for (const auto& s : plan.started) {
        for (const auto& [id, slot] : slots) CHECK(slot != s.slot);
        CHECK(slots.emplace(s.id, s.slot).second);
      }
      CHECK(slots.size() <= static_cast<size_t>(l.max_running));
      CHECK(n_rows(plan) <= l.max_rows());
      std::set<sequence_id> once;
      for (const auto& r : plan.rows) {
        CHECK(once.insert(r.id).second);
        CHECK(slots.at(r.id) == r.slot);
        CHECK(r.start == reached[r.id]);
        reached[r.id] += static_cast<int64_t>(r.tokens.size());
      }
      if (pick(0, 3) == 0 && next_turn > 1)
        p.cancel(turn_id{static_cast<uint64_t>(pick(1, static_cast<int64_t>(next_turn)))});
      out.clear();
      p.accept(answer_to(plan, pick(0, 9) == 0 ? 1 : 7), now, out);
      for (const auto& a : out)
        if (a.end != end_cause::none) CHECK(++ends[a.id] == 1);
    };
    for (int i = 0; i < 300; ++i) {
      now += std::chrono::milliseconds(1);
      if (pick(0, 2) == 0) {
        auto t = turn(next_turn++, pick(1, 60), pick(1, 20), static_cast<int>(pick(1, 3)),
                      static_cast<int32_t>(pick(0, 12)));
        const auto n = t.sequences.size();
        const auto id = t.sequences[0].id;
        if (!p.admit(std::move(t), now))
          for (size_t k = 0; k < n; ++k) known.insert(sequence_id{static_cast<uint64_t>(id) + k});
      }
      if (pick(0, 9) == 0)
        p.set_paused(turn_id{static_cast<uint64_t>(pick(1, static_cast<int64_t>(next_turn)))}, pick(0, 1) == 0);
      CHECK(p.n_blocks_reserved() <= l.n_blocks);
      CHECK(p.n_waiting() <= l.max_queue);
      if (p.has_step(now)) step();
    }
    for (uint64_t t = 1; t < next_turn; ++t) p.set_paused(turn_id{t}, false);
    for (int i = 0; i < 5000 && p.has_step(now); ++i) step();
    CHECK(p.is_idle());
    CHECK(p.n_running() == 0);
    CHECK(p.n_blocks_reserved() == 0);
    CHECK(ended_said == known); // every admitted sequence ended, and the others heard of it
  }
}
