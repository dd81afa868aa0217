// A rank without a model (`--backend null`): every decoding sequence gets a token of a fixed text at a set rate.
#include "actors/guard.h"
#include "actors/null_text.h"
#include "actors/rank.h"
#include "actors/scheduler.h"
#include "actors/step_carrier.h"
#include "storage/check.h"

#include <caf/all.hpp>

#include <chrono>
#include <optional>
#include <thread>

namespace troupe {

namespace {

using clock = std::chrono::steady_clock;
constexpr auto max_lag = std::chrono::milliseconds(20);   // a late timer is caught up with as long as it is this late
constexpr auto max_sleep = std::chrono::milliseconds(50); // of the thread, which answers to nothing meanwhile

struct null_state {
  static inline const char* name = "null_rank";
  std::optional<null_text> text;
  scheduler_actor scheduler;
  uint64_t epoch = 0, last_step = 0;
  clock::time_point due{};
  std::optional<step_carrier> carrier; // if it has a thread to itself
  step_result waiting;                 // sent when due
};

step_result answer(null_text& text, const step_placed& placed) {
  for (const auto& e : placed.plan.ended) text.end(e.id);
  for (const auto& b : placed.plan.started) text.begin(b.id, b.generated.size());
  step_result result{placed.plan.epoch, placed.plan.step, {}, 0, 0};
  result.results.reserve(placed.plan.rows.size());
  for (const auto& r : placed.plan.rows) {
    auto& out = result.results.emplace_back();
    out.id = r.id;
    out.n_tokens = r.start + static_cast<int64_t>(r.tokens.size());
    if (r.samples) out.tokens.emplace_back().id = text.next(r.id);
  }
  return result;
}

using paced_rank = rank_actor::extend<caf::reacts_to<due_atom>>; // due_atom: from itself

using null_rank_pointer = paced_rank::stateful_pointer<null_state>;

void say(null_rank_pointer self, step_result&& result) {
  auto& s = self->state;
  s.text->sent(self->clock().now());
  if (s.carrier)
    s.carrier->send(self, s.scheduler, std::move(result));
  else
    self->send(s.scheduler, std::move(result));
}

// Now or when it is due.
void pace(null_rank_pointer self, step_result&& result, double per_s) {
  auto& s = self->state;
  const auto now = self->clock().now();
  const auto gap = std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(1 / per_s));
  s.due = s.due + gap < now - max_lag ? now + gap : s.due + gap;
  const auto wait = std::max(s.due - now, clock::duration::zero());
  if (s.carrier && wait <= max_sleep) { // as a real rank has its thread for the time of a step
    std::this_thread::sleep_for(wait);
    say(self, std::move(result));
    return;
  }
  s.waiting = std::move(result);
  self->delayed_send(self, wait, due_atom_v);
}

paced_rank::behavior_type null_rank_behavior(null_rank_pointer self, null_rank_config config,
                                             std::shared_ptr<counters> numbers, bool detached) {
  guard(self);
  self->state.text.emplace(config.text, config.stamps);
  if (detached) self->state.carrier.emplace(self->system());
  return {
      [=](const step_ready& ready) {
        auto& s = self->state;
        const auto& plan = ready.placed.plan;
        if (plan.epoch != s.epoch) {
          ++numbers->dropped_messages;
          return;
        }
        if (plan.step == s.last_step) return; // again, from a new engram_fetch
        TROUPE_CHECK(plan.step == ++s.last_step, "steps arrive in order, none is lost");
        auto result = answer(*s.text, ready.placed);
        if (result.results.empty() || config.tokens_per_s <= 0)
          say(self, std::move(result));
        else
          pace(self, std::move(result), config.tokens_per_s);
      },
      [=](due_atom) {
        auto& s = self->state;
        if (s.waiting.epoch == s.epoch) say(self, std::move(s.waiting));
      },
      [](const image_piece&) {},
      [](const tier_arrived&) {},
      [](const tier_done&) {},
      [=](const wiring& w) {
        auto& s = self->state;
        s.epoch = w.epoch;
        s.last_step = 0;
        s.text->clear();
        s.scheduler = caf::actor_cast<scheduler_actor>(w.scheduler);
      },
      [](load_atom) { return true; },
  };
}

} // namespace

rank_actor spawn_null_rank(caf::actor_system& system, null_rank_config config, std::shared_ptr<counters> numbers,
                           bool detached) {
  if (detached) return system.spawn<caf::detached>(null_rank_behavior, std::move(config), std::move(numbers), true);
  return system.spawn(null_rank_behavior, std::move(config), std::move(numbers), false);
}

} // namespace troupe
