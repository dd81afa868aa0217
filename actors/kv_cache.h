// Which sequence holds which KV block. Owns block_pool and prefix_index; never touches device memory.
#pragma once

#include "actors/counters.h"
#include "actors/engram_fetch.h"
#include "actors/messages.h"

#include <caf/fwd.hpp>

#include <memory>
#include <vector>

namespace troupe {

using kv_cache_actor = caf::typed_actor<caf::reacts_to<step_plan>, caf::reacts_to<wiring>>;

struct kv_cache_config {
  int64_t n_blocks = 0, block_tokens = 64;
};

kv_cache_actor spawn_kv_cache(caf::actor_system&, const kv_cache_config&, std::vector<engram_fetch_actor> next,
                              std::shared_ptr<counters>);

} // namespace troupe
