// What the network side uses of a loaded runtime. server::attach makes one from a front; tests make their own.
#pragma once

#include "actors/messages.h"
#include "actors/prepare.h"
#include "actors/request.h"
#include "net/request_facts.h"

#include <caf/fwd.hpp>

#include <functional>
#include <memory>

namespace troupe {

struct front;

struct engine_port {
  caf::actor_system* system = nullptr;        // outlives the server
  std::shared_ptr<const request_facts> facts; // shared with every stream in flight
  prepare_actor prepare;
  std::function<request_actor(chat_request, std::shared_ptr<turn_sink>)> start; // one turn
  std::function<void(turn_id)> resume;                                          // a full sink was drained
};

std::shared_ptr<const engine_port> to_engine_port(caf::actor_system&, const front&);

} // namespace troupe
