// Ring step 5: gives each planned row its blocks and hands the step to every rank's engram_fetch.
#include "actors/kv_cache.h"

#include "actors/block_pool.h"
#include "actors/guard.h"
#include "actors/prefix_index.h"
#include "storage/check.h"

#include <caf/all.hpp>

namespace troupe {

namespace {

struct kv_state {
  static inline const char* name = "kv_cache";
  block_pool pool;
  prefix_index index;
  uint64_t epoch = 0, last_step = 0;
};

step_placed place(kv_state& s, step_plan&& plan) {
  step_placed placed;
  for (const auto& e : plan.ended)
    if (e.slot >= 0) s.pool.release(e.id); // one that ended before its first plan holds nothing
  for (const auto& b : plan.started) {
    TROUPE_CHECK(s.pool.open(b.id), "a sequence starts once");
    std::span<const int32_t> prompt;
    for (const auto& r : plan.rows)
      if (r.id == b.id) prompt = r.tokens;
    placed.cached.push_back({b.id, s.index.find(prompt, b.cache_salt)});
  }
  for (const auto& r : plan.rows) {
    auto fresh = s.pool.extend(r.id, r.start + static_cast<int64_t>(r.tokens.size()));
    TROUPE_CHECK(fresh.has_value(), "the scheduler reserves a sequence's blocks before it starts");
    if (!fresh->empty()) placed.blocks.push_back({r.id, std::move(*fresh)});
  }
  placed.plan = std::move(plan);
  return placed;
}

kv_cache_actor::behavior_type behave(kv_cache_actor::stateful_pointer<kv_state> self, kv_cache_config c,
                                     std::vector<engram_fetch_actor> next, std::shared_ptr<counters> numbers) {
  guard(self);
  self->state.pool = block_pool{c.n_blocks, c.block_tokens};
  numbers->blocks = c.n_blocks;
  return {
      [=](step_plan& plan) {
        auto& s = self->state;
        if (plan.epoch != s.epoch) {
          ++numbers->dropped_messages;
          return;
        }
        TROUPE_CHECK(plan.step == ++s.last_step, "steps arrive in order, none is lost");
        step_placed placed = place(s, std::move(plan));
        numbers->blocks_used = s.pool.n_held();
        for (size_t i = 0; i + 1 < next.size(); ++i) self->send(next[i], placed);
        self->send(next.back(), std::move(placed));
      },
      [=](const wiring& w) {
        auto& s = self->state;
        s.epoch = w.epoch;
        s.last_step = 0;
        s.pool = block_pool{c.n_blocks, c.block_tokens};
      },
  };
}

} // namespace

kv_cache_actor spawn_kv_cache(caf::actor_system& system, const kv_cache_config& config,
                              std::vector<engram_fetch_actor> next, std::shared_ptr<counters> numbers) {
  TROUPE_CHECK(!next.empty(), "there is at least one rank");
  return system.spawn(behave, config, std::move(next), std::move(numbers));
}

} // namespace troupe
