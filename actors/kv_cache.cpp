// Ring step 5: gives each planned row its blocks and hands the step to every rank's engram_fetch.
#include "actors/kv_cache.h"

#include "actors/guard.h"
#include "storage/check.h"

#include <caf/all.hpp>

#include <optional>
#include <utility>
#include <vector>

namespace troupe {

namespace {

struct kv_state {
  static inline const char* name = "kv_cache";
  std::optional<kv_ledger> ledger;
  std::vector<engram_fetch_actor> next;
  uint64_t epoch = 0, last_step = 0, cache = 0;
  step_placed newest; // in case an engram_fetch dies with it
};
using self_pointer = kv_cache_actor::stateful_pointer<kv_state>;

void show(const kv_ledger& ledger, counters& numbers) {
  numbers.blocks_used = ledger.pool().n_held();
  numbers.blocks_cached = ledger.pool().n_cached();
  numbers.snapshots = ledger.index().n_snapshots();
}

void place(self_pointer self, step_plan& plan, counters& numbers) {
  auto& s = self->state;
  const int64_t asked = s.ledger->n_asked(), found = s.ledger->n_found();
  s.newest = s.ledger->place(std::move(plan));
  numbers.cache_queries += s.ledger->n_asked() - asked;
  numbers.cache_hits += s.ledger->n_found() - found;
  show(*s.ledger, numbers);
  for (const auto& n : s.next) self->send(n, s.newest);
}

void rewire(self_pointer self, const wiring& w, const kv_cache_config& config, counters& numbers) {
  auto& s = self->state;
  const auto before = std::exchange(s.next, {});
  for (const auto& e : w.engram_fetches) s.next.push_back(caf::actor_cast<engram_fetch_actor>(e));
  if (w.epoch == s.epoch) {
    for (size_t r = 0; r < s.next.size(); ++r) {
      if (s.next[r] == before[r]) continue;
      self->send(s.next[r], fetch_resumed{s.epoch, s.last_step > 0 ? s.last_step - 1 : 0, s.ledger->in_flight()});
      if (s.last_step > 0) self->send(s.next[r], s.newest);
    }
    return;
  }
  if (w.cache != s.cache)
    s.ledger.emplace(config);
  else
    s.ledger->end_all();
  s.epoch = w.epoch;
  s.cache = w.cache;
  s.last_step = 0;
  s.newest = {};
  show(*s.ledger, numbers);
  for (const auto& n : s.next) self->send(n, w);
}

kv_cache_actor::behavior_type behave(self_pointer self, kv_cache_config c, std::shared_ptr<counters> numbers) {
  guard(self);
  self->state.ledger.emplace(c);
  numbers->blocks = c.n_blocks;
  return {
      [=](step_plan& plan) {
        auto& s = self->state;
        if (plan.epoch != s.epoch) {
          ++numbers->dropped_messages;
          return;
        }
        TROUPE_CHECK(plan.step == ++s.last_step, "steps arrive in order, none is lost");
        place(self, plan, *numbers);
      },
      [=](const wiring& w) { rewire(self, w, c, *numbers); },
      [=](const miss_question& q) { return self->state.ledger->explain(q); },
  };
}

} // namespace

kv_cache_actor spawn_kv_cache(caf::actor_system& system, const kv_cache_config& config,
                              std::shared_ptr<counters> numbers) {
  return system.spawn(behave, config, std::move(numbers));
}

} // namespace troupe
