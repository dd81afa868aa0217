// One actor per socket: starts its turns, watches them, and tells them when the client has gone.
#pragma once

#include "actors/messages.h"
#include "net/engine_port.h"

#include <caf/typed_actor.hpp>

#include <memory>

namespace troupe {

// Where the answer to a text_question goes; any thread, called once.
class answer_sink {
public:
  virtual ~answer_sink() = default;
  virtual void answer(text_answer) = 0;
};

// Session -> connection. The sinks are the session's: the front's one shared pointer in messages (style.md section 3).
struct turn_start {
  chat_request request;
  std::shared_ptr<turn_sink> sink;
};
struct question_start {
  text_question question;
  std::shared_ptr<answer_sink> sink;
};
// The socket has closed: every turn still running is told so; the actor quits after the last one.
struct socket_closed {};

using connection_actor = caf::typed_actor<caf::reacts_to<turn_start>, caf::reacts_to<question_start>,
                                          caf::reacts_to<client_gone>, caf::reacts_to<socket_closed>>;

// `port` is shared by all connections of the server.
connection_actor spawn_connection(caf::actor_system&, std::shared_ptr<const engine_port> port);

} // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::turn_start)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::question_start)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::socket_closed)
