// Ring step 5: gives each planned row its blocks and hands the step to every rank's engram_fetch.
#include "actors/kv_cache.h"

#include "actors/guard.h"
#include "storage/check.h"

#include <caf/all.hpp>

#include <optional>

namespace troupe {

namespace {

struct kv_state {
  static inline const char* name = "kv_cache";
  std::optional<kv_ledger> ledger;
  uint64_t epoch = 0, last_step = 0;
};

void show(const kv_ledger& ledger, counters& numbers) {
  numbers.blocks_used = ledger.pool().n_held();
  numbers.blocks_cached = ledger.pool().n_cached();
  numbers.snapshots = ledger.index().n_snapshots();
}

kv_cache_actor::behavior_type behave(kv_cache_actor::stateful_pointer<kv_state> self, kv_cache_config c,
                                     std::vector<engram_fetch_actor> next, std::shared_ptr<counters> numbers) {
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
        const int64_t asked = s.ledger->n_asked(), found = s.ledger->n_found();
        step_placed placed = s.ledger->place(std::move(plan));
        numbers->cache_queries += s.ledger->n_asked() - asked;
        numbers->cache_hits += s.ledger->n_found() - found;
        show(*s.ledger, *numbers);
        for (size_t i = 0; i + 1 < next.size(); ++i) self->send(next[i], placed);
        self->send(next.back(), std::move(placed));
      },
      [=](const wiring& w) {
        auto& s = self->state;
        s.epoch = w.epoch;
        s.last_step = 0;
        s.ledger.emplace(c);
        show(*s.ledger, *numbers);
      },
      [=](const miss_question& q) { return self->state.ledger->explain(q); },
  };
}

} // namespace

kv_cache_actor spawn_kv_cache(caf::actor_system& system, const kv_cache_config& config,
                              std::vector<engram_fetch_actor> next, std::shared_ptr<counters> numbers) {
  TROUPE_CHECK(!next.empty(), "there is at least one rank");
  return system.spawn(behave, config, std::move(next), std::move(numbers));
}

} // namespace troupe
