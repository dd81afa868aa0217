// Ring steps 4 and 8: admits turns, plans one step at a time, hands accepted tokens on. Decisions are batch_policy's.
#include "actors/scheduler.h"

#include "actors/batch_policy.h"
#include "actors/guard.h"
#include "actors/journal.h"
#include "actors/kv_cache.h"
#include "actors/request.h"
#include "storage/check.h"
#include "storage/log.h"

#include <caf/all.hpp>

#include <unordered_map>
#include <unordered_set>

namespace troupe {

namespace {

constexpr auto look_time = std::chrono::seconds(1); // between looks at turns that wait, where their wait has a limit

struct scheduler_state {
  static inline const char* name = "scheduler";
  explicit scheduler_state() : policy(batch_limits{}) {}
  batch_limits limits;
  batch_policy policy;
  kv_cache_actor next;
  fan_out_actor fan_out;
  journal_actor journal;
  std::shared_ptr<counters> numbers;
  uint64_t epoch = 0, step = 0;
  uint64_t n_told = 0, n_taken = 0; // messages of tokens to fan_out, and how many of them it has dealt with
  bool in_flight = false;           // Invariant: at most one step is in the ring
  bool is_resuming = false;         // turns in flight are still being admitted again
  bool ends_resume = false;         // and the next plan says that they all are
  int64_t n_refused = 0;
  int64_t n_parkings = 0; // of this policy, those that were counted
  std::vector<caf::typed_response_promise<bool>> drains;
  // Where a wait has a limit: turns that have not started, so that a stream does not open before it is sure to run.
  std::unordered_map<turn_id, request_actor> unopened;
  std::unordered_set<turn_id> gone; // their urgent client_gone was here, and the one that keeps its place was not
  bool may_expire = false;
  bool has_timer = false; // Invariant: exactly while one is on its way to ourselves
};
using timed_scheduler = scheduler_actor::extend<caf::reacts_to<due_atom>>; // due_atom: look at who waits, from itself
using scheduler_pointer = timed_scheduler::stateful_pointer<scheduler_state>;

int64_t microseconds(caf::actor_clock::time_point t) {
  return std::chrono::duration_cast<std::chrono::microseconds>(t.time_since_epoch()).count();
}

void show_gauges(scheduler_pointer self) {
  auto& s = self->state;
  s.numbers->running = s.policy.n_running();
  s.numbers->waiting = s.policy.n_waiting();
  s.numbers->paused = s.policy.n_paused();
  s.numbers->turn_us = static_cast<int64_t>(s.policy.mean_turn_s() * 1e6);
  s.numbers->preemptions += s.policy.n_parkings() - std::exchange(s.n_parkings, s.policy.n_parkings());
}

// Opens what starts.
void open_started(scheduler_pointer self, const step_plan& plan) {
  auto& s = self->state;
  for (const auto& started : plan.started)
    if (s.unopened.erase(started.turn) > 0) self->send(s.fan_out, turn_queued{started.turn});
}

void look_at_waiting(scheduler_pointer self) {
  auto& s = self->state;
  const auto never_ran = [&](turn_id id) { return s.unopened.count(id) > 0; };
  for (auto& [id, why] : s.policy.expire(self->clock().now(), never_ran)) {
    ++s.n_refused;
    ++s.numbers->refused;
    if (const auto asker = s.unopened.extract(id); asker && asker.mapped())
      self->send(asker.mapped(), turn_refused{id, std::move(why)});
  }
  if (s.unopened.empty() || std::exchange(s.has_timer, true)) return;
  self->delayed_send(self, look_time, due_atom_v);
}

void pump(scheduler_pointer self) {
  auto& s = self->state;
  const auto now = self->clock().now();
  const bool is_ahead = s.n_told - s.n_taken >= most_steps_ahead; // tokens_taken comes and goes on here
  if (s.next && !s.in_flight && !is_ahead && (s.policy.has_step(now) || s.ends_resume)) {
    step_plan plan = s.policy.plan(now);
    plan.ends_resume = std::exchange(s.ends_resume, false);
    if (plan.ends_resume) plan.with_images = s.policy.with_images();
    plan.epoch = s.epoch;
    plan.step = ++s.step;
    int64_t n_rows = 0;
    for (const auto& r : plan.rows) n_rows += static_cast<int64_t>(r.tokens.size());
    ++s.numbers->steps;
    s.numbers->rows += n_rows;
    if (n_rows > 0) s.numbers->iteration_tokens.observe(static_cast<double>(n_rows));
    s.in_flight = true;
    s.numbers->step_sent_us = microseconds(now);
    if (!s.unopened.empty()) open_started(self, plan);
    self->send(s.next, std::move(plan));
  }
  show_gauges(self);
  if (s.policy.is_idle() && !s.in_flight && !s.is_resuming)
    for (auto& promise : std::exchange(s.drains, {})) promise.deliver(true);
}

void hand_on(scheduler_pointer self, std::vector<accepted_tokens>&& sequences) {
  if (sequences.empty()) return;
  auto& s = self->state;
  self->send(s.fan_out, tokens_accepted{s.epoch, s.step, std::move(sequences), ++s.n_told});
}

void admit(scheduler_pointer self, turn_admit& turn) {
  auto& s = self->state;
  const auto id = turn.turn;
  if (turn.epoch != s.epoch) { // it comes again, from a journal that knows of this epoch
    ++s.numbers->dropped_messages;
    return;
  }
  std::vector<sequence_id> with_images; // the ranks already hold images of these
  for (const auto& q : turn.sequences)
    if (!q.images.empty()) with_images.push_back(q.id);
  if (s.gone.count(id)) {
    for (const auto q : with_images) s.policy.forget(q);
    return pump(self);
  }
  const bool may_expire = s.may_expire && !turn.is_resumed; // a client may have seen the beginning of that one
  const auto asker = caf::actor_cast<request_actor>(self->current_sender());
  if (auto why = s.policy.admit(std::move(turn), self->clock().now())) {
    ++s.n_refused;
    if (why->status == 429) ++s.numbers->refused;
    if (asker) self->send(asker, turn_refused{id, std::move(*why)});
    for (const auto q : with_images) s.policy.forget(q);
    pump(self);
    return;
  }
  if (may_expire)
    s.unopened.emplace(id, asker);
  else
    self->send(s.fan_out, turn_queued{id});
  if (asker) self->send(asker, turn_queued{id});
  pump(self);
  look_at_waiting(self);
}

// An urgent client_gone overtakes what was sent before it: the results of steps, as it should, and perhaps the turn's
// own admission. Until the one in order has come, that admission may.
void lose_client(scheduler_pointer self, turn_id id, bool is_urgent) {
  auto& s = self->state;
  if (is_urgent)
    s.gone.insert(id);
  else
    s.gone.erase(id);
  s.unopened.erase(id);
  s.policy.cancel(id);
  pump(self);
}

void count_drafts(counters& n, const step_result& result) {
  for (const auto& r : result.results) {
    if (r.n_drafts == 0) continue;
    ++n.draft_rounds;
    for (size_t j = 0; j < n.drafts_at.size() && j < static_cast<size_t>(r.n_drafts); ++j) ++n.drafts_at[j];
    for (size_t j = 0; j < n.drafts_at.size() && j < static_cast<size_t>(r.n_accepted); ++j) ++n.accepted_drafts_at[j];
  }
}

void count_lookups(counters& n, batch_policy& policy) {
  const auto first = policy.take_lookups(), again = policy.take_returns();
  n.cache_queries += first.n_asked;
  n.cache_hits += first.n_found;
  n.cache_hits_device += first.from_device;
  n.cache_hits_memory += first.from_memory;
  n.cache_hits_disk += first.from_disk;
  n.cache_returns_device += again.from_device;
  n.cache_returns_memory += again.from_memory;
  n.cache_returns_disk += again.from_disk;
}

void take_result(scheduler_pointer self, step_result& result) {
  auto& s = self->state;
  if (result.epoch != s.epoch) {
    ++s.numbers->dropped_messages;
    return;
  }
  TROUPE_CHECK(s.in_flight && result.step == s.step, "one step is in the ring, and its result is the next to come");
  s.in_flight = false;
  const auto now = self->clock().now();
  s.numbers->last_step_us = microseconds(now);
  s.numbers->step_sent_us = 0;
  count_drafts(*s.numbers, result);
  std::vector<accepted_tokens> accepted;
  accepted.reserve(result.results.size());
  s.policy.accept(std::move(result), now, accepted);
  if (s.policy.has_lookups()) count_lookups(*s.numbers, s.policy);
  if (const bool is_weak = s.policy.has_weak_drafts(); is_weak != s.numbers->weak_drafts) {
    s.numbers->weak_drafts = is_weak;
    spdlog::warn("scheduler: drafts are {} as the drafter believes",
                 is_weak ? "right less than half as often" : "right about as often again");
  }
  hand_on(self, std::move(accepted));
  if (auto begun = s.policy.take_begun(); !begun.empty() && s.journal)
    self->send(s.journal, tokens_accepted{s.epoch, s.step, std::move(begun), 0});
  pump(self);
}

caf::result<bool> drain(scheduler_pointer self, const drain_begin& d) {
  auto& s = self->state;
  s.policy.refuse_new();
  auto promise = self->make_response_promise<bool>();
  if (d.now) {
    std::vector<accepted_tokens> ended;
    s.unopened.clear();
    s.policy.fail_all(d.why.empty() ? "server stopping" : d.why, d.why.empty() ? 503 : 500, ended);
    hand_on(self, std::move(ended));
    promise.deliver(true); // the ring may be dead: nothing here waits for it
  } else {
    s.drains.push_back(promise);
  }
  pump(self);
  return promise;
}

scheduler_status status(scheduler_pointer self) {
  const auto& s = self->state;
  scheduler_status out;
  out.n_running = s.policy.n_running();
  out.n_waiting = s.policy.n_waiting();
  out.n_steps = static_cast<int64_t>(s.step);
  out.prompt_tokens = s.numbers->prompt_tokens;
  out.generated_tokens = s.numbers->generated_tokens;
  out.n_blocks = s.numbers->blocks;
  out.n_blocks_used = s.numbers->blocks_used;
  out.n_refused = s.n_refused;
  out.n_ended = s.policy.n_ended();
  out.draining = s.policy.is_draining();
  return out;
}

// Nothing of an older epoch counts: what was in flight is admitted again by the journal.
void rewire(scheduler_pointer self, const wiring& w) {
  auto& s = self->state;
  s.next = caf::actor_cast<kv_cache_actor>(w.kv_cache);
  s.fan_out = caf::actor_cast<fan_out_actor>(w.fan_out);
  s.journal = caf::actor_cast<journal_actor>(w.journal);
  const bool was_draining = s.policy.is_draining();
  s.policy = batch_policy(s.limits);
  s.n_parkings = 0;
  s.numbers->weak_drafts = false; // nothing is known of them yet
  if (was_draining) s.policy.refuse_new();
  s.unopened.clear();
  s.epoch = w.epoch;
  s.step = s.n_told = s.n_taken = 0;
  s.in_flight = s.ends_resume = false;
  s.is_resuming = true;
  s.numbers->step_sent_us = 0;
}

timed_scheduler::behavior_type scheduler_behavior(scheduler_pointer self, batch_limits limits,
                                                  std::shared_ptr<counters> numbers) {
  guard(self);
  auto& s = self->state;
  s.limits = limits;
  s.policy = batch_policy(limits);
  s.may_expire = limits.max_wait_s > 0;
  s.numbers = std::move(numbers);
  return {
      [=](turn_admit& turn) { admit(self, turn); },
      [=](const client_gone& gone) {
        const bool is_urgent = self->current_mailbox_element()->mid.is_urgent_message();
        lose_client(self, gone.turn, is_urgent);
      },
      [=](const turn_stopped& stopped) {
        self->state.policy.stop(stopped.id);
        pump(self);
      },
      [=](step_result& result) { take_result(self, result); },
      [=](const tokens_taken& t) {
        if (t.epoch != self->state.epoch) return;
        self->state.n_taken = t.number;
        pump(self);
      },
      [=](const stream_paused& p) {
        self->state.policy.set_paused(p.turn, true);
        show_gauges(self);
      },
      [=](const stream_resumed& r) {
        self->state.policy.set_paused(r.turn, false);
        pump(self);
      },
      [=](const wiring& w) { rewire(self, w); },
      [=](const turns_resumed& r) {
        auto& state = self->state;
        if (r.epoch != state.epoch) return;
        state.is_resuming = false;
        state.ends_resume = r.epoch > 1;
        pump(self);
      },
      [=](const draft_limit& d) { self->state.policy.set_max_drafts(d.n_tokens); },
      [=](const drain_begin& d) { return drain(self, d); },
      [=](status_atom) { return status(self); },
      [=](due_atom) {
        self->state.has_timer = false;
        look_at_waiting(self);
        pump(self);
      },
  };
}

} // namespace

scheduler_actor spawn_scheduler(caf::actor_system& system, const batch_limits& limits,
                                std::shared_ptr<counters> numbers) {
  return system.spawn(scheduler_behavior, limits, std::move(numbers));
}

} // namespace troupe
