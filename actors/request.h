// One turn's life: render, tokenise, admit, end, usage, its log line. No token passes through it.
#pragma once

#include "actors/messages.h"

#include <caf/fwd.hpp>

#include <memory>

namespace troupe {

struct front;
struct turn_prepared; // prepare -> request, actors/prepare.h

using request_actor =
    caf::typed_actor<caf::reacts_to<turn_prepared>, caf::reacts_to<turn_queued>, caf::reacts_to<turn_refused>,
                     caf::reacts_to<client_gone>, caf::reacts_to<images_wanted>, caf::reacts_to<turn_ended>>;

// Errors reach the client through sink->fail. The actor quits when the turn has ended; the connection monitors it.
request_actor spawn_request(caf::actor_system&, const front&, chat_request, std::shared_ptr<turn_sink>);

} // namespace troupe
