// Side-table rows of each step, read while its rank begins it. Owns the rank's table_reader; one per rank.
#pragma once

#include "actors/counters.h"
#include "actors/messages.h"
#include "actors/rank.h"
#include "actors/staging.h"
#include "model/model.h"

#include <caf/fwd.hpp>

#include <functional>
#include <memory>

namespace troupe {

// load_atom: opens the tables on its own thread; an error says what failed. Sequences of steps that come all the same
// are failed, and the tables are tried again. A step with a read that hangs fails alone: the reader gives it up.
using engram_fetch_actor = caf::typed_actor<caf::reacts_to<step_placed>, caf::reacts_to<wiring>,
                                            caf::reacts_to<fetch_resumed>, caf::replies_to<load_atom>::with<bool>>;

struct engram_fetch_config {
  std::function<std::unique_ptr<table_reader>()> open; // null reader: the family has no side tables
  int32_t max_rows = 512;
};

// Detached, it hands a step on before it reads; else after it, since the rank may then need the thread that reads.
engram_fetch_actor spawn_engram_fetch(caf::actor_system&, engram_fetch_config, std::shared_ptr<staging_buffer> records,
                                      rank_actor next, std::shared_ptr<counters>, bool detached = true);

} // namespace troupe
