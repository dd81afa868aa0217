// Ring step 6: reads the side-table rows of a placed step into the staging slot and hands the step to its rank.
#include "actors/engram_fetch.h"

#include "actors/guard.h"
#include "storage/check.h"

#include <caf/all.hpp>

#include <unordered_map>

namespace troupe {

namespace {

struct fetch_state {
  static inline const char* name = "engram_fetch";
  std::unique_ptr<table_reader> tables;
  std::vector<sequence_rows> rows;
  std::unordered_map<sequence_id, std::vector<image_span>> images; // of those that have any: their rows are dead
  uint64_t epoch = 0, last_step = 0;
};

void follow_images(fetch_state& s, const step_plan& plan) {
  for (const auto& e : plan.ended) s.images.erase(e.id);
  for (const auto& start : plan.started)
    for (const auto& i : start.images) s.images[start.id].push_back({i.start, i.grid_h, i.grid_w, i.image});
}

// Returns why the rows could not be read, empty when they are in the staging slot.
std::string read_rows(fetch_state& s, const step_placed& placed, staging_buffer& records, int32_t slot,
                      counters& numbers) {
  const step_plan& plan = placed.plan;
  if (records.record_bytes() == 0 || plan.rows.empty()) return {};
  s.rows.clear();
  int64_t n_rows = 0;
  for (const auto& r : plan.rows) {
    auto& row = s.rows.emplace_back();
    row.slot = r.slot;
    row.start = r.start;
    row.tokens = r.tokens;
    if (const auto images = s.images.find(r.id); images != s.images.end()) row.images = images->second;
    for (const auto& c : placed.cached)
      if (c.id == r.id) row.before = c.before;
    n_rows += static_cast<int64_t>(r.tokens.size());
  }
  try {
    s.tables->read(s.rows, records.slot(slot, n_rows));
  } catch (const std::exception& e) {
    spdlog::error("engram_fetch: {}", e.what());
    return e.what();
  }
  numbers.engram_rows += n_rows;
  numbers.engram_bytes += n_rows * records.record_bytes();
  return {};
}

engram_fetch_actor::behavior_type behave(engram_fetch_actor::stateful_pointer<fetch_state> self,
                                         engram_fetch_config config, std::shared_ptr<staging_buffer> records,
                                         rank_actor next, std::shared_ptr<counters> numbers) {
  guard(self);
  return {
      [=](step_placed& placed) {
        auto& s = self->state;
        if (placed.plan.epoch != s.epoch) {
          ++numbers->dropped_messages;
          return;
        }
        TROUPE_CHECK(placed.plan.step == ++s.last_step, "steps arrive in order, none is lost");
        step_ready ready;
        ready.staging = static_cast<int32_t>(s.last_step % staging_buffer::n_slots);
        follow_images(s, placed.plan);
        ready.failure = read_rows(s, placed, *records, ready.staging, *numbers);
        ready.placed = std::move(placed);
        self->send(next, std::move(ready));
      },
      [=](const wiring& w) {
        self->state.epoch = w.epoch;
        self->state.last_step = 0;
        self->state.images.clear();
      },
      [=](load_atom) -> caf::result<bool> {
        try {
          if (config.open) self->state.tables = config.open();
          if (self->state.tables) records->resize(self->state.tables->record_bytes_per_token(), config.max_rows);
          return true;
        } catch (const std::exception& e) { return broken(e.what()); }
      },
  };
}

} // namespace

engram_fetch_actor spawn_engram_fetch(caf::actor_system& system, engram_fetch_config config,
                                      std::shared_ptr<staging_buffer> records, rank_actor next,
                                      std::shared_ptr<counters> numbers, bool detached) {
  if (detached)
    return system.spawn<caf::detached>(behave, std::move(config), std::move(records), std::move(next),
                                       std::move(numbers));
  return system.spawn(behave, std::move(config), std::move(records), std::move(next), std::move(numbers));
}

} // namespace troupe
