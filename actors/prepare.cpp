// Actors that turn requests into token ids: a desk that holds what waits, and its crew. The work is prompt_builder's,
// the order prepare_queue's; prepare_door stands before the desk.
#include "actors/prepare.h"

#include "actors/guard.h"
#include "actors/prepare_door.h"
#include "actors/prepare_queue.h"
#include "actors/prompt_builder.h"
#include "actors/queue_limit.h"
#include "storage/check.h"

#include <caf/all.hpp>

#include <unordered_map>
#include <variant>

namespace troupe {

namespace {

struct prepare_state {
  static inline const char* name = "prepare";
};

using turn_promise = caf::typed_response_promise<turn_prepared>;
using question_promise = caf::typed_response_promise<text_answer>;

struct desk_state {
  static inline const char* name = "prepare_desk";
  struct work {
    std::variant<turn_prepare, text_question> what;
    std::variant<turn_promise, question_promise> asker;
    bool is_long = false;
  };
  struct member {
    prepare_actor actor; // held here: a child lives as long as its parent holds it
    std::optional<prepare_ticket> at;
  };
  std::shared_ptr<const prompt_builder> builder; // shared by the crew: it is immutable
  settings values;
  std::shared_ptr<counters> numbers; // also held by net
  std::vector<member> crew;
  prepare_queue queue;
  std::unordered_map<prepare_ticket, work> works;   // Invariant: those of the queue and those the crew is at
  int64_t n_turns = 0, n_questions = 0, n_long = 0; // of `works`; n_long: those the crew is at
};
using prepare_pointer = prepare_actor::stateful_pointer<desk_state>;

// It ends with its owner, which it is not linked to: whoever is linked to an actor that is killed is killed too.
template <class self_pointer> void end_with(self_pointer self, const caf::actor& owner) {
  self->monitor(owner);
  self->set_down_handler([self](const caf::down_msg&) { self->quit(caf::exit_reason::user_shutdown); });
}

prepare_actor::behavior_type prepare(prepare_actor::stateful_pointer<prepare_state> self,
                                     std::shared_ptr<const prompt_builder> builder, const caf::actor& owner) {
  guard(self);
  if (owner) end_with(self, owner);
  const auto break_if_told = [] {
    if (fault::at("prepare.dies")) throw std::runtime_error("prepare.dies");
  };
  return {
      [=](const text_question& q) {
        break_if_told();
        return builder->answer(q);
      },
      [=](turn_prepare& p) {
        break_if_told();
        return builder->prepare(std::move(p.request));
      },
      [](const client_gone&) {}, // one at a time: what it is at, it ends
  };
}

api_error broken_prepare() { return {500, "InternalServerError", "The prompt could not be prepared.", {}, 0}; }

void hire(prepare_pointer self, bool detached) {
  auto& s = self->state;
  const auto owner = caf::actor_cast<caf::actor>(self);
  auto actor =
      detached ? self->spawn<caf::detached>(prepare, s.builder, owner) : self->spawn(prepare, s.builder, owner);
  self->monitor(actor);
  s.crew.push_back({std::move(actor), std::nullopt});
}

// Takes the work out of the books.
desk_state::work close(prepare_pointer self, prepare_ticket ticket) {
  auto& s = self->state;
  const auto found = s.works.find(ticket);
  TROUPE_CHECK(found != s.works.end(), "what waits or is worked on is in the books");
  auto work = std::move(found->second);
  s.works.erase(found);
  --(std::holds_alternative<turn_promise>(work.asker) ? s.n_turns : s.n_questions);
  s.numbers->preparing = s.n_turns;
  return work;
}

void refuse(desk_state::work work, api_error why) {
  if (auto* turn = std::get_if<turn_promise>(&work.asker)) {
    turn_prepared answer;
    answer.failure = std::move(why);
    turn->deliver(std::move(answer));
  } else {
    text_answer answer;
    answer.failure = std::move(why);
    std::get<question_promise>(work.asker).deliver(std::move(answer));
  }
}

void hand_out(prepare_pointer self);

// `who` is done with it or dead.
desk_state::work come_back(prepare_pointer self, const caf::actor_addr& who) {
  auto& s = self->state;
  const auto member =
      std::find_if(s.crew.begin(), s.crew.end(), [&](const auto& m) { return m.actor.address() == who; });
  const auto ticket = std::exchange(member->at, std::nullopt);
  auto work = close(self, *ticket);
  s.n_long -= work.is_long;
  return work;
}

template <class answer_type, class promise_type, class question>
void ask(prepare_pointer self, const prepare_actor& who, question&& what) {
  self->request(who, caf::infinite, std::forward<question>(what))
      .then(
          [=, address = who.address()](answer_type& a) {
            std::get<promise_type>(come_back(self, address).asker).deliver(std::move(a));
            hand_out(self);
          },
          [](const caf::error&) {}); // it died: the monitor says so too, and is what counts
}

// The idle get what is next. With more than one of a crew, not all of it is at long work: a short question never waits
// for a long one to end.
void hand_out(prepare_pointer self) {
  auto& s = self->state;
  for (auto& m : s.crew) {
    if (m.at) continue;
    const bool only_short = s.crew.size() > 1 && s.n_long + 1 >= static_cast<int64_t>(s.crew.size());
    m.at = s.queue.next(only_short);
    if (!m.at) return;
    auto& work = s.works.at(*m.at);
    s.n_long += work.is_long;
    if (auto* turn = std::get_if<turn_prepare>(&work.what))
      ask<turn_prepared, turn_promise>(self, m.actor, std::move(*turn));
    else
      ask<text_answer, question_promise>(self, m.actor, std::move(std::get<text_question>(work.what)));
  }
}

void take(prepare_pointer self, turn_id turn, int64_t n_bytes, desk_state::work work) {
  auto& s = self->state;
  if (fault::at("prepare_desk.dies")) throw std::runtime_error("prepare_desk.dies");
  const auto* asked = std::get_if<turn_prepare>(&work.what);
  const bool is_turn = asked != nullptr;
  if (is_turn && asked->is_again) {
    // Its place was given when it was new.
  } else if (is_turn) {
    if (auto why = refuse_early(*s.numbers, 0, s.values.max_queue, s.values.max_running)) {
      ++s.numbers->refused;
      return refuse(std::move(work), std::move(*why));
    }
  } else if (s.n_questions >= s.values.max_queue + static_cast<int64_t>(s.crew.size())) {
    return refuse(std::move(work), queue_full({s.n_questions, s.n_questions + 1, 1, 0, s.values.max_queue}));
  }
  work.is_long = prepare_queue::is_long(n_bytes);
  ++(is_turn ? s.n_turns : s.n_questions);
  s.numbers->preparing = s.n_turns;
  s.works.emplace(s.queue.push(turn, n_bytes, self->clock().now()), std::move(work));
  hand_out(self);
}

prepare_actor::behavior_type desk(prepare_pointer self, std::shared_ptr<const prompt_builder> builder,
                                  const prepare_config& config, int32_t n_threads, bool detached,
                                  const caf::actor& owner) {
  guard(self);
  auto& s = self->state;
  s.builder = std::move(builder);
  s.values = config.values;
  s.numbers = config.numbers ? config.numbers : std::make_shared<counters>();
  for (int32_t i = 0; i < n_threads; ++i) hire(self, detached);
  self->monitor(owner);
  self->set_down_handler([=](const caf::down_msg& down) {
    auto& crew = self->state.crew;
    const auto dead =
        std::find_if(crew.begin(), crew.end(), [&](const auto& m) { return m.actor.address() == down.source; });
    if (dead == crew.end()) return self->quit(caf::exit_reason::user_shutdown); // the owner; the crew ends with us
    if (dead->at) refuse(come_back(self, down.source), broken_prepare());
    crew.erase(dead);
    hire(self, detached);
    hand_out(self);
  });
  return {
      [=](text_question& q) {
        const auto promise = self->make_response_promise<text_answer>();
        const auto turn = q.request.turn;
        const auto n_bytes = work_bytes(q);
        take(self, turn, n_bytes, {std::move(q), promise});
        return promise;
      },
      [=](turn_prepare& p) {
        const auto promise = self->make_response_promise<turn_prepared>();
        const auto turn = p.request.turn;
        const auto n_bytes = work_bytes(p.request);
        take(self, turn, n_bytes, {std::move(p), promise});
        return promise;
      },
      [=](const client_gone& gone) {
        if (const auto ticket = self->state.queue.erase(gone.turn))
          refuse(close(self, *ticket), {499, "ClientClosedRequestError", "The client has gone.", {}, 0});
      },
  };
}

} // namespace

prepare_actor spawn_prepare(caf::actor_system& system, const prepare_config& config,
                            std::shared_ptr<const text_side> text, int32_t n_threads, bool detached) {
  auto builder = std::make_shared<const prompt_builder>(config, std::move(text));
  if (n_threads <= 0) return system.spawn(prepare, std::move(builder), caf::actor{});
  auto hire_desk = [&system, builder = std::move(builder), config, n_threads, detached](const caf::actor& owner) {
    return system.spawn(desk, builder, config, n_threads, detached, owner);
  };
  return spawn_prepare_door(system, std::move(hire_desk),
                            config.numbers ? config.numbers : std::make_shared<counters>());
}

} // namespace troupe
