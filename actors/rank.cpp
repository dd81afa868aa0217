// Ring step 7: one thread that owns a backend and weights, runs each step and, on rank 0, answers with tokens.
#include "actors/rank.h"

#include "actors/guard.h"
#include "actors/rank_state.h"
#include "actors/scheduler.h"
#include "gpu/collective.h"
#include "storage/check.h"

#include <caf/all.hpp>

namespace troupe {

rank_parts::rank_parts() = default;
rank_parts::rank_parts(rank_parts&&) noexcept = default;
rank_parts& rank_parts::operator=(rank_parts&&) noexcept = default;
rank_parts::~rank_parts() = default;

namespace {

struct running_rank {
  static inline const char* name = "rank";
  rank_parts parts;
  std::optional<rank_state> sequences;
  scheduler_actor scheduler; // rank 0 only
  uint64_t epoch = 0, last_step = 0;
};

// Every rank runs a step or none does: a rank that lacks its rows would leave the others waiting in a collective.
std::string agree(running_rank& s, const rank_config& config, const std::string& failure) {
  if (!s.parts.group) return failure;
  const float mine = failure.empty() ? 0 : 1;
  std::vector<float> all(static_cast<size_t>(config.n_ranks));
  s.parts.group->all_gather(all, std::span(&mine, 1));
  for (size_t r = 0; r < all.size(); ++r)
    if (all[r] != 0) return failure.empty() ? "rank " + std::to_string(r) + " could not read its side tables" : failure;
  return {};
}

step_result run_step(running_rank& s, const rank_config& config, const staging_buffer& records, step_ready& ready) {
  const auto& plan = ready.placed.plan;
  const auto began = std::chrono::steady_clock::now();
  step_result result{plan.epoch, plan.step, {}, 0, 0};
  auto& weights = *s.parts.weights;
  const auto broken_image = s.sequences->begin(ready.placed, &weights);
  int64_t n_rows = 0;
  for (const auto& r : plan.rows) n_rows += static_cast<int64_t>(r.tokens.size());
  if (n_rows == 0) {
    s.sequences->end(ready.placed, false, weights);
    return result;
  }
  const auto unread = agree(s, config, ready.failure);
  if (!unread.empty())
    result.results = rank_state::fail(plan, unread, 503);
  else if (broken_image)
    result.results = rank_state::fail(plan, *broken_image, 500);
  else
    result.results = s.sequences->run(plan, records.slot(ready.staging, n_rows), weights, result.draft_us);
  s.sequences->end(ready.placed, unread.empty() && !broken_image, weights);
  result.compute_us =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - began).count();
  return result;
}

rank_actor::behavior_type behave(rank_actor::stateful_pointer<running_rank> self, rank_config config,
                                 std::shared_ptr<const staging_buffer> records, std::shared_ptr<counters> numbers) {
  guard(self);
  self->state.sequences.emplace(sampler_state::vocabulary_rules{config.suppressed, config.eos},
                                config.rank == 0 || config.drafts);
  return {
      [=](step_ready& ready) {
        auto& s = self->state;
        const auto& plan = ready.placed.plan;
        if (plan.epoch != s.epoch) {
          ++numbers->dropped_messages;
          return;
        }
        TROUPE_CHECK(plan.step == ++s.last_step, "all ranks get the same steps in the same order");
        TROUPE_CHECK(s.parts.weights, "system sends no step before every rank has loaded");
        try {
          auto result = run_step(s, config, *records, ready);
          if (s.scheduler) self->send(s.scheduler, std::move(result));
        } catch (...) {
          if (s.parts.group) s.parts.group->abort(); // the others must not wait for this one
          throw;
        }
      },
      [=](image_piece& piece) {
        if (const auto why = self->state.sequences->take(std::move(piece))) spdlog::warn("rank: refused {}", *why);
      },
      [=](const wiring& w) {
        auto& s = self->state;
        s.epoch = w.epoch;
        s.last_step = 0;
        s.sequences->clear(s.parts.weights.get());
        s.scheduler = caf::actor_cast<scheduler_actor>(w.next);
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
  if (detached) return system.spawn<caf::detached>(behave, std::move(config), std::move(records), std::move(numbers));
  return system.spawn(behave, std::move(config), std::move(records), std::move(numbers));
}

} // namespace troupe
