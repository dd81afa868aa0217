// From token ids to the text of each turn. Owns turn_table: a parser and a lent sink per turn.
#pragma once

#include "actors/counters.h"
#include "actors/messages.h"
#include "model/model.h"

#include <caf/fwd.hpp>

#include <memory>

namespace troupe {

// stream_resumed comes from the sink's owner and goes on to the scheduler. drain_begin: answered when all that was sent
// before it has reached the sinks; with `now` every open turn fails first. The sender of turn_open is its request,
// which is told how the turn ended. tokens_accepted go to the journal before any of it goes to a sink.
using fan_out_actor =
    caf::typed_actor<caf::reacts_to<turn_open>, caf::reacts_to<turn_replayed>, caf::reacts_to<turn_queued>,
                     caf::reacts_to<tokens_accepted>, caf::reacts_to<client_gone>, caf::reacts_to<turn_failed>,
                     caf::reacts_to<stream_resumed>, caf::reacts_to<wiring>, caf::replies_to<drain_begin>::with<bool>>;

// tokens_accepted of these numbers are answered with tokens_taken, by which the scheduler keeps steps from running
// ahead of what clients are sent: a rank carries its step on by itself and would not wait for a sink that is full.
inline constexpr uint64_t taken_each = 8, most_steps_ahead = 2 * taken_each;

fan_out_actor spawn_fan_out(caf::actor_system&, std::shared_ptr<const text_side>, std::shared_ptr<counters>);

} // namespace troupe
