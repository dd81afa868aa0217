// The disk of one rank: owns its folder of entries, writes behind and reads ahead on a thread of its own.
#pragma once

#include "actors/counters.h"
#include "actors/tier_messages.h"

#include <caf/fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace troupe {

struct tier_disk_config {
  std::filesystem::path folder; // of all ranks; each has its own below it
  std::string fingerprint;
  int32_t rank = 0, n_ranks = 1;
  int64_t max_bytes = 0; // other fingerprints' entries take at most half of it
};

// tier_wiring opens the folder, once, and lists it; a folder that cannot be opened is a log line, and an empty list.
using tier_disk_actor = caf::typed_actor<caf::reacts_to<tier_wiring>, caf::reacts_to<tier_save>,
                                         caf::reacts_to<tier_orders>, caf::reacts_to<tier_pins>>;

// Detached, it reads several entries at once.
tier_disk_actor spawn_tier_disk(caf::actor_system&, tier_disk_config, std::shared_ptr<counters>, bool detached = true);

} // namespace troupe
