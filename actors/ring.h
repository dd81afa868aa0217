// The ring as a whole: spawns its actors in order and wires them to each other. Used by supervisor, system and tests.
#pragma once

#include "actors/fan_out.h"
#include "actors/journal.h"
#include "actors/kv_cache.h"
#include "actors/scheduler.h"

#include <caf/fwd.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace troupe {

struct ring_config {
  batch_limits limits;
  kv_cache_config prefix; // n_blocks and block_tokens are those of `limits`
  int32_t n_ranks = 1;
  std::function<void()> begin_group;                 // before each spawn of all ranks; may be empty
  std::function<rank_parts(int32_t rank)> make_rank; // called on the rank's own thread
  std::function<std::unique_ptr<table_reader>(int32_t rank)> open_tables; // may be empty: no side tables
  std::optional<null_rank_config> null;                                   // instead of make_rank
  std::optional<tier_disk_config> disk; // of any rank, each gets its own number; none: no disk tier
  std::vector<int32_t> suppressed;
  std::chrono::milliseconds rows_deadline = troupe::rows_deadline;
  bool detached = true; // tests: false
};

struct ring {
  journal_actor journal;
  fan_out_actor fan_out;
  scheduler_actor scheduler;
  kv_cache_actor kv_cache;
  std::vector<engram_fetch_actor> engram_fetches; // one a rank
  std::vector<rank_actor> ranks;
  std::vector<tier_disk_actor> disks;                   // one a rank, or none
  std::vector<std::shared_ptr<staging_buffer>> records; // of each rank; outlives its engram_fetch
  // Every actor of it, in the order of a step.
  std::vector<caf::actor> all() const;
};

// Nothing runs before wire(); ranks and engram_fetches need load_atom first.
ring spawn_ring(caf::actor_system&, const ring_config&, std::shared_ptr<const text_side>, std::shared_ptr<counters>);
// Parts of it, for a restart: all ranks and their engram_fetches; one engram_fetch; the kv_cache.
void spawn_group(caf::actor_system&, const ring_config&, std::shared_ptr<counters>, ring&);
void spawn_fetch(caf::actor_system&, const ring_config&, std::shared_ptr<counters>, size_t rank, ring&);
kv_cache_actor spawn_kv_cache(caf::actor_system&, const ring_config&, std::shared_ptr<counters>);
void spawn_disk(caf::actor_system&, const ring_config&, std::shared_ptr<counters>, size_t rank, ring&);

// Which restart this is: see `wiring`. All start at 1.
struct generations {
  uint64_t epoch = 1, cache = 1, ranks = 1;
};
wiring to_wiring(const ring&, const generations&);
// Tells everyone; from then on steps can run.
void wire(const ring&, const generations& = {});

} // namespace troupe
