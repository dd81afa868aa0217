// Spawns the ring backwards, since each actor is given the next one.
#include "actors/ring.h"

#include "storage/check.h"

#include <caf/all.hpp>

namespace troupe {

std::vector<caf::actor> ring::all() const {
  std::vector<caf::actor> out{caf::actor_cast<caf::actor>(scheduler), caf::actor_cast<caf::actor>(kv_cache)};
  for (const auto& e : engram_fetches) out.push_back(caf::actor_cast<caf::actor>(e));
  for (const auto& r : ranks) out.push_back(caf::actor_cast<caf::actor>(r));
  out.push_back(caf::actor_cast<caf::actor>(fan_out));
  return out;
}

ring spawn_ring(caf::actor_system& system, const ring_config& config, std::shared_ptr<const text_side> text,
                std::shared_ptr<counters> numbers) {
  TROUPE_CHECK(config.n_ranks > 0 && (config.null || config.make_rank), "a ring has ranks");
  ring out;
  out.fan_out = spawn_fan_out(system, std::move(text), numbers);
  out.scheduler = spawn_scheduler(system, config.limits, out.fan_out, numbers);
  for (int32_t r = 0; r < config.n_ranks; ++r) {
    auto records = std::make_shared<staging_buffer>(); // lent to both; they end in no fixed order
    if (config.null) {
      out.ranks.push_back(spawn_null_rank(system, *config.null, numbers));
    } else {
      rank_config c{r,
                    config.n_ranks,
                    [make = config.make_rank, r] { return make(r); },
                    config.suppressed,
                    config.limits.eos,
                    config.limits.drafts.block > 0};
      out.ranks.push_back(spawn_rank(system, std::move(c), records, numbers, config.detached));
    }
    engram_fetch_config fetch;
    fetch.max_rows = config.limits.max_rows_and_drafts();
    if (config.open_tables) fetch.open = [open = config.open_tables, r] { return open(r); };
    const bool blocks = config.detached && config.open_tables;
    out.engram_fetches.push_back(
        spawn_engram_fetch(system, std::move(fetch), std::move(records), out.ranks.back(), numbers, blocks));
  }
  kv_cache_config kv = config.prefix;
  kv.n_blocks = config.limits.n_blocks;
  kv.block_tokens = config.limits.block_tokens;
  out.kv_cache = spawn_kv_cache(system, kv, out.engram_fetches, numbers);
  return out;
}

void wire(const ring& r, uint64_t epoch) {
  const auto scheduler = caf::actor_cast<caf::strong_actor_ptr>(r.scheduler);
  for (size_t i = 0; i < r.ranks.size(); ++i) caf::anon_send(r.ranks[i], wiring{epoch, i == 0 ? scheduler : nullptr});
  for (const auto& e : r.engram_fetches) caf::anon_send(e, wiring{epoch, nullptr});
  caf::anon_send(r.kv_cache, wiring{epoch, nullptr});
  caf::anon_send(r.fan_out, wiring{epoch, scheduler});
  caf::anon_send(r.scheduler, wiring{epoch, caf::actor_cast<caf::strong_actor_ptr>(r.kv_cache)});
}

} // namespace troupe
