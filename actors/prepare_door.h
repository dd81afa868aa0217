// The handle of prepare that stays the same: passes on what it is asked, and replaces the desk behind it when that
// dies.
#pragma once

#include "actors/counters.h"
#include "actors/prepare.h"

#include <caf/fwd.hpp>

#include <functional>
#include <memory>

namespace troupe {

// `hire` spawns a desk that ends with its owner. What the desk has not answered when it dies is answered with 503, and
// so is what is asked before there is another: at once at first, then after growing pauses (restart_policy).
prepare_actor spawn_prepare_door(caf::actor_system&, std::function<prepare_actor(caf::actor owner)> hire,
                                 std::shared_ptr<counters>);

} // namespace troupe
