// A turn that dies without a word is answered here: its sink gets a 500, so no client waits for ever.
#include "net/connection.h"

#include "actors/guard.h"
#include "net/api_errors.h"
#include "storage/check.h"
#include "storage/log.h"

#include <caf/all.hpp>

#include <map>
#include <stdexcept>

namespace troupe {
namespace {

struct state {
  static inline const char* name = "connection";
  struct turn {
    turn_id id{};
    request_actor actor;             // the handle keeps the request alive
    std::shared_ptr<turn_sink> sink; // to fail it if the actor dies
  };
  std::map<caf::actor_addr, turn> turns;
  bool closing = false;
};

using self_ptr = connection_actor::stateful_pointer<state>;

void forget(self_ptr self, const caf::down_msg& down) {
  auto& s = self->state;
  const auto it = s.turns.find(down.source);
  if (it == s.turns.end()) return;
  if (down.reason && down.reason != caf::exit_reason::normal && down.reason != caf::exit_reason::user_shutdown) {
    spdlog::error("request actor ended early: {}", to_string(down.reason));
    it->second.sink->fail(make_error(500, "the request failed inside the server"));
  }
  s.turns.erase(it);
  if (s.closing && s.turns.empty()) self->quit();
}

connection_actor::behavior_type connection_behavior(self_ptr self, std::shared_ptr<const engine_port> port) {
  guard(self);
  const auto break_if_told = [] {
    if (fault::at("connection.dies")) throw std::runtime_error("connection.dies");
  };
  self->set_down_handler([self](caf::down_msg& down) { forget(self, down); });
  self->set_default_handler(caf::drop);
  return {
      [=](turn_start& start) { // sole owner: an image request is moved on, not copied
        break_if_told();
        const turn_id turn = start.request.turn;
        auto actor = port->start(std::move(start.request), start.sink);
        self->monitor(actor);
        const auto address = caf::actor_cast<caf::actor_addr>(actor);
        self->state.turns.emplace(address, state::turn{turn, actor, start.sink});
      },
      [=](question_start& start) { // the same
        break_if_told();
        auto sink = std::move(start.sink);
        // No deadline: its timer would outlive the answer. prepare answers all it takes, and CAF for it if it has died.
        self->request(port->prepare, caf::infinite, std::move(start.question))
            .then([sink](const text_answer& a) { sink->answer(a); },
                  [sink](const caf::error& e) {
                    spdlog::error("prepare did not answer: {}", to_string(e));
                    text_answer a;
                    a.failure = make_error(503, "the server could not answer in time", {}, 5);
                    sink->answer(std::move(a));
                  });
      },
      [self, port](const client_gone& gone) {
        for (const auto& [address, turn] : self->state.turns)
          if (turn.id == gone.turn) return self->send<caf::message_priority::high>(turn.actor, gone);
        self->send(port->prepare, gone); // a question
      },
      [self](const socket_closed&) {
        auto& s = self->state;
        s.closing = true;
        for (const auto& [address, turn] : s.turns)
          self->send<caf::message_priority::high>(turn.actor, client_gone{turn.id});
        if (s.turns.empty()) self->quit();
      },
  };
}

} // namespace

connection_actor spawn_connection(caf::actor_system& system, std::shared_ptr<const engine_port> port) {
  return system.spawn(connection_behavior, std::move(port));
}

} // namespace troupe
