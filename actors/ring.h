// The ring as a whole: spawns its actors in order and wires them to each other. Used by system and by tests.
#pragma once

#include "actors/fan_out.h"
#include "actors/kv_cache.h"
#include "actors/scheduler.h"

#include <caf/fwd.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace troupe {

struct ring_config {
  batch_limits limits;
  kv_cache_config prefix; // n_blocks and block_tokens are those of `limits`
  int32_t n_ranks = 1;
  std::function<rank_parts(int32_t rank)> make_rank;                      // called on the rank's own thread
  std::function<std::unique_ptr<table_reader>(int32_t rank)> open_tables; // may be empty: no side tables
  std::optional<null_rank_config> null;                                   // instead of make_rank
  std::vector<int32_t> suppressed;
  bool detached = true; // tests: false
};

struct ring {
  fan_out_actor fan_out;
  scheduler_actor scheduler;
  kv_cache_actor kv_cache;
  std::vector<engram_fetch_actor> engram_fetches; // one a rank
  std::vector<rank_actor> ranks;
  // Every actor of it, in the order of a step.
  std::vector<caf::actor> all() const;
};

// Nothing runs before wire(); ranks and engram_fetches need load_atom first.
ring spawn_ring(caf::actor_system&, const ring_config&, std::shared_ptr<const text_side>, std::shared_ptr<counters>);
// Tells everyone the epoch, the scheduler last. From then on steps can run.
void wire(const ring&, uint64_t epoch);

} // namespace troupe
