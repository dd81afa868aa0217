// Ring step 7: one thread that owns a backend and weights, runs each step and, on rank 0, answers with tokens.
#include "actors/rank.h"

#include "actors/guard.h"
#include "actors/kv_cache.h"
#include "actors/rank_state.h"
#include "actors/scheduler.h"
#include "actors/step_carrier.h"
#include "gpu/collective.h"
#include "storage/check.h"

#include <caf/all.hpp>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace troupe {

rank_parts::rank_parts() = default;
rank_parts::rank_parts(rank_parts&&) noexcept = default;
rank_parts& rank_parts::operator=(rank_parts&&) noexcept = default;
rank_parts::~rank_parts() = default;

namespace {

struct running_rank {
  static inline const char* name = "rank";
  ~running_rank() {
    if (parts.group) parts.group->abort(); // the others must not wait for this one
  }
  rank_parts parts;
  std::optional<rank_state> sequences;
  scheduler_actor scheduler;           // rank 0 only
  std::optional<step_carrier> carrier; // if it has a thread to itself
  uint64_t epoch = 0, last_step = 0, cache = 0;
  step_counts counted;                                       // of these weights, what `numbers` have
  tier_disk_actor disk;                                      // may be none
  std::unordered_map<entry_id, std::vector<uint8_t>> coming; // from it, pieces so far
  std::unordered_set<entry_id> arrived;                      // whole and fitting; kv_cache does not know yet
  std::string misfit;                                        // of those that do not fit, why the first does not
  kv_cache_actor kv_cache;
};
using rank_pointer = rank_actor::stateful_pointer<running_rank>;

void send_entry(rank_pointer self, const tier_write& what, const std::optional<std::vector<std::byte>>& payload) {
  const auto bytes = payload ? std::span<const std::byte>(*payload) : std::span<const std::byte>{};
  tier_save out{self->state.cache, what, payload.has_value(), static_cast<int64_t>(bytes.size()), 0, {}};
  for (size_t at = 0; at == 0 || at < bytes.size(); at += piece_bytes) {
    const auto piece = bytes.subspan(at, std::min(piece_bytes, bytes.size() - at));
    const auto* begin = reinterpret_cast<const uint8_t*>(piece.data());
    out.offset = static_cast<int64_t>(at);
    out.bytes.assign(begin, begin + piece.size());
    self->send(self->state.disk, out);
  }
}

void send_orders(rank_pointer self, const step_placed& placed) {
  if (!self->state.disk || (placed.reads.empty() && placed.removes.empty())) return;
  tier_orders out{self->state.cache, placed.reads, {}};
  for (const auto id : placed.removes) out.removes.push_back(static_cast<uint64_t>(id));
  self->send(self->state.disk, std::move(out));
}

void take_entry(running_rank& s, tier_arrived& piece) {
  if (piece.cache != s.cache || !s.parts.weights) return;
  const auto size = static_cast<size_t>(piece.size_bytes);
  auto bytes = std::move(piece.bytes);
  if (bytes.size() < size) { // in pieces
    auto& all = s.coming[piece.where.entry];
    all.reserve(size);
    all.insert(all.end(), bytes.begin(), bytes.end());
    if (all.size() < size) return;
    bytes = std::move(all);
  }
  s.coming.erase(piece.where.entry);
  auto why = s.sequences->arrive(piece.where, std::move(bytes), *s.parts.weights);
  if (!why)
    s.arrived.insert(piece.where.entry);
  else if (s.misfit.empty())
    s.misfit = std::move(*why);
}

// An entry that does not fit, though its checksum is right, was written for another shape: to kv_cache it is as one
// that could not be read.
void judge_entries(rank_pointer self, tier_done& done, counters& numbers) {
  auto& s = self->state;
  if (done.cache != s.cache || !s.kv_cache) return;
  int64_t n_misfits = 0;
  for (auto& r : done.results) {
    const bool is_here = s.arrived.erase(r.entry) > 0;
    n_misfits += r.is_done && !is_here;
    r.is_done = r.is_done && is_here;
  }
  if (n_misfits > 0) {
    numbers.disk_read_errors += n_misfits;
    spdlog::warn("cache on disk: {} files do not fit this model, first {}", n_misfits,
                 s.misfit.empty() ? "one without bytes" : s.misfit);
  }
  s.misfit.clear();
  self->send(s.kv_cache, std::move(done));
}

// Every rank runs a row or none does: a rank that lacks it would leave the others waiting in a collective. Adds what
// other ranks cannot run.
void agree(running_rank& s, const rank_config& config, const step_plan& plan, std::vector<sequence_failure>& failures) {
  if (!s.parts.group) return;
  const size_t n = plan.rows.size();
  std::vector<float> mine(n), all(n * static_cast<size_t>(config.n_ranks));
  const auto failed = [&](sequence_id id) {
    return std::any_of(failures.begin(), failures.end(), [id](const auto& f) { return f.id == id; });
  };
  for (size_t i = 0; i < n; ++i) mine[i] = failed(plan.rows[i].id) ? 1 : 0;
  s.parts.group->all_gather(all, mine);
  for (size_t at = 0; at < all.size(); ++at)
    if (all[at] != 0 && !failed(plan.rows[at % n].id))
      failures.push_back(
          {plan.rows[at % n].id, "rank " + std::to_string(at / n) + " lacks what this request's rows need", 503});
}

// The step's side-table rows, waited for when they are taken, once.
class awaited_rows final : public record_source {
public:
  awaited_rows(const staging_buffer& from, const rank_config& config, const rank_state::clock& now,
               const step_plan& plan, int64_t n_rows)
      : from_(from), config_(config), now_(now), plan_(plan), n_rows_(n_rows) {}

  void await() {
    if (rows_) return;
    const auto began = now_();
    rows_ = from_.wait(plan_.epoch, plan_.step, n_rows_, config_.deadline);
    waited_ = now_() - began;
    if (!rows_->missing.empty())
      for (const auto& r : plan_.rows) rows_->failures.push_back({r.id, rows_->missing, 503});
  }
  std::optional<std::span<const std::byte>> take() override {
    await();
    if (rows_->failures.size() == plan_.rows.size()) return std::nullopt; // perhaps no table could be opened
    return rows_->bytes;
  }
  // Precondition of both: they were taken, or awaited.
  const std::vector<sequence_failure>& failures() const { return rows_->failures; }
  bool is_over() const { return rows_->is_over; }
  std::chrono::steady_clock::duration waited() const { return waited_; }

private:
  const staging_buffer& from_;
  const rank_config& config_;
  const rank_state::clock& now_;
  const step_plan& plan_;
  int64_t n_rows_;
  std::optional<staged_rows> rows_;
  std::chrono::steady_clock::duration waited_{};
};

// Runs what can be run and fills in what came of it. Sequences whose side-table rows could not be read are left out
// where that is known before; in a step that is under way by then they are run with the others, which do not notice,
// and it is their results that are left out.
void run_rows(running_rank& s, const rank_config& config, const step_plan& plan, awaited_rows& rows,
              std::vector<sequence_failure>& failures, step_result& result) {
  auto& weights = *s.parts.weights;
  const auto add_failures = [&] { failures.insert(failures.end(), rows.failures().begin(), rows.failures().end()); };
  const bool is_ahead = s.sequences->runs_ahead(plan, weights); // the same on every rank
  if (!is_ahead) {
    rows.await();
    add_failures();
  }
  agree(s, config, plan, failures);
  s.sequences->run(plan, failures, rows, weights);
  if (is_ahead) {
    rows.await(); // nothing ran that would have taken them
    add_failures();
    agree(s, config, plan, failures);
  }
  result.results = s.sequences->answer(plan, failures, weights, result.draft_us);
}

// nullopt: the step's epoch ended while it waited.
std::optional<step_result> run_step(rank_pointer self, const rank_config& config, const staging_buffer& records,
                                    step_ready& ready) {
  auto& s = self->state;
  rank_state::write_order write;
  if (s.disk) write = [self](const auto& what, const auto& payload) { send_entry(self, what, payload); };
  auto& plan = ready.placed.plan;
  const rank_state::clock now = [self] { return self->clock().now(); };
  const auto began = now();
  step_result result{plan.epoch, plan.step, {}, 0, 0};
  auto& weights = *s.parts.weights;
  auto failures = s.sequences->begin(ready.placed, &weights);
  int64_t n_rows = 0;
  for (const auto& r : plan.rows) n_rows += static_cast<int64_t>(r.tokens.size());
  if (n_rows == 0) {
    s.sequences->end(ready.placed, {}, weights, write);
    return result;
  }
  awaited_rows rows(records, config, now, plan, n_rows);
  run_rows(s, config, plan, rows, failures, result);
  s.sequences->end(ready.placed, failures, weights, write);
  if (rows.is_over()) return std::nullopt;
  // The wait is no work, though the first layer may have run in it: what is left of a step behind its rows is what it
  // costs on a disk that keeps up.
  result.compute_us = std::chrono::duration_cast<std::chrono::microseconds>(now() - began - rows.waited()).count();
  return result;
}

rank_actor::behavior_type rank_behavior(rank_pointer self, rank_config config,
                                        std::shared_ptr<const staging_buffer> records,
                                        std::shared_ptr<counters> numbers, bool detached) {
  guard(self);
  if (detached) self->state.carrier.emplace(self->system());
  self->state.sequences.emplace(sampler_state::vocabulary_rules{config.suppressed, config.eos},
                                config.rank == 0 || config.drafts, [self] { return self->clock().now(); });
  return {
      [=](step_ready& ready) {
        auto& s = self->state;
        const auto& plan = ready.placed.plan;
        if (plan.epoch != s.epoch) {
          ++numbers->dropped_messages;
          return;
        }
        if (plan.step == s.last_step) return; // again, from a new engram_fetch
        TROUPE_CHECK(plan.step == ++s.last_step, "all ranks get the same steps in the same order");
        TROUPE_CHECK(s.parts.weights, "system sends no step before every rank has loaded");
        auto result = run_step(self, config, *records, ready);
        if (config.rank == 0) {
          const auto now = s.parts.weights->counts(), before = std::exchange(s.counted, now);
          numbers->graph_replays += now.replayed - before.replayed;
          numbers->graph_misses += now.launched - before.launched;
        }
        send_orders(self, ready.placed);
        if (!result)
          ++numbers->dropped_messages;
        else if (s.scheduler && s.carrier)
          s.carrier->send(self, s.scheduler, std::move(*result));
        else if (s.scheduler)
          self->send(s.scheduler, std::move(*result));
      },
      [=](image_piece& piece) {
        if (const auto why = self->state.sequences->take(std::move(piece))) spdlog::warn("rank: refused {}", *why);
      },
      [=](tier_arrived& piece) { take_entry(self->state, piece); },
      [=](tier_done& done) { judge_entries(self, done, *numbers); },
      [=](const wiring& w) {
        auto& s = self->state;
        if (w.epoch == s.epoch) return; // again, from a new engram_fetch
        s.sequences->forget_sequences();
        if (w.cache != s.cache) {
          s.sequences->forget_snapshots();
          s.coming.clear();
          s.arrived.clear();
        }
        s.kv_cache = caf::actor_cast<kv_cache_actor>(w.kv_cache);
        const auto r = static_cast<size_t>(config.rank);
        s.disk = r < w.disks.size() ? caf::actor_cast<tier_disk_actor>(w.disks[r]) : tier_disk_actor{};
        s.epoch = w.epoch;
        s.cache = w.cache;
        s.last_step = 0;
        if (config.rank == 0) s.scheduler = caf::actor_cast<scheduler_actor>(w.scheduler);
      },
      [=](load_atom) -> caf::result<bool> {
        try {
          self->state.parts = config.make();
          return true;
        } catch (const std::exception& e) { return broken(e.what()); }
      },
  };
}

} // namespace

rank_actor spawn_rank(caf::actor_system& system, rank_config config, std::shared_ptr<const staging_buffer> records,
                      std::shared_ptr<counters> numbers, bool detached) {
  if (detached)
    return system.spawn<caf::detached>(rank_behavior, std::move(config), std::move(records), std::move(numbers), true);
  return system.spawn(rank_behavior, std::move(config), std::move(records), std::move(numbers), false);
}

} // namespace troupe
