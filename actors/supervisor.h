// What dies in the ring, and what is started in its place. Owns the ring and the count of its restarts.
//                                                                                             Design section 3.
#pragma once

#include "actors/counters.h"
#include "actors/ring.h"
#include "model/model.h"

#include <caf/fwd.hpp>

#include <functional>
#include <memory>
#include <string>

namespace troupe {

// drain_begin goes on to the scheduler of the time, after a restart to the new one. wiring_atom: who is who, for the
// console and tests. Ended with user_shutdown, it ends the ring first.
using supervisor_actor =
    caf::typed_actor<caf::replies_to<drain_begin>::with<bool>, caf::replies_to<wiring_atom>::with<wiring>>;

// `engine`: loaded and wired with `generations{}`. `failed`: called once, when restarts are of no use; by then every
// open turn is being ended with an error.
supervisor_actor spawn_supervisor(caf::actor_system&, ring_config, ring engine, std::shared_ptr<const text_side>,
                                  std::shared_ptr<counters>, std::function<void(const std::string& why)> failed);

} // namespace troupe
