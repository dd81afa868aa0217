// Parking: turns give their blocks back when these run short, and nobody can tell from what they say.
#include "actors/batch_policy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

using namespace troupe;

namespace {

using instant = batch_policy::time;

// What a sequence says next depends on every token before, so a token lost, doubled or out of place changes the rest.
int32_t next_token(const std::vector<int32_t>& history) {
  uint64_t h = 1469598103934665603U;
  for (const auto t : history) h = (h ^ static_cast<uint64_t>(t)) * 1099511628211U;
  return static_cast<int32_t>(2 + h % 1000);
}

// A rank with its own memory: it trusts a plan only as far as a real one could.
struct fake_rank {
  struct slot {
    sequence_id id{};
    std::vector<int32_t> history;
    std::vector<int32_t> sampler; // tokens that penalties and min_tokens have seen
  };
  int64_t n_blocks, block_tokens;
  std::map<int32_t, slot> slots;

  step_result run(const step_plan& plan) {
    for (const auto& e : plan.ended)
      if (e.slot >= 0) {
        const auto found = slots.find(e.slot);
        if (found == slots.end()) continue; // it ended before its first rows
        CHECK(found->second.id == e.id);
        slots.erase(found);
      }
    for (const auto& s : plan.started) CHECK(slots.emplace(s.slot, slot{s.id, {}, s.generated}).second);
    step_result result;
    for (const auto& r : plan.rows) {
      auto& s = slots.at(r.slot);
      CHECK(s.id == r.id);
      CHECK(r.start == static_cast<int64_t>(s.history.size()));
      s.history.insert(s.history.end(), r.tokens.begin(), r.tokens.end());
      auto& out = result.results.emplace_back();
      out.id = r.id;
      out.n_tokens = static_cast<int64_t>(s.history.size());
      if (!r.samples) continue;
      const int32_t token = next_token(s.history) + static_cast<int32_t>(s.sampler.size() % 7);
      s.sampler.push_back(token);
      out.tokens.emplace_back().id = token;
    }
    int64_t n = 0;
    for (const auto& [i, s] : slots) n += (static_cast<int64_t>(s.history.size()) + block_tokens - 1) / block_tokens;
    CHECK(n <= n_blocks);
    return result;
  }
};

struct outcome {
  std::map<sequence_id, std::vector<int32_t>> said;
  std::map<sequence_id, int> ends;
  int64_t n_parkings = 0, n_steps = 0, most_running = 0;
};

turn_admit random_turn(uint64_t id, std::mt19937_64& random) {
  turn_admit t{turn_id{id}, {}};
  const uint64_t n = 1 + random() % 2;
  for (uint64_t i = 0; i < n; ++i) {
    auto& s = t.sequences.emplace_back();
    s.turn = t.turn;
    s.id = sequence_id{id * 10 + i};
    s.priority = static_cast<int32_t>(random() % 12);
    s.prompt.resize(1 + random() % 30);
    for (auto& p : s.prompt) p = static_cast<int32_t>(random() % 1000);
    s.max_tokens = static_cast<int64_t>(1 + random() % 60);
  }
  return t;
}

outcome run(uint64_t seed, int64_t n_blocks, bool overcommit, bool cancels = false) {
  batch_limits l;
  l.max_running = 8;
  l.max_queue = 100;
  l.chunk_tokens = 16;
  l.block_tokens = 4;
  l.n_blocks = n_blocks;
  l.overcommit = overcommit;
  batch_policy p(l);
  fake_rank rank{n_blocks, l.block_tokens, {}};
  std::mt19937_64 random(seed), other(seed);
  outcome o;
  instant now{};
  std::set<sequence_id> open;
  for (int i = 0; i < 20000; ++i) {
    now += std::chrono::milliseconds(10);
    if (i < 100 && i % 3 == 0) {
      auto t = random_turn(static_cast<uint64_t>(i) + 1, random);
      std::vector<sequence_id> ids;
      for (const auto& s : t.sequences) ids.push_back(s.id);
      REQUIRE_FALSE(p.admit(std::move(t), now));
      open.insert(ids.begin(), ids.end());
    }
    if (cancels && other() % 20 == 0) {
      const uint64_t id = 1 + other() % 100;
      p.cancel(turn_id{id});
      for (uint64_t k = 0; k < 2; ++k) open.erase(sequence_id{id * 10 + k});
    }
    CHECK(p.n_blocks_reserved() <= n_blocks);
    if (!p.has_step(now)) {
      if (i >= 100) break;
      continue;
    }
    std::vector<accepted_tokens> out;
    p.accept(rank.run(p.plan(now)), now, out);
    ++o.n_steps;
    o.most_running = std::max(o.most_running, p.n_running());
    for (const auto& a : out) {
      CHECK(a.failure.empty());
      for (const auto& t : a.tokens) o.said[a.id].push_back(t.id);
      if (a.end == end_cause::none) continue;
      CHECK(++o.ends[a.id] == 1);
      open.erase(a.id);
    }
  }
  CHECK(p.is_idle());
  CHECK(open.empty());
  CHECK(p.n_blocks_reserved() == 0);
  CHECK(p.n_running() == 0);
  o.n_parkings = p.n_parkings();
  return o;
}

} // namespace

TEST_CASE("parking: 200 random loads with too few blocks say token for token what they say with enough") {
  int64_t n_parkings = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    const auto calm = run(seed, 100000, false);
    const auto tight = run(seed, 50, true);
    CHECK(tight.said == calm.said);
    CHECK(tight.ends == calm.ends);
    CHECK(calm.n_parkings == 0);
    n_parkings += tight.n_parkings;
  }
  MESSAGE("turns parked: ", n_parkings);
  CHECK(n_parkings > 500);
}

TEST_CASE("parking: clients that leave, parked or not, take nothing with them") {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    const auto calm = run(seed, 100000, false);
    const auto tight = run(seed, 50, true, true);
    for (const auto& [id, said] : tight.said) {
      const auto& all = calm.said.at(id);
      REQUIRE(said.size() <= all.size());
      CHECK(std::equal(said.begin(), said.end(), all.begin()));
    }
  }
}

TEST_CASE("parking: without it nothing is ever taken back") {
  for (uint64_t seed = 1; seed <= 20; ++seed) CHECK(run(seed, 50, false).n_parkings == 0);
}

TEST_CASE("parking: the youngest of the lowest class gives way, and is the next to start") {
  batch_limits l;
  l.max_running = 4;
  l.chunk_tokens = 64;
  l.block_tokens = 4;
  l.n_blocks = 24;
  l.overcommit = true;
  batch_policy p(l);
  fake_rank rank{l.n_blocks, l.block_tokens, {}};
  instant now{};
  const auto add = [&](uint64_t id, int32_t priority) {
    turn_admit t{turn_id{id}, {}};
    auto& s = t.sequences.emplace_back();
    s.turn = t.turn;
    s.id = sequence_id{id};
    s.priority = priority;
    s.prompt.assign(8, 3);
    s.max_tokens = 60;
    now += std::chrono::milliseconds(1);
    REQUIRE_FALSE(p.admit(std::move(t), now));
  };
  add(1, 0);
  add(2, 20);
  add(3, 20);
  add(4, 0);
  std::vector<uint64_t> parked;
  std::vector<accepted_tokens> out;
  for (int i = 0; i < 1000 && p.has_step(now); ++i) {
    const auto plan = p.plan(now);
    for (const auto& e : plan.ended)
      if (e.is_parked) parked.push_back(static_cast<uint64_t>(e.id));
    p.accept(rank.run(plan), now, out);
  }
  CHECK(p.is_idle());
  REQUIRE(parked.size() >= 2);
  CHECK(parked[0] == 3);
  CHECK(parked[1] == 2);
  CHECK(std::find(parked.begin(), parked.end(), 1) == parked.end()); // the oldest of the highest class never is
}
