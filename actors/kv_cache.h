// Which sequence holds which KV block. Owns block_pool and prefix_index, in a kv_ledger; never touches device memory.
#pragma once

#include "actors/counters.h"
#include "actors/engram_fetch.h"
#include "actors/kv_ledger.h"
#include "actors/messages.h"
#include "actors/tier_messages.h"

#include <caf/fwd.hpp>

#include <memory>
#include <vector>

namespace troupe {

// A wiring of a new epoch ends every sequence, and goes on to the engram_fetches behind all that was placed before. One
// of the same epoch names a new engram_fetch: it is told where to go on, and gets the newest step again.
// miss_question: for the console, between steps. flush_atom: answered when the disks are
// listed and nothing is on its way to them.
using kv_cache_actor =
    caf::typed_actor<caf::reacts_to<step_plan>, caf::reacts_to<wiring>,
                     caf::replies_to<miss_question>::with<miss_answer>, caf::reacts_to<tier_done>,
                     caf::reacts_to<tier_listed>, caf::replies_to<flush_atom>::with<bool>,
                     caf::replies_to<pin_prefix>::with<pin_answer>, caf::replies_to<unpin_prefix>::with<bool>,
                     caf::replies_to<pins_atom>::with<pin_list>>;

kv_cache_actor spawn_kv_cache(caf::actor_system&, const kv_cache_config&, std::shared_ptr<counters>);

} // namespace troupe
