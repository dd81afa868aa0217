// Ring step 5: gives each planned row its blocks and hands the step to every rank's engram_fetch.
#include "actors/kv_cache.h"

#include "actors/guard.h"
#include "actors/tier_census.h"
#include "actors/tier_disk.h"
#include "storage/check.h"

#include <caf/all.hpp>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace troupe {

namespace {

struct kv_state {
  static inline const char* name = "kv_cache";
  std::optional<kv_ledger> ledger;
  std::optional<tier_census> census;
  std::optional<step_plan> held; // it would do nothing but wait for the disk
  std::vector<caf::typed_response_promise<bool>> flushes;
  std::vector<engram_fetch_actor> next;
  std::shared_ptr<counters> numbers;
  std::vector<tier_disk_actor> disks;
  std::vector<prefix_index::pin> told_pins; // to the disks
  bool is_listed = true;
  uint64_t epoch = 0, last_step = 0, cache = 0;
  step_placed newest; // in case an engram_fetch dies with it
};
using kv_cache_pointer = kv_cache_actor::stateful_pointer<kv_state>;

void show(kv_state& s) {
  auto& n = *s.numbers;
  const auto& ledger = *s.ledger;
  n.blocks_used = ledger.pool().n_held();
  n.blocks_cached = ledger.pool().n_cached();
  n.snapshots = ledger.index().n_snapshots();
  n.blocks_in_memory = ledger.index().n_slots_used();
  n.disk_bytes = ledger.index().disk_bytes();
  if (ledger.index().writing_bytes() > 0 || !s.is_listed) return;
  for (auto& promise : std::exchange(s.flushes, {})) promise.deliver(true);
}

// Pins on disk are known to it, so that a restart knows them.
void tell_pins(kv_cache_pointer self) {
  auto& s = self->state;
  if (s.disks.empty() || !s.is_listed) return;
  auto pins = s.ledger->index().pins();
  const auto is_same = [](const auto& a, const auto& b) { return a.name == b.name && a.entry == b.entry; };
  if (std::equal(pins.begin(), pins.end(), s.told_pins.begin(), s.told_pins.end(), is_same)) return;
  tier_pins out{s.cache, {}};
  for (const auto& p : pins)
    if (p.entry != entry_id{}) out.pins.push_back({p.name, p.entry});
  for (const auto& d : s.disks) self->send(d, out);
  s.told_pins = std::move(pins);
}

void place(kv_cache_pointer self, step_plan&& plan) {
  auto& s = self->state;
  s.newest = s.ledger->place(std::move(plan), self->clock().now());
  show(s);
  for (const auto& n : s.next) self->send(n, s.newest);
}

void take_results(kv_cache_pointer self, const tier_done& done) {
  auto& s = self->state;
  if (done.cache != s.cache) return;
  for (const auto& r : done.results) {
    const auto is_done = s.census->take(r);
    if (!is_done) continue;
    if (r.is_write)
      s.ledger->write_done(r.entry, *is_done, self->clock().now());
    else
      s.ledger->read_done(r.entry, *is_done);
  }
  tell_pins(self);
  show(s);
  if (!s.held) return;
  step_plan plan = std::move(*s.held); // even if there is more to come: others may want to begin meanwhile
  s.held.reset();
  place(self, std::move(plan));
}

void take_list(kv_cache_pointer self, tier_listed& part) {
  auto& s = self->state;
  if (part.cache != s.cache) return;
  auto found = s.census->take(std::move(part));
  if (!found) return;
  s.is_listed = true;
  if (found->is_open) {
    std::vector<std::pair<std::string, entry_id>> pins;
    for (auto& p : found->pins) pins.emplace_back(std::move(p.name), p.entry);
    s.ledger->restore(std::move(found->entries), found->strays, found->next, pins);
    s.told_pins = s.ledger->index().pins();
  }
  show(s);
}

void begin_cache(kv_cache_pointer self, const wiring& w, const kv_cache_config& config) {
  auto& s = self->state;
  s.cache = w.cache;
  s.ledger.emplace(config);
  s.census.emplace(static_cast<int32_t>(w.rank_actors.size()));
  s.disks.clear();
  s.told_pins.clear();
  s.is_listed = w.disks.empty();
  for (size_t r = 0; r < w.disks.size(); ++r) {
    s.disks.push_back(caf::actor_cast<tier_disk_actor>(w.disks[r]));
    self->send(s.disks.back(), tier_wiring{w.cache, w.rank_actors[r], w.kv_cache});
  }
}

void rewire(kv_cache_pointer self, const wiring& w, const kv_cache_config& config) {
  auto& s = self->state;
  const auto before = std::exchange(s.next, {});
  for (const auto& e : w.engram_fetches) s.next.push_back(caf::actor_cast<engram_fetch_actor>(e));
  if (w.epoch == s.epoch) {
    const uint64_t newest = s.newest.plan.step; // 0: none yet; a held one is behind it
    for (size_t r = 0; r < s.next.size(); ++r) {
      if (s.next[r] == before[r]) continue;
      self->send(s.next[r], w); // its rank may not have heard of the epoch: the one before died with it in its mailbox
      self->send(s.next[r], fetch_resumed{s.epoch, newest > 0 ? newest - 1 : 0, s.ledger->in_flight()});
      if (newest > 0) self->send(s.next[r], s.newest);
    }
    return;
  }
  if (w.cache != s.cache)
    begin_cache(self, w, config);
  else
    s.ledger->end_all();
  s.epoch = w.epoch;
  s.last_step = 0;
  s.held.reset();
  s.newest = {};
  show(s);
  for (const auto& n : s.next) self->send(n, w);
}

pin_answer pin(kv_cache_pointer self, const pin_prefix& what) {
  auto& s = self->state;
  pin_answer out;
  if (auto refused = s.ledger->pin(what.name, {what.prompt, what.images, what.cache_salt})) {
    out.refused = std::move(*refused);
    return out;
  }
  for (const auto& p : s.ledger->index().pins())
    if (p.name == what.name) out.n_tokens = p.n_tokens;
  tell_pins(self);
  return out;
}

kv_cache_actor::behavior_type kv_cache_behavior(kv_cache_pointer self, kv_cache_config c,
                                                std::shared_ptr<counters> numbers) {
  guard(self);
  numbers->blocks = c.n_blocks;
  self->state.numbers = std::move(numbers);
  self->state.ledger.emplace(c);
  return {
      [=](step_plan& plan) {
        auto& s = self->state;
        if (plan.epoch != s.epoch) {
          ++s.numbers->dropped_messages;
          return;
        }
        TROUPE_CHECK(plan.step == ++s.last_step, "steps arrive in order, none is lost");
        if (s.ledger->must_wait(plan))
          s.held = std::move(plan);
        else
          place(self, std::move(plan));
      },
      [=](const wiring& w) { rewire(self, w, c); },
      [=](const miss_question& q) { return self->state.ledger->explain(q); },
      [=](const tier_done& done) { take_results(self, done); },
      [=](tier_listed& part) { take_list(self, part); },
      [=](const pin_prefix& what) { return pin(self, what); },
      [=](const unpin_prefix& what) {
        const bool was_there = self->state.ledger->unpin(what.name);
        tell_pins(self);
        return was_there;
      },
      [=](pins_atom) {
        pin_list out;
        for (const auto& p : self->state.ledger->index().pins())
          out.prefixes.push_back({p.name, p.n_tokens, p.n_blocks, p.entry != entry_id{}});
        return out;
      },
      [=](flush_atom) {
        auto promise = self->make_response_promise<bool>();
        self->state.flushes.push_back(promise);
        show(self->state);
        return promise;
      },
  };
}

} // namespace

kv_cache_actor spawn_kv_cache(caf::actor_system& system, const kv_cache_config& config,
                              std::shared_ptr<counters> numbers) {
  return system.spawn(kv_cache_behavior, config, std::move(numbers));
}

} // namespace troupe
