// Passes turns into the ring and remembers them; after a restart, brings them back.
#include "actors/journal.h"

#include "actors/fan_out.h"
#include "actors/guard.h"
#include "actors/rank.h"
#include "actors/request.h"
#include "actors/scheduler.h"
#include "actors/turn_journal.h"

#include <caf/all.hpp>

#include <map>
#include <set>
#include <unordered_map>

namespace troupe {

namespace {

struct journal_state {
  static inline const char* name = "journal";
  turn_journal turns;
  std::map<turn_id, request_actor> askers;
  std::unordered_map<caf::actor_id, turn_id> turn_of; // by its request
  scheduler_actor scheduler;
  fan_out_actor fan_out;
  std::vector<rank_actor> ranks;
  uint64_t epoch = 0, at_ranks = 0;
  bool is_waiting = true;      // for the new epoch: turns are recorded, and go on with the others
  bool is_new_fan_out = false; // it knows no turn
  // Of a resume: turns that are admitted when the ranks have their images, and those that may be what broke the engine.
  // Of the latter one is admitted at a time, the next when it has gained a token.
  std::set<turn_id> without_images, suspects;
  turn_id suspect{}; // 0: none
  bool is_resuming = false;
  std::shared_ptr<counters> numbers;
};
using journal_pointer = journal_actor::stateful_pointer<journal_state>;

void admit(journal_pointer self, turn_id id) {
  auto& s = self->state;
  auto what = s.turns.to_admit(id);
  if (!what) return;
  s.turns.mark_admitted(id);
  if (what->is_resumed) ++s.numbers->resumed_turns;
  what->epoch = s.epoch;
  caf::send_as(s.askers.at(id), s.scheduler, std::move(*what));
}

// Of a resume: at once, or when the ranks have its images.
void bring_back(journal_pointer self, turn_id id) {
  auto& s = self->state;
  if (!s.turns.has_images(id) || s.turns.images_at(id) == s.at_ranks) return admit(self, id);
  s.without_images.insert(id);
  self->send(s.askers.at(id), images_wanted{id, s.at_ranks});
}

void admit_suspect(journal_pointer self) {
  auto& s = self->state;
  if (s.is_waiting) return;
  while (s.suspect == turn_id{} || !s.turns.is_suspect(s.suspect)) {
    s.suspect = turn_id{};
    if (s.suspects.empty()) return;
    s.suspect = *s.suspects.begin();
    s.suspects.erase(s.suspects.begin());
    bring_back(self, s.suspect);
  }
}

void end_resume(journal_pointer self) {
  auto& s = self->state;
  admit_suspect(self);
  if (!s.is_resuming || !s.without_images.empty() || !s.suspects.empty()) return;
  s.is_resuming = false;
  self->send(s.scheduler, turns_resumed{s.epoch});
}

// A resume does not wait for this turn.
void leave_out(journal_pointer self, turn_id id) {
  self->state.without_images.erase(id);
  self->state.suspects.erase(id);
  end_resume(self);
}

void begin(journal_pointer self, turn_begin& b) {
  auto& s = self->state;
  const auto id = b.admit.turn;
  b.admit.epoch = s.epoch;
  auto asker = caf::actor_cast<request_actor>(self->current_sender());
  if (!asker) { // nobody to resume it for
    caf::anon_send(s.fan_out, std::move(b.open));
    caf::anon_send(s.scheduler, std::move(b.admit));
    return;
  }
  if (!s.turns.begin(b)) {
    spdlog::error("journal: turn {} is open already", static_cast<uint64_t>(id));
    return;
  }
  self->monitor(asker);
  s.turn_of[asker.id()] = id;
  s.askers.emplace(id, asker);
  if (!s.is_new_fan_out) caf::send_as(asker, s.fan_out, std::move(b.open));
  if (s.is_waiting) return;
  if (s.turns.has_images(id)) {
    self->send(asker, images_wanted{id, s.at_ranks});
    return;
  }
  s.turns.mark_admitted(id);
  caf::send_as(asker, s.scheduler, std::move(b.admit));
}

void take_images(journal_pointer self, const images_sent& sent) {
  auto& s = self->state;
  if (sent.ranks != s.at_ranks || s.turns.images_at(sent.turn) == sent.ranks)
    return; // they went to ranks that are gone
  s.turns.mark_images(sent.turn, sent.ranks);
  if (s.is_waiting || !s.askers.count(sent.turn)) return;
  s.without_images.erase(sent.turn);
  admit(self, sent.turn);
  end_resume(self);
}

// Twice: the first frees its place in the next step, the second finds the turn if the first has overtaken its
// admission.
void withdraw(journal_pointer self, turn_id id) {
  self->send<caf::message_priority::high>(self->state.scheduler, client_gone{id});
  self->send(self->state.scheduler, client_gone{id});
}

void cancel(journal_pointer self, turn_id id) {
  auto& s = self->state;
  s.turns.cancel(id);
  withdraw(self, id);
  self->send(s.fan_out, client_gone{id});
  leave_out(self, id);
}

void fail(journal_pointer self, const turn_failed& f) {
  auto& s = self->state;
  s.turns.fail(f.turn, f.why);
  withdraw(self, f.turn);
  self->send(s.fan_out, f);
  leave_out(self, f.turn);
}

void rewire(journal_pointer self, const wiring& w) {
  auto& s = self->state;
  const auto fan_out = caf::actor_cast<fan_out_actor>(w.fan_out);
  s.is_new_fan_out = s.is_new_fan_out || fan_out != s.fan_out;
  s.fan_out = fan_out;
  s.scheduler = caf::actor_cast<scheduler_actor>(w.scheduler);
  s.ranks.clear();
  for (const auto& r : w.rank_actors) s.ranks.push_back(caf::actor_cast<rank_actor>(r));
  for (const auto id : s.turns.lose_epoch())
    s.turns.fail(id, {500,
                      "InternalServerError",
                      "The engine failed " + std::to_string(turn_journal::max_losses) +
                          " times while this request was in it; it is not tried again.",
                      {},
                      0});
  s.at_ranks = w.ranks;
  s.epoch = w.epoch;
  s.is_waiting = true;
  s.is_resuming = false;
  s.without_images.clear();
  s.suspects.clear();
  s.suspect = turn_id{};
}

void resume(journal_pointer self, uint64_t epoch) {
  auto& s = self->state;
  if (epoch != s.epoch || !s.is_waiting) return; // a later wiring is on its way
  s.is_waiting = false;
  s.is_resuming = true;
  for (const auto id : s.turns.turns()) {
    const auto& asker = s.askers.at(id);
    if (s.is_new_fan_out) caf::send_as(asker, s.fan_out, s.turns.to_replay(id));
    if (s.turns.is_cancelled(id)) {
      self->send(s.fan_out, client_gone{id});
    } else if (const auto why = s.turns.failure(id)) {
      self->send(s.fan_out, turn_failed{id, *why});
    } else if (s.turns.is_suspect(id)) {
      s.suspects.insert(id);
    } else {
      bring_back(self, id);
    }
  }
  s.is_new_fan_out = false;
  end_resume(self);
}

// A request that ended in order left nothing behind; one that died without a word did.
void lose_asker(journal_pointer self, const caf::down_msg& down) {
  auto& s = self->state;
  const auto found = s.turn_of.find(down.source.id());
  if (found == s.turn_of.end()) return;
  const auto id = found->second;
  s.turn_of.erase(found);
  if (down.reason) cancel(self, id);
  s.turns.forget(id);
  s.askers.erase(id);
  leave_out(self, id);
}

journal_actor::behavior_type journal_behavior(journal_pointer self, std::shared_ptr<counters> numbers) {
  guard(self);
  self->state.numbers = std::move(numbers);
  self->set_down_handler([=](const caf::down_msg& down) { lose_asker(self, down); });
  return {
      [=](turn_begin& b) { begin(self, b); },
      [=](image_piece& piece) {
        const auto& ranks = self->state.ranks;
        for (size_t r = 0; r + 1 < ranks.size(); ++r) self->send(ranks[r], piece);
        if (!ranks.empty()) self->send(ranks.back(), std::move(piece));
      },
      [=](const images_sent& sent) { take_images(self, sent); },
      [=](const client_gone& gone) { cancel(self, gone.turn); },
      [=](const turn_failed& failed) { fail(self, failed); },
      [=](const stream_resumed& r) { self->send(self->state.fan_out, r); },
      [=](const tokens_accepted& step) {
        self->state.turns.say(step);
        if (self->state.suspect != turn_id{}) end_resume(self);
      },
      [=](const turn_stopped& stopped) { self->state.turns.stop(stopped.id); },
      [=](const wiring& w) { rewire(self, w); },
      [=](const epoch_begun& e) { resume(self, e.epoch); },
  };
}

} // namespace

journal_actor spawn_journal(caf::actor_system& system, std::shared_ptr<counters> numbers) {
  return system.spawn(journal_behavior, std::move(numbers));
}

} // namespace troupe
