// How the threads of the pool share the actors that have mail.
#pragma once

#include <caf/fwd.hpp>

namespace troupe {

// An actor whose mail comes from a pool thread runs next on that same thread, so that a step passes through the ring's
// event-based actors without waking anybody. Mail from outside the pool wakes one thread, the one that slept least;
// mail from inside only when two actors wait behind it. A thread without work sleeps until it is woken. The price: what
// is handed over waits until its sender's handler returns, so an actor works first and sends last.
void use_hand_over(caf::actor_system_config&);

} // namespace troupe
