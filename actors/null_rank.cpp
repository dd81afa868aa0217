// A rank without a model (`--backend null`): every decoding sequence gets a token of a fixed text at a set rate.
#include "actors/guard.h"
#include "actors/rank.h"
#include "actors/scheduler.h"
#include "storage/check.h"

#include <caf/all.hpp>

#include <chrono>
#include <deque>
#include <unordered_map>

namespace troupe {

namespace {

using clock = std::chrono::steady_clock;
constexpr auto max_lag = std::chrono::milliseconds(20); // a late timer is caught up with as long as it is this late

struct null_state {
  static inline const char* name = "null_rank";
  std::unordered_map<sequence_id, size_t> next_token; // index in the text
  scheduler_actor scheduler;
  uint64_t epoch = 0, last_step = 0;
  clock::time_point due{};
  step_result waiting; // sent when due
};

step_result answer(null_state& s, const null_rank_config& config, const step_placed& placed) {
  for (const auto& e : placed.plan.ended) s.next_token.erase(e.id);
  for (const auto& b : placed.plan.started) s.next_token[b.id] = b.generated.size() % config.text.size();
  step_result result{placed.plan.epoch, placed.plan.step, {}, 0, 0};
  result.results.reserve(placed.plan.rows.size());
  for (const auto& r : placed.plan.rows) {
    auto& out = result.results.emplace_back();
    out.id = r.id;
    out.n_tokens = r.start + static_cast<int64_t>(r.tokens.size());
    if (!r.samples) continue;
    auto& at = s.next_token[r.id];
    out.tokens.emplace_back().id = config.text[at];
    at = at + 1 == config.text.size() ? 0 : at + 1;
  }
  return result;
}

using paced_rank = rank_actor::extend<caf::reacts_to<due_atom>>; // due_atom: from itself

paced_rank::behavior_type behave(paced_rank::stateful_pointer<null_state> self, null_rank_config config,
                                 std::shared_ptr<counters> numbers) {
  guard(self);
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
        auto result = answer(s, config, ready.placed);
        if (result.results.empty() || config.tokens_per_s <= 0) {
          self->send(s.scheduler, std::move(result));
          return;
        }
        const auto now = self->clock().now();
        const auto gap =
            std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(1 / config.tokens_per_s));
        s.due = s.due + gap < now - max_lag ? now + gap : s.due + gap;
        s.waiting = std::move(result);
        self->delayed_send(self, std::max(s.due - now, clock::duration::zero()), due_atom_v);
      },
      [=](due_atom) {
        auto& s = self->state;
        if (s.waiting.epoch == s.epoch) self->send(s.scheduler, std::move(s.waiting));
      },
      [](const image_piece&) {},
      [](const tier_arrived&) {},
      [=](const wiring& w) {
        auto& s = self->state;
        s.epoch = w.epoch;
        s.last_step = 0;
        s.next_token.clear();
        s.scheduler = caf::actor_cast<scheduler_actor>(w.scheduler);
      },
      [](load_atom) { return true; },
  };
}

} // namespace

rank_actor spawn_null_rank(caf::actor_system& system, null_rank_config config, std::shared_ptr<counters> numbers) {
  TROUPE_CHECK(!config.text.empty(), "there is a text to emit");
  return system.spawn(behave, std::move(config), std::move(numbers));
}

} // namespace troupe
