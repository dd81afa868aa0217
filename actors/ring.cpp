// Spawns the ring backwards, since each actor is given the next one.
#include "actors/ring.h"

#include "storage/check.h"

#include <caf/all.hpp>

namespace troupe {

std::vector<caf::actor> ring::all() const {
  std::vector<caf::actor> out{caf::actor_cast<caf::actor>(journal), caf::actor_cast<caf::actor>(scheduler),
                              caf::actor_cast<caf::actor>(kv_cache)};
  for (const auto& e : engram_fetches) out.push_back(caf::actor_cast<caf::actor>(e));
  for (const auto& r : ranks) out.push_back(caf::actor_cast<caf::actor>(r));
  for (const auto& d : disks) out.push_back(caf::actor_cast<caf::actor>(d));
  out.push_back(caf::actor_cast<caf::actor>(fan_out));
  return out;
}

void spawn_fetch(caf::actor_system& system, const ring_config& config, std::shared_ptr<counters> numbers, size_t rank,
                 ring& out) {
  engram_fetch_config fetch;
  fetch.max_rows = config.limits.max_rows_and_drafts();
  const auto r = static_cast<int32_t>(rank);
  if (config.open_tables) fetch.open = [open = config.open_tables, r] { return open(r); };
  const bool blocks = config.detached && config.open_tables;
  out.engram_fetches[rank] =
      spawn_engram_fetch(system, std::move(fetch), out.records[rank], out.ranks[rank], std::move(numbers), blocks);
}

void spawn_group(caf::actor_system& system, const ring_config& config, std::shared_ptr<counters> numbers, ring& out) {
  if (config.begin_group) config.begin_group();
  out.ranks.clear();
  out.records.clear();
  for (int32_t r = 0; r < config.n_ranks; ++r) {
    out.records.push_back(std::make_shared<staging_buffer>()); // lent to both; they end in no fixed order
    if (config.null) {
      out.ranks.push_back(spawn_null_rank(system, *config.null, numbers, config.detached));
      continue;
    }
    rank_config c{r,
                  config.n_ranks,
                  [make = config.make_rank, r] { return make(r); },
                  config.suppressed,
                  config.limits.eos,
                  config.limits.drafts.block > 0,
                  config.rows_deadline};
    out.ranks.push_back(spawn_rank(system, std::move(c), out.records.back(), numbers, config.detached));
  }
  out.engram_fetches.resize(out.ranks.size());
  for (size_t r = 0; r < out.ranks.size(); ++r) spawn_fetch(system, config, numbers, r, out);
}

void spawn_disk(caf::actor_system& system, const ring_config& config, std::shared_ptr<counters> numbers, size_t rank,
                ring& out) {
  tier_disk_config disk = *config.disk;
  disk.rank = static_cast<int32_t>(rank);
  disk.n_ranks = config.n_ranks;
  out.disks[rank] = spawn_tier_disk(system, std::move(disk), std::move(numbers), config.detached);
}

kv_cache_actor spawn_kv_cache(caf::actor_system& system, const ring_config& config, std::shared_ptr<counters> numbers) {
  kv_cache_config kv = config.prefix;
  kv.n_blocks = config.limits.n_blocks;
  kv.block_tokens = config.limits.block_tokens;
  return spawn_kv_cache(system, kv, std::move(numbers));
}

ring spawn_ring(caf::actor_system& system, const ring_config& config, std::shared_ptr<const text_side> text,
                std::shared_ptr<counters> numbers) {
  TROUPE_CHECK(config.n_ranks > 0 && (config.null || config.make_rank), "a ring has ranks");
  ring out;
  out.journal = spawn_journal(system, numbers);
  out.fan_out = spawn_fan_out(system, std::move(text), numbers);
  out.scheduler = spawn_scheduler(system, config.limits, numbers);
  spawn_group(system, config, numbers, out);
  out.kv_cache = spawn_kv_cache(system, config, numbers);
  if (config.disk) out.disks.resize(out.ranks.size());
  for (size_t r = 0; r < out.disks.size(); ++r) spawn_disk(system, config, numbers, r, out);
  return out;
}

wiring to_wiring(const ring& r, const generations& g) {
  const auto handle = [](const auto& a) { return caf::actor_cast<caf::strong_actor_ptr>(a); };
  wiring w{g.epoch, g.cache, g.ranks, handle(r.journal), handle(r.scheduler), handle(r.kv_cache), handle(r.fan_out),
           {},      {},      {}};
  for (const auto& e : r.engram_fetches) w.engram_fetches.push_back(handle(e));
  for (const auto& a : r.ranks) w.rank_actors.push_back(handle(a));
  for (const auto& d : r.disks) w.disks.push_back(handle(d));
  return w;
}

// fan_out comes last: it tells the journal, which tells the scheduler, and each knows of the epoch by then.
void wire(const ring& r, const generations& g) {
  const auto w = to_wiring(r, g);
  caf::anon_send(r.journal, w);
  caf::anon_send(r.kv_cache, w);
  caf::anon_send(r.scheduler, w);
  caf::anon_send(r.fan_out, w);
}

} // namespace troupe
