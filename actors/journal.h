// The front's door to the ring: records every turn in flight and its tokens, so that any ring actor can be replaced.
#pragma once

#include "actors/counters.h"
#include "actors/messages.h"

#include <caf/fwd.hpp>

#include <memory>

namespace troupe {

// turn_begin's sender is the turn's request: answers go to it, and the record goes with it. After a wiring, turns in
// flight are admitted again once fan_out has said epoch_begun. Without a sender a turn is passed on and not recorded.
using journal_actor =
    caf::typed_actor<caf::reacts_to<turn_begin>, caf::reacts_to<image_piece>, caf::reacts_to<images_sent>,
                     caf::reacts_to<client_gone>, caf::reacts_to<turn_failed>, caf::reacts_to<stream_resumed>,
                     caf::reacts_to<tokens_accepted>, caf::reacts_to<turn_stopped>, caf::reacts_to<wiring>,
                     caf::reacts_to<epoch_begun>>;

journal_actor spawn_journal(caf::actor_system&, std::shared_ptr<counters>);

} // namespace troupe
