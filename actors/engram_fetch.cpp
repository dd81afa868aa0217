// Ring step 6: reads the side-table rows of a placed step into the staging slot and hands the step to its rank.
#include "actors/engram_fetch.h"

#include "actors/guard.h"
#include "storage/check.h"

#include <caf/all.hpp>

namespace troupe {

namespace {

struct fetch_state {
  static inline const char* name = "engram_fetch";
  std::unique_ptr<table_reader> tables;
  std::vector<sequence_rows> rows;
  uint64_t epoch = 0, last_step = 0;
};

// Returns why the rows could not be read, empty when they are in the staging slot.
std::string read_rows(fetch_state& s, const step_plan& plan, staging_buffer& records, int32_t slot, counters& numbers) {
  if (records.record_bytes() == 0 || plan.rows.empty()) return {};
  s.rows.clear();
  int64_t n_rows = 0;
  for (const auto& r : plan.rows) {
    auto& row = s.rows.emplace_back();
    row.slot = r.slot;
    row.start = r.start;
    row.tokens = r.tokens;
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
        ready.failure = read_rows(s, placed.plan, *records, ready.staging, *numbers);
        ready.placed = std::move(placed);
        self->send(next, std::move(ready));
      },
      [=](const wiring& w) {
        self->state.epoch = w.epoch;
        self->state.last_step = 0;
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
