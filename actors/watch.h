// Watches the ring: when one of its actors dies, every open turn ends with an error and the service says that it
// failed. Nothing is restarted.
#pragma once

#include "actors/counters.h"
#include "actors/ring.h"

#include <caf/actor.hpp>
#include <caf/fwd.hpp>

#include <memory>

namespace troupe {

// An exit message ends the watch; what dies afterwards is an orderly stop.
caf::actor spawn_watch(caf::actor_system&, const ring&, std::shared_ptr<counters>);

} // namespace troupe
