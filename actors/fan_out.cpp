// Ring step 9: hands each step's tokens to turn_table and its findings to the scheduler and the requests.
#include "actors/fan_out.h"

#include "actors/guard.h"
#include "actors/journal.h"
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
  journal_actor journal;
  uint64_t epoch = 0;
  turn_table::outcome out; // kept for its memory
};
using fan_out_pointer = fan_out_actor::stateful_pointer<fan_out_state>;
constexpr std::string_view resume_note = "the engine was restarted, the answer goes on";

void tell(fan_out_pointer self) {
  auto& s = self->state;
  auto& out = s.out;
  for (const auto id : out.stopped) {
    self->send(s.journal, turn_stopped{id});
    self->send(s.scheduler, turn_stopped{id});
  }
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

fan_out_actor::behavior_type fan_out_behavior(fan_out_pointer self, std::shared_ptr<const text_side> text,
                                              std::shared_ptr<counters> numbers) {
  guard(self);
  self->state.numbers = numbers;
  self->state.turns.emplace(std::move(text), *numbers);
  return {
      [=](turn_open& open) {
        auto& s = self->state;
        const auto id = open.turn;
        if (!s.turns->open(std::move(open), self->clock().now())) {
          spdlog::error("fan_out: turn {} is open already", static_cast<uint64_t>(id));
          return;
        }
        if (auto asker = caf::actor_cast<request_actor>(self->current_sender())) s.askers[id] = std::move(asker);
      },
      [=](turn_replayed& r) {
        auto& s = self->state;
        const auto id = r.open.turn;
        if (auto asker = caf::actor_cast<request_actor>(self->current_sender())) s.askers[id] = std::move(asker);
        s.turns->replay(std::move(r), self->clock().now(), s.out);
        s.turns->note(id, resume_note);
        tell(self);
      },
      [=](const turn_queued& q) {
        auto& s = self->state;
        s.turns->queued(q.turn, s.out);
        if (s.turns->is_paused(q.turn)) self->send(s.scheduler, stream_paused{q.turn}); // a new one does not know
        tell(self);
      },
      [=](tokens_accepted& step) {
        auto& s = self->state;
        if (step.epoch != s.epoch) {
          ++s.numbers->dropped_messages;
          return;
        }
        self->send(s.journal, step);
        const auto number = step.number;
        s.turns->accept(std::move(step), self->clock().now(), s.out);
        tell(self);
        if (number % taken_each == 0) self->send(s.scheduler, tokens_taken{s.epoch, number}); // behind stream_paused
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
      [=](const wiring& w) {
        auto& s = self->state;
        s.scheduler = caf::actor_cast<scheduler_actor>(w.scheduler);
        s.journal = caf::actor_cast<journal_actor>(w.journal);
        if (s.epoch != 0) s.turns->note_all(resume_note);
        s.epoch = w.epoch;
        self->send(s.journal, epoch_begun{w.epoch}); // behind every token of older epochs
      },
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
  return system.spawn(fan_out_behavior, std::move(text), std::move(numbers));
}

} // namespace troupe
