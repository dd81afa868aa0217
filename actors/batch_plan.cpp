// batch_policy's steps: who starts, which rows run, what the results mean.
#include "actors/batch_policy.h"

#include "actors/fetch_ahead.h"

#include <algorithm>

namespace troupe {

namespace {

constexpr double mean_weight = 0.1; // of the newest turn in the moving average of turn times

// Positions of a sequence that can be used again: a failure of the engine puts all of them in doubt, one of the
// request or of a side table only those of its step.
int64_t sound_tokens(const sequence_result& r, int64_t before) {
  if (r.failure.empty()) return r.n_tokens;
  return r.status == 500 ? 0 : before;
}

} // namespace

bool batch_policy::fits(const turn& t, int64_t n_held) const {
  if (t.n_live > static_cast<int64_t>(free_slots_.size())) return false;
  int64_t n = n_held;
  for (const auto& s : t.sequences)
    if (s.live) n += blocks_to_start(s);
  return n <= limits_.n_blocks;
}

void batch_policy::start_turns(time now) {
  if (waiting_.empty()) return;
  int64_t n_held = blocks_held();
  const auto fits_now = [&](const turn& t) { return fits(t, n_held); };
  for (;;) {
    if (park_paused(n_held)) n_held = blocks_held(); // before another passes the first one by and takes its room
    const auto t = waiting_.next(fits_now, now);
    if (t == waiting_.end()) return;
    if (!t->is_parked) t->started_at = now;
    t->is_started = true;
    t->n_gained = 0;
    for (auto& s : t->sequences) {
      if (!s.live) continue;
      s.slot = free_slots_.back();
      free_slots_.pop_back();
      s.n_blocks = blocks_to_start(s);
      n_reserved_ += s.n_blocks;
      n_held += s.n_blocks;
      ++n_running_;
    }
    waiting_.move_to(running_, t);
  }
}

bool batch_policy::has_step(time now) {
  start_turns(now);
  return !ended_.empty() || std::any_of(running_.begin(), running_.end(), [](const turn& t) { return !t.paused; });
}

void batch_policy::plan_decode(step_plan& plan) {
  plan.rows.reserve(by_sequence_.size());
  for (auto& t : running_) {
    if (t.paused) continue;
    for (auto& s : t.sequences) {
      if (!s.live || s.n_left() > 0) continue;
      planned_rows& r = plan.rows.emplace_back();
      r.id = s.what.id, r.slot = s.slot, r.start = s.n_done, r.samples = true;
      r.tokens.reserve(static_cast<size_t>(1 + limits_.drafts.block)); // and what it verifies
      r.tokens.push_back(s.last);
    }
  }
}

void batch_policy::plan_rows(step_plan& plan, const turn& t, sequence& s, int64_t n_rows) {
  const auto n_prompt = static_cast<int64_t>(s.what.prompt.size());
  if (!s.told)
    plan.started.push_back({s.what.id, s.slot, n_prompt, s.what.images, s.what.sampling, s.what.cache_salt, t.id,
                            s.what.prompt, s.generated});
  s.told = true;
  const auto from = s.what.prompt.begin() + s.n_done;
  plan.rows.push_back({s.what.id, s.slot, s.n_done, {from, from + n_rows}, s.n_done + n_rows == n_prompt});
}

// The prompts that could advance; returns the rows they want.
int64_t batch_policy::find_prompts() {
  candidates_.clear();
  int64_t n_wanted = 0;
  for (auto& t : running_) {
    if (t.paused) continue;
    bool is_led = false; // an earlier choice is computing this prompt, and has more than a step to go
    for (auto& s : t.sequences) {
      if (!s.what.shares_prompt) is_led = false;
      if (!s.live || s.n_left() <= 0) continue;
      if (!is_led || s.n_done > 0) {
        candidates_.push_back({&s, &t, 0});
        n_wanted += s.n_left();
      }
      is_led = is_led || s.n_left() > limits_.chunk_tokens;
    }
  }
  return n_wanted;
}

void batch_policy::plan_prefill(step_plan& plan, int64_t budget) {
  if (candidates_.empty()) return;
  shape_.has_prompts = true;
  share_.split(candidates_, budget);
  for (const auto& c : candidates_)
    if (c.n_rows > 0) plan_rows(plan, *c.turn, *c.sequence, c.n_rows);
}

// Streams first, then their drafts, then what the gap of the streams leaves to prompts.
step_plan batch_policy::plan(time now) {
  step_plan plan;
  planned_at_ = now;
  start_turns(now);
  step_ = {};
  if (limits_.overcommit) make_room();
  plan.ended = std::exchange(ended_, {});
  plan_decode(plan);
  const auto n_streams = static_cast<int64_t>(plan.rows.size());
  const int64_t n_wanted = find_prompts(), most = limits_.max_rows() - n_streams;
  const auto budget = [&](int64_t n_rows) {
    return n_rows == 0 ? most : cost_.prefill_rows(n_rows, 1000.0 * limits_.max_gap_ms, most);
  };
  plan_drafts(plan, n_wanted == 0 ? 0 : std::min(n_wanted, budget(n_streams)));
  step_.n_decode_rows = shape_.n_rows;
  plan_prefill(plan, budget(step_.n_decode_rows));
  ask_for_drafts(plan);
  return plan;
}

// It ended while its step ran, and the next plan will say so.
void batch_policy::correct_end(const sequence_result& r) {
  for (auto& e : ended_)
    if (e.id == r.id) e.n_tokens = sound_tokens(r, e.n_tokens);
}

void batch_policy::accept_tokens(sequence_result& r, turns::iterator t, sequence& s, time now,
                                 std::vector<accepted_tokens>& out) {
  accepted_tokens a{r.id, {}, 0, 0, end_cause::none, {}, r.status, r.n_drafts, r.n_accepted};
  const bool is_first = s.n_cached < 0;
  if (is_first) s.n_cached = r.cached_tokens; // what it finds of its own after a parking or a restart is no hit
  if (s.n_generated == 0) {
    a.cached_tokens = s.what.shares_prompt ? 0 : s.n_cached;
    a.queue_us = std::chrono::duration_cast<std::chrono::microseconds>(t->started_at - t->queued_at).count();
  }
  if (is_first) {
    accepted_tokens& begun = begun_.emplace_back();
    begun.id = r.id;
    begun.cached_tokens = a.cached_tokens;
    begun.queue_us = a.queue_us;
  }
  take_drafts(s, r);
  const auto& stops = s.what.sampling.stop_ids;
  size_t n = 0;
  while (n < r.tokens.size() && a.end == end_cause::none) {
    const int32_t id = r.tokens[n++].id;
    s.last = id;
    ++s.n_generated;
    s.generated.push_back(id);
    if (id == limits_.eos && !s.what.sampling.ignore_eos)
      a.end = end_cause::eos;
    else if (std::find(stops.begin(), stops.end(), id) != stops.end())
      a.end = end_cause::stop_token;
    else if (s.n_generated >= s.what.max_tokens)
      a.end = end_cause::length;
  }
  t->n_gained += static_cast<int64_t>(n);
  r.tokens.resize(n); // what lies behind an end was never generated
  a.n_accepted = std::min(a.n_accepted, static_cast<int32_t>(n));
  a.tokens = std::move(r.tokens);
  if (a.tokens.empty() && r.failure.empty() && s.n_left() <= 0) r.failure = "the model gave no token";
  if (!r.failure.empty()) {
    a.end = end_cause::failed;
    a.failure = std::move(r.failure);
  }
  if (a.end != end_cause::none) {
    end_sequence(t, s, a.end);
    if (t->n_live == 0) {
      const double took = std::chrono::duration<double>(now - t->started_at).count();
      mean_turn_s_ = mean_turn_s_ == 0 ? took : mean_turn_s_ + mean_weight * (took - mean_turn_s_);
      drop_turn(t);
    }
  }
  if (!a.tokens.empty() || a.end != end_cause::none) out.push_back(std::move(a));
}

// Its first rows have run.
void batch_policy::note_lookup(const sequence& s, const sequence_result& r) {
  auto& of = s.n_cached < 0 ? lookups_ : returns_;
  of.n_asked += static_cast<int64_t>(s.what.prompt.size());
  of.n_found += r.cached_tokens;
  of.from_memory += r.from_memory;
  of.from_disk += r.from_disk;
  of.from_device += std::max<int64_t>(r.cached_tokens - r.from_memory - r.from_disk, 0); // blocks come in as wholes
}

// What the results will touch, level by level.
void batch_policy::fetch(const step_result& result) {
  coming_.clear();
  for (const auto& r : result.results)
    if (const auto found = by_sequence_.find(r.id); found != by_sequence_.end()) {
      const auto [t, i] = found->second;
      fetch_ahead(&*t, sizeof(turn));
      coming_.emplace_back(&*t, i);
    }
  for (const auto& [t, i] : coming_) fetch_ahead(&t->sequences[i], sizeof(sequence));
  for (const auto& [t, i] : coming_)
    if (const auto& ids = t->sequences[i].generated; !ids.empty()) fetch_ahead(&ids.back() + 1, 1);
}

void batch_policy::accept(step_result&& result, time now, std::vector<accepted_tokens>& out) {
  learn_step(result, now);
  fetch(result);
  out.reserve(out.size() + result.results.size());
  for (auto& r : result.results) {
    const auto found = by_sequence_.find(r.id);
    step_.is_sound = step_.is_sound && r.failure.empty() && found != by_sequence_.end();
    if (found == by_sequence_.end()) {
      correct_end(r);
      continue;
    }
    const auto [t, i] = found->second;
    auto& s = t->sequences[i];
    if (s.n_left() > 0) // cached positions ran no rows
      step_.n_prefill_rows += std::max<int64_t>(r.n_tokens - std::max(s.n_done, r.cached_tokens), 0);
    if (s.n_done == 0 && r.failure.empty()) note_lookup(s, r);
    s.n_done = sound_tokens(r, s.n_done);
    accept_tokens(r, t, s, now, out);
  }
  if (step_.is_sound) cost_.learn(step_.n_decode_rows, step_.n_prefill_rows, result.compute_us);
}

} // namespace troupe
