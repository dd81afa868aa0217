// Ring step 6: hands a placed step to its rank and reads the side-table rows of it into a staging slot.
#include "actors/engram_fetch.h"

#include "actors/guard.h"
#include "storage/check.h"

#include <caf/all.hpp>

#include <algorithm>
#include <optional>
#include <system_error>
#include <unordered_map>

namespace troupe {

namespace {

struct fetch_state {
  static inline const char* name = "engram_fetch";
  engram_fetch_config config;
  std::shared_ptr<staging_buffer> records; // lent to the rank too
  std::shared_ptr<counters> numbers;
  std::unique_ptr<table_reader> tables;
  std::vector<sequence_rows> rows;
  std::unordered_map<sequence_id, std::vector<image_span>> images; // of those that have any: their rows are dead
  std::unordered_map<sequence_id, sequence_tail> tails; // of those that an actor before this one has read for
  uint64_t epoch = 0, last_step = 0;
  bool reads_late = false; // behind handing a step on
};

void open_tables(fetch_state& s) {
  if (s.config.open) s.tables = s.config.open();
  if (s.tables && s.records->record_bytes() == 0)
    s.records->resize(s.tables->record_bytes_per_token(), s.config.max_rows);
}

void follow_images(fetch_state& s, sequence_id id, std::span<const image_place> images) {
  s.images.erase(id);
  for (const auto& i : images) s.images[id].push_back({i.start, i.grid_h, i.grid_w, i.image});
}

// The tokens of a tail that lie before `start`; what a step had fed and takes back again is left out.
std::span<const int32_t> before(const sequence_tail& tail, int64_t start) {
  const int64_t n = static_cast<int64_t>(tail.tokens.size()) - (tail.end - start);
  return std::span(tail.tokens).first(static_cast<size_t>(std::clamp<int64_t>(n, 0, tail.tokens.size())));
}

bool is_timeout(const std::exception& e) {
  const auto* of_system = dynamic_cast<const std::system_error*>(&e);
  return of_system != nullptr && of_system->code() == std::errc::timed_out;
}

// What could not be read, by sequence; the other sequences' rows are in the staging slot, each in its place. Those of
// the failed ones become zero: a step that is under way computes with them, and what it gives is thrown away. Behind a
// read that hangs none is tried: their step has waited long enough.
std::vector<sequence_failure> read_each(fetch_state& s, const step_plan& plan, std::span<std::byte> to) {
  std::vector<sequence_failure> failures;
  std::optional<std::string> hangs;
  size_t at = 0;
  for (size_t i = 0; i < s.rows.size(); ++i) {
    const size_t n = s.rows[i].tokens.size() * static_cast<size_t>(s.records->record_bytes());
    const auto mine = to.subspan(at, n);
    at += n;
    std::string why;
    try {
      if (!hangs) {
        s.tables->read(std::span(s.rows).subspan(i, 1), mine);
        continue;
      }
      why = *hangs;
    } catch (const std::exception& e) {
      why = e.what();
      spdlog::error("engram_fetch: {}", why);
      if (is_timeout(e)) hangs = why;
    }
    std::fill(mine.begin(), mine.end(), std::byte{});
    failures.push_back({plan.rows[i].id, why, 503});
  }
  return failures;
}

std::vector<sequence_failure> fail_all(const step_plan& plan, const std::string& why) {
  std::vector<sequence_failure> failures;
  for (const auto& r : plan.rows) failures.push_back({r.id, why, 503});
  return failures;
}

int64_t lay_out_rows(fetch_state& s, const step_placed& placed) {
  s.rows.clear();
  int64_t n_rows = 0;
  for (const auto& r : placed.plan.rows) {
    auto& row = s.rows.emplace_back();
    row.slot = r.slot;
    row.start = r.start;
    row.tokens = r.tokens;
    if (const auto images = s.images.find(r.id); images != s.images.end()) row.images = images->second;
    if (const auto tail = s.tails.find(r.id); tail != s.tails.end()) row.before = before(tail->second, r.start);
    for (const auto& c : placed.cached)
      if (c.id == r.id) row.before = c.before;
    n_rows += static_cast<int64_t>(r.tokens.size());
  }
  return n_rows;
}

std::vector<sequence_failure> read_rows(fetch_state& s, const step_placed& placed, int32_t slot) {
  const step_plan& plan = placed.plan;
  if (plan.rows.empty()) return {};
  if (!s.tables && s.config.open) { // they could not be opened when this actor began
    try {
      open_tables(s);
    } catch (const std::exception& e) {
      spdlog::error("engram_fetch: {}", e.what());
      return fail_all(plan, e.what());
    }
  }
  if (!s.tables || s.records->record_bytes() == 0) return {};
  const int64_t n_rows = lay_out_rows(s, placed);
  const auto to = s.records->slot(slot, n_rows);
  s.numbers->engram_rows += n_rows;
  s.numbers->engram_bytes += n_rows * s.records->record_bytes();
  std::vector<sequence_failure> failures;
  try {
    s.tables->read(s.rows, to);
  } catch (const std::exception& e) {
    if (is_timeout(e)) {
      spdlog::error("engram_fetch: {}", e.what());
      std::fill(to.begin(), to.end(), std::byte{});
      failures = fail_all(plan, e.what());
    } else {
      failures = read_each(s, plan, to);
    }
  }
  if (!s.tails.empty())
    for (const auto& r : plan.rows) s.tails.erase(r.id);
  return failures;
}

void take_step(engram_fetch_actor::stateful_pointer<fetch_state> self, const rank_actor& next, step_placed& placed) {
  auto& s = self->state;
  if (placed.plan.epoch != s.epoch) {
    ++s.numbers->dropped_messages;
    return;
  }
  TROUPE_CHECK(placed.plan.step == ++s.last_step, "steps arrive in order, none is lost");
  if (s.reads_late) self->send(next, step_ready{placed});
  const int32_t slot = s.records->take_slot();
  for (const auto& e : placed.plan.ended) {
    s.images.erase(e.id);
    s.tails.erase(e.id);
  }
  for (const auto& start : placed.plan.started) follow_images(s, start.id, start.images);
  s.records->finish(s.epoch, s.last_step, slot, read_rows(s, placed, slot));
  if (!s.reads_late) self->send(next, step_ready{std::move(placed)});
}

engram_fetch_actor::behavior_type engram_fetch_behavior(engram_fetch_actor::stateful_pointer<fetch_state> self,
                                                        engram_fetch_config config,
                                                        std::shared_ptr<staging_buffer> records, rank_actor next,
                                                        std::shared_ptr<counters> numbers, bool detached) {
  guard(self);
  self->state.config = std::move(config);
  self->state.records = std::move(records);
  self->state.numbers = std::move(numbers);
  self->state.reads_late = detached && self->state.config.open; // without tables there is nothing to wait for
  return {
      [=](step_placed& placed) { take_step(self, next, placed); },
      [=](const wiring& w) {
        auto& s = self->state;
        s.epoch = w.epoch;
        s.last_step = 0;
        s.images.clear();
        s.tails.clear();
        s.records->begin_epoch(w.epoch);
        self->send(next, w); // behind every step of older epochs
      },
      [=](const fetch_resumed& f) {
        auto& s = self->state;
        s.epoch = f.epoch;
        s.last_step = f.step;
        for (const auto& q : f.sequences) {
          follow_images(s, q.id, q.images);
          s.tails[q.id] = q;
        }
      },
      [=](load_atom) -> caf::result<bool> {
        try {
          open_tables(self->state);
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
    return system.spawn<caf::detached>(engram_fetch_behavior, std::move(config), std::move(records), std::move(next),
                                       std::move(numbers), true);
  return system.spawn(engram_fetch_behavior, std::move(config), std::move(records), std::move(next), std::move(numbers),
                      false);
}

} // namespace troupe
