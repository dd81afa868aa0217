// Ring step 9: hands each step's tokens to turn_table and its findings to the scheduler and the requests.
#include "actors/fan_out.h"

#include "actors/guard.h"
#include "actors/request.h"
#include "actors/scheduler.h"
#include "actors/turn_table.h"

#include <caf/all.hpp>

#include <optional>
#include <unordered_map>

namespace troupe {

namespace {

struct fan_out_state {
  static inline const char* name = "fan_out";
  std::shared_ptr<counters> numbers;
  std::optional<turn_table> turns;
  std::unordered_map<turn_id, request_actor> askers;
  scheduler_actor scheduler;
  turn_table::outcome out; // kept for its memory
};
using self_pointer = fan_out_actor::stateful_pointer<fan_out_state>;

void tell(self_pointer self) {
  auto& s = self->state;
  auto& out = s.out;
  for (const auto id : out.stopped) self->send(s.scheduler, turn_stopped{id});
  for (const auto id : out.paused) self->send(s.scheduler, stream_paused{id});
  for (const auto id : out.closed)
    if (const auto asker = s.askers.find(id); asker != s.askers.end()) self->send(asker->second, client_gone{id});
  for (auto& e : out.ended) {
    const auto asker = s.askers.find(e.turn);
    if (asker == s.askers.end()) continue;
    const auto to = std::move(asker->second);
    s.askers.erase(asker);
    self->send(to, std::move(e));
  }
  out.stopped.clear();
  out.paused.clear();
  out.closed.clear();
  out.ended.clear();
}

fan_out_actor::behavior_type behave(self_pointer self, std::shared_ptr<const text_side> text,
                                    std::shared_ptr<counters> numbers) {
  guard(self);
  self->state.numbers = numbers;
  self->state.turns.emplace(std::move(text), *numbers);
  self->set_down_handler([=](const caf::down_msg& down) { // a request that ended in order is not among the askers
    auto& s = self->state;
    for (const auto& [id, asker] : s.askers) {
      if (asker.address() != down.source) continue;
      self->send(s.scheduler, client_gone{id});
      s.turns->gone(id, self->clock().now(), s.out);
      break;
    }
    tell(self);
  });
  return {
      [=](turn_open& open) {
        auto& s = self->state;
        const auto id = open.turn;
        if (!s.turns->open(std::move(open), self->clock().now())) {
          spdlog::error("fan_out: turn {} is open already", static_cast<uint64_t>(id));
          return;
        }
        if (auto asker = caf::actor_cast<request_actor>(self->current_sender())) {
          self->monitor(asker);
          s.askers[id] = std::move(asker);
        }
      },
      [=](const turn_queued& q) {
        self->state.turns->queued(q.turn, self->state.out);
        tell(self);
      },
      [=](tokens_accepted& step) {
        self->state.turns->accept(std::move(step), self->clock().now(), self->state.out);
        tell(self);
      },
      [=](const client_gone& gone) {
        self->state.turns->gone(gone.turn, self->clock().now(), self->state.out);
        tell(self);
      },
      [=](const turn_failed& failed) {
        self->state.turns->fail(failed.turn, failed.why, self->clock().now(), self->state.out);
        tell(self);
      },
      [=](const stream_resumed& r) {
        self->state.turns->resumed(r.turn);
        self->send(self->state.scheduler, r);
      },
      [=](const wiring& w) { self->state.scheduler = caf::actor_cast<scheduler_actor>(w.next); },
      [=](const drain_begin& d) {
        if (d.now) {
          const std::string why = d.why.empty() ? "server stopping" : d.why;
          const bool is_stop = d.why.empty();
          const api_error error{is_stop ? 503 : 500,
                                is_stop ? "ServiceUnavailableError" : "InternalServerError",
                                why,
                                {},
                                is_stop ? 5 : 0};
          self->state.turns->fail_all(error, self->clock().now(), self->state.out);
          tell(self);
        }
        return true;
      },
  };
}

} // namespace

fan_out_actor spawn_fan_out(caf::actor_system& system, std::shared_ptr<const text_side> text,
                            std::shared_ptr<counters> numbers) {
  return system.spawn(behave, std::move(text), std::move(numbers));
}

} // namespace troupe
