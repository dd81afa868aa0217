// Parking over tiers: a parked turn's state goes down to host memory and to disk, comes back from there without being
// computed again, and the turn says bit for bit what it says undisturbed.                              design section 5
#include "tests/actors/hungry_turns.h"
#include "tests/actors/tier_ring.h"
#include "tests/safetensors_writer.h"

#include <algorithm>

using namespace troupe;

namespace {

struct tier_numbers {
  explicit tier_numbers(const counters& n)
      : rows(n.engram_rows), from_memory(n.cache_returns_memory), from_disk(n.cache_returns_disk),
        hits(n.cache_returns_device + from_memory + from_disk), disk_reads(n.disk_reads) {}
  int64_t rows; // of the side tables: as many for each token that is computed
  int64_t from_memory, from_disk, hits, disk_reads;
};

constexpr int64_t n_asked = 150, n_wanted = 120;

// A turn whose reader stops after a few tokens; others come by and take its blocks, then its place in memory as far as
// `s` has too little of it; then the reader goes on. What the turn found when it came back.
tier_numbers park_and_resume(const tier_settings& s, draw how) {
  tier_ring r(s), plain({.n_slots = 0, .n_snapshots = 0});
  const auto turn = tier_ring::completion_of(some_tokens(n_asked, 1), n_wanted, how);
  const auto sink = r.start(turn);
  const turn_id id{r.r.last_turn};
  REQUIRE(r.w.run_until([&] { return !sink->choices.empty() && sink->ids().size() >= 20; }));
  sink->next_state = turn_sink::state::full;
  r.w.run();
  const auto n_before = static_cast<int64_t>(sink->ids().size());
  CHECK(n_before < n_wanted);
  const auto quick = r.start(tier_ring::completion_of(some_tokens(300, 10), 4));
  r.w.run();
  CHECK(quick->has_ended());
  CHECK(r.r.numbers->preemptions == 1);
  for (uint64_t i = 11; i < 15; ++i) {
    const auto other = r.start(tier_ring::completion_of(some_tokens(300, i), 4));
    r.w.run();
    CHECK(other->has_ended());
  }
  CHECK(static_cast<int64_t>(sink->ids().size()) == n_before);
  const tier_numbers before(*r.r.numbers);
  sink->next_state = turn_sink::state::ok;
  caf::anon_send(r.r.engine.fan_out, stream_resumed{id});
  r.w.run();
  REQUIRE(sink->has_ended());
  CHECK(sink->error.message == "");
  CHECK(r.r.is_idle());
  same(*sink, *plain.ask_all({turn}).front());
  CHECK(sink->usage.cached_tokens == 0); // its own state of before is no hit
  tier_numbers now(*r.r.numbers);
  now.rows -= before.rows;
  now.hits -= before.hits;
  now.from_memory -= before.from_memory;
  now.from_disk -= before.from_disk;
  now.disk_reads -= before.disk_reads;
  CHECK(now.hits >= n_asked + n_before - 1); // all that its client had read
  const auto rows_of_token = plain.r.numbers->engram_rows / (n_asked + n_wanted - 1);
  CHECK(rows_of_token > 0);
  if (s.n_drafts == 0) CHECK(now.rows == rows_of_token * (n_asked + n_wanted - 1 - now.hits));
  return now;
}

} // namespace

TEST_CASE("parking: what a parked turn left comes back from host memory, and nothing is computed again" *
          doctest::test_suite("slow")) {
  for (const int32_t n_drafts : {0, 5})
    for (const auto how : {draw::greedy, draw::penalised}) {
      CAPTURE(n_drafts);
      const auto n = park_and_resume({.n_blocks = 8, .n_slots = 60, .n_drafts = n_drafts, .overcommit = true}, how);
      CHECK(n.from_memory == n.hits / 64 * 64); // all of its full blocks
      CHECK(n.from_disk == 0);
    }
}

TEST_CASE("parking: what a parked turn left comes back from disk, and nothing is computed again" *
          doctest::test_suite("slow")) {
  for (const int32_t n_drafts : {0, 5})
    for (const auto how : {draw::greedy, draw::penalised}) {
      CAPTURE(n_drafts);
      const test::temp_folder folder;
      const auto n = park_and_resume({.n_blocks = 8,
                                      .n_slots = 8,
                                      .n_snapshots = 3,
                                      .folder = folder.path(),
                                      .n_drafts = n_drafts,
                                      .overcommit = true},
                                     how);
      CHECK(n.from_disk == n.hits / 64 * 64);
      CHECK(n.disk_reads == n.hits / 64 + 1); // those blocks, and its snapshot
    }
}

TEST_CASE("parking: turns that run out of blocks together come back through host memory" *
          doctest::test_suite("slow")) {
  const auto turns = hungry_turns();
  tier_settings s{.n_blocks = 21, .n_slots = 60, .max_running = 4, .overcommit = true};
  tier_ring tight(s);
  s.n_blocks = 200;
  s.overcommit = false;
  tier_ring plenty(s);
  const auto said = tight.ask_all(turns), wanted = plenty.ask_all(turns);
  for (size_t i = 0; i < turns.size(); ++i) CHECK(said[i]->said == wanted[i]->said);
  CHECK(tight.r.numbers->preemptions > 0);
  CHECK(tight.r.numbers->cache_returns_memory > 0);
  CHECK(tight.r.numbers->engram_rows.load() == plenty.r.numbers->engram_rows.load()); // none is computed twice
}

TEST_CASE("parking: in tail mode turns that began with a cached prefix come back exactly from what was kept" *
          doctest::test_suite("slow")) {
  const auto bytes = plan_state(tiny_folder, host_caches);
  const auto with_slots = [&](ring_config& c) {
    c.prefix.block_bytes = bytes.per_block;
    c.prefix.host_cache_bytes = 100 * bytes.per_block;
  };
  tiny_options o{.n_blocks = 21, .overcommit = true, .mode = prefill_mode::tail, .tail_tokens = 16};
  tiny_ring tight(o, with_slots);
  o.n_blocks = 200;
  o.overcommit = false;
  tiny_ring plenty(o, with_slots);
  auto cold = o;
  cold.snapshot_bytes = 0;
  tiny_ring without(cold);
  auto turns = hungry_turns();
  for (auto* ring : {&tight, &plenty}) // the first part of each prompt: its last rows see more than those of a miss
    for (const auto& t : turns) ring->ask(tiny_completion(t.prompts[0], 1));
  for (auto& t : turns) t.prompts[0] += " one of the";
  const auto said = tight.ask_all(turns), wanted = plenty.ask_all(turns), missed = without.ask_all(turns);
  bool is_other = false;
  for (size_t i = 0; i < turns.size(); ++i) {
    CHECK(wanted[i]->usage.cached_tokens > 16);
    CHECK(said[i]->said == wanted[i]->said);
    is_other = is_other || wanted[i]->said != missed[i]->said;
  }
  CHECK(is_other); // else this shows nothing
  CHECK(tight.r.numbers->preemptions > 0);
}
