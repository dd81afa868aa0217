// Nothing but who is asked and who waits for an answer: the desk may break, this may not.
#include "actors/prepare_door.h"

#include "actors/guard.h"
#include "actors/restart_policy.h"
#include "actors/turn_sink.h"

#include <caf/all.hpp>

#include <unordered_map>
#include <utility>
#include <variant>

namespace troupe {

namespace {

constexpr int32_t no_desk_retry_s = 1;

using timed_door = prepare_actor::extend<caf::reacts_to<due_atom>>; // due_atom: another desk, from itself

struct door_state {
  static inline const char* name = "prepare_door";
  using turn_promise = caf::typed_response_promise<turn_prepared>;
  using question_promise = caf::typed_response_promise<text_answer>;
  std::function<prepare_actor(caf::actor)> hire;
  std::shared_ptr<counters> numbers; // also held by net
  prepare_actor desk;                // none: it died, and the next one is not there yet
  restart_policy restarts;
  // Invariant: all that the desk has been asked and has not answered.
  std::unordered_map<uint64_t, std::variant<turn_promise, question_promise>> asked;
  uint64_t last = 0;
  bool is_stopping = false;
};
using door_pointer = timed_door::stateful_pointer<door_state>;

template <class answer_type> void turn_away(caf::typed_response_promise<answer_type>& asker) {
  answer_type answer;
  answer.failure = {503, "ServiceUnavailableError", "The prompt could not be prepared, try again.",
                    {},  no_desk_retry_s,           0};
  asker.deliver(std::move(answer));
}

void open_desk(door_pointer self) {
  auto& s = self->state;
  s.desk = s.hire(caf::actor_cast<caf::actor>(self));
  self->monitor(s.desk);
}

// CAF bounces what a dead actor never read; what it had read and not answered would wait for ever.
void lose_desk(door_pointer self, const caf::down_msg& down) {
  auto& s = self->state;
  if (!s.desk || s.desk.address() != down.source) return;
  s.desk = nullptr;
  if (s.is_stopping) return self->quit(caf::exit_reason::user_shutdown);
  spdlog::error("prepare: the desk ended with {} unanswered: {}", s.asked.size(), caf::to_string(down.reason));
  s.numbers->preparing = 0;
  ++s.numbers->restarts;
  for (auto& entry : std::exchange(s.asked, {})) std::visit([](auto& asker) { turn_away(asker); }, entry.second);
  const auto pause = s.restarts.next(self->clock().now());
  if (!pause) spdlog::critical("prepare: died too often, the next try is in {} s", restart_policy::window.count());
  const restart_policy::clock::duration wait = pause.value_or(restart_policy::window);
  if (wait == restart_policy::clock::duration::zero()) return open_desk(self);
  self->delayed_send(self, wait, due_atom_v);
}

template <class answer_type, class question>
caf::typed_response_promise<answer_type> pass_on(door_pointer self, question& what) {
  auto& s = self->state;
  auto asker = self->make_response_promise<answer_type>();
  if (!s.desk) {
    turn_away(asker);
    return asker;
  }
  const uint64_t number = ++s.last;
  s.asked.emplace(number, asker);
  self->request(s.desk, caf::infinite, std::move(what))
      .then(
          [=](answer_type& answer) {
            const auto found = self->state.asked.extract(number);
            if (found) std::get<caf::typed_response_promise<answer_type>>(found.mapped()).deliver(std::move(answer));
          },
          [](const caf::error&) {}); // the desk is dead: lose_desk answers
  return asker;
}

timed_door::behavior_type door(door_pointer self, std::function<prepare_actor(caf::actor)> hire_desk,
                               std::shared_ptr<counters> numbers) {
  guard(self);
  self->state.hire = std::move(hire_desk);
  self->state.numbers = std::move(numbers);
  self->set_down_handler([=](const caf::down_msg& down) { lose_desk(self, down); });
  self->set_exit_handler([=](const caf::exit_msg& e) { // whoever waits for our end waits for the desk's
    auto& s = self->state;
    s.is_stopping = true;
    if (!s.desk) return self->quit(e.reason);
    self->send_exit(s.desk, caf::exit_reason::user_shutdown);
  });
  open_desk(self);
  return {
      [=](text_question& q) { return pass_on<text_answer>(self, q); },
      [=](turn_prepare& p) { return pass_on<turn_prepared>(self, p); },
      [=](const client_gone& gone) {
        if (self->state.desk) self->send(self->state.desk, gone);
      },
      [=](due_atom) { open_desk(self); },
  };
}

} // namespace

prepare_actor spawn_prepare_door(caf::actor_system& system, std::function<prepare_actor(caf::actor owner)> hire,
                                 std::shared_ptr<counters> numbers) {
  return system.spawn(door, std::move(hire), std::move(numbers));
}

} // namespace troupe
