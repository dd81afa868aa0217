// Which sequences run in which step. Owns batch_policy; sends one step_plan at a time round the ring.
#pragma once

#include "actors/batch_policy.h"
#include "actors/counters.h"
#include "actors/fan_out.h"
#include "actors/messages.h"

#include <caf/fwd.hpp>

#include <memory>

namespace troupe {

using scheduler_actor =
    caf::typed_actor<caf::reacts_to<turn_admit>, caf::reacts_to<client_gone>, caf::reacts_to<turn_stopped>,
                     caf::reacts_to<step_result>, caf::reacts_to<tokens_taken>, caf::reacts_to<stream_paused>,
                     caf::reacts_to<stream_resumed>, caf::reacts_to<wiring>, caf::reacts_to<turns_resumed>,
                     caf::reacts_to<draft_limit>, caf::replies_to<drain_begin>::with<bool>,
                     caf::replies_to<status_atom>::with<scheduler_status>>;

// Runs nothing until `wiring` names the kv_cache; a wiring forgets every turn. turn_admit is answered with turn_queued
// (to its sender and fan_out) or turn_refused; not at all when an urgent client_gone of the turn overtook it, which
// must then be followed by one in order. drain_begin is answered once no turn is in flight; with `now`, at once.
scheduler_actor spawn_scheduler(caf::actor_system&, const batch_limits&, std::shared_ptr<counters>);

} // namespace troupe
