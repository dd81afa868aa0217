// Admission, planning and the end of sequences. One file of decisions, no messages sent.
#include "actors/batch_policy.h"

#include "storage/check.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace troupe {

namespace {

constexpr int32_t drain_retry_s = 5; // api.md section 0
constexpr double mean_weight = 0.1;  // of the newest turn in the moving average of turn times

int32_t rank_of(int32_t priority) { return priority <= 0 ? 0 : priority <= 9 ? 1 : 2; } // api.md 2.1, `priority`

api_error refusal(int32_t status, std::string type, std::string message, int32_t retry_after_s = 0) {
  return {status, std::move(type), std::move(message), {}, retry_after_s};
}

// Positions of a sequence that can be used again: a failure of the engine puts all of them in doubt, one of the
// request or of a side table only those of its step.
int64_t sound_tokens(const sequence_result& r, int64_t before) {
  if (r.failure.empty()) return r.n_tokens;
  return r.status == 500 ? 0 : before;
}

} // namespace

batch_policy::batch_policy(const batch_limits& limits) : limits_(limits) {
  TROUPE_CHECK(limits.max_running > 0 && limits.chunk_tokens > 0 && limits.block_tokens > 0, "limits are positive");
  for (int32_t i = limits.max_running; i-- > 0;) free_slots_.push_back(i); // the lowest slot goes first
}

int64_t batch_policy::blocks_for(const sequence_admit& s) const {
  const int64_t n = static_cast<int64_t>(s.prompt.size()) + s.max_tokens;
  return (n + limits_.block_tokens - 1) / limits_.block_tokens;
}

api_error batch_policy::queue_full() const {
  const auto position = waiting_.size() + 1;
  const double rounds = std::ceil(static_cast<double>(position) / limits_.max_running);
  const auto wait_s = static_cast<int32_t>(std::clamp(std::ceil(rounds * mean_turn_s_), 1.0, 600.0));
  return refusal(429, "RateLimitError",
                 "The queue is full: " + std::to_string(waiting_.size()) + " requests are waiting (limit " +
                     std::to_string(limits_.max_queue) + "). Yours would be at position " + std::to_string(position) +
                     ", expected wait about " + std::to_string(wait_s) + " s.",
                 wait_s);
}

std::optional<api_error> batch_policy::admit(turn_admit admit, time now) {
  if (draining_) return refusal(503, "ServiceUnavailableError", "The server is stopping.", drain_retry_s);
  int64_t n_blocks = 0;
  for (const auto& s : admit.sequences) {
    TROUPE_CHECK(!s.prompt.empty() && s.max_tokens > 0, "request and prepare refuse an empty prompt or no tokens");
    n_blocks += blocks_for(s);
  }
  if (admit.sequences.empty() || by_turn_.count(admit.turn))
    return refusal(500, "InternalServerError", "The turn is empty or its id is in use.");
  const auto n = static_cast<int64_t>(admit.sequences.size());
  if (n > limits_.max_running)
    return refusal(400, "BadRequestError",
                   "The request asks for " + std::to_string(n) + " choices at once; this server runs at most " +
                       std::to_string(limits_.max_running) + ".");
  if (n_blocks > limits_.n_blocks)
    return refusal(400, "BadRequestError",
                   "The request needs room for " + std::to_string(n_blocks * limits_.block_tokens) +
                       " tokens (prompt and output of all choices), this server has " +
                       std::to_string(limits_.n_blocks * limits_.block_tokens) +
                       ". Please reduce the length of the input prompt or the number of requested output tokens.");
  if (n_waiting() >= limits_.max_queue) return queue_full();

  turn t;
  t.id = admit.turn;
  t.n_live = n;
  t.n_blocks = n_blocks;
  t.rank = rank_of(admit.sequences.front().priority);
  t.queued_at = now;
  for (auto& s : admit.sequences) t.sequences.emplace_back().what = std::move(s);
  const auto behind = std::find_if(waiting_.begin(), waiting_.end(), [&](const turn& w) { return w.rank > t.rank; });
  const auto at = waiting_.insert(behind, std::move(t));
  by_turn_.emplace(at->id, at);
  for (size_t i = 0; i < at->sequences.size(); ++i) by_sequence_[at->sequences[i].what.id] = {at, i};
  return std::nullopt;
}

void batch_policy::drop_turn(turns::iterator t) {
  by_turn_.erase(t->id);
  (t->is_started ? running_ : waiting_).erase(t);
}

void batch_policy::end_sequence(turns::iterator t, sequence& s, end_cause why) {
  if (!s.live) return;
  s.live = false;
  ++n_ended_[static_cast<size_t>(why)];
  by_sequence_.erase(s.what.id);
  ended_.push_back({s.what.id, s.slot, s.n_done});
  if (s.slot >= 0) {
    free_slots_.push_back(s.slot);
    n_reserved_ -= blocks_for(s.what);
    --n_running_;
  }
  --t->n_live;
}

void batch_policy::cancel(turn_id id) {
  const auto found = by_turn_.find(id);
  if (found == by_turn_.end()) return;
  const auto t = found->second;
  for (auto& s : t->sequences) end_sequence(t, s, end_cause::none);
  drop_turn(t);
}

void batch_policy::stop(sequence_id id) {
  const auto found = by_sequence_.find(id);
  if (found == by_sequence_.end()) return;
  const auto [t, i] = found->second;
  end_sequence(t, t->sequences[i], end_cause::none);
  if (t->n_live == 0) drop_turn(t);
}

void batch_policy::set_paused(turn_id id, bool paused) {
  if (const auto found = by_turn_.find(id); found != by_turn_.end()) found->second->paused = paused;
}

int64_t batch_policy::n_paused() const {
  return std::count_if(running_.begin(), running_.end(), [](const turn& t) { return t.paused; });
}

void batch_policy::fail_all(const std::string& why, int32_t status, std::vector<accepted_tokens>& out) {
  for (auto* list : {&running_, &waiting_}) {
    while (!list->empty()) {
      const auto t = list->begin();
      for (auto& s : t->sequences) {
        if (!s.live) continue;
        auto& a = out.emplace_back();
        a.id = s.what.id;
        a.end = end_cause::failed;
        a.failure = why;
        a.status = status;
        end_sequence(t, s, end_cause::failed);
      }
      drop_turn(t);
    }
  }
}

// Strictly in order: a turn that does not fit yet holds back those behind it, so a large one is never overtaken for
// ever.
void batch_policy::start_turns(time now) {
  while (!waiting_.empty()) {
    const auto t = waiting_.begin();
    if (t->n_live > static_cast<int64_t>(free_slots_.size()) || n_reserved_ + t->n_blocks > limits_.n_blocks) return;
    t->started_at = now;
    t->is_started = true;
    for (auto& s : t->sequences) {
      s.slot = free_slots_.back();
      free_slots_.pop_back();
      n_reserved_ += blocks_for(s.what);
      ++n_running_;
    }
    running_.splice(running_.end(), waiting_, t);
  }
}

bool batch_policy::has_step(time now) {
  if (!ended_.empty()) return true;
  start_turns(now);
  return std::any_of(running_.begin(), running_.end(), [](const turn& t) { return !t.paused; });
}

void batch_policy::plan_decode(step_plan& plan) {
  for (auto& t : running_) {
    if (t.paused) continue;
    for (auto& s : t.sequences) {
      if (!s.live || s.n_generated == 0) continue;
      const auto position = static_cast<int64_t>(s.what.prompt.size()) + s.n_generated - 1;
      plan.rows.push_back({s.what.id, s.slot, position, {s.last}, true});
    }
  }
}

void batch_policy::plan_prefill(step_plan& plan, int64_t budget) {
  for (auto& t : running_) {
    if (t.paused) continue;
    for (auto& s : t.sequences) {
      const auto n_prompt = static_cast<int64_t>(s.what.prompt.size());
      const int64_t n = std::min(n_prompt - s.n_done, budget);
      if (!s.live || n <= 0) continue;
      if (!s.told)
        plan.started.push_back(
            {s.what.id, s.slot, n_prompt, s.what.images, s.what.sampling, s.what.cache_salt, t.id, s.what.prompt});
      s.told = true;
      const auto from = s.what.prompt.begin() + s.n_done;
      const bool last = s.n_done + n == n_prompt;
      plan.rows.push_back({s.what.id, s.slot, s.n_done, {from, from + n}, last});
      budget -= n;
    }
    if (budget == 0) return;
  }
}

step_plan batch_policy::plan(time now) {
  step_plan plan;
  plan.ended = std::exchange(ended_, {});
  start_turns(now);
  plan_decode(plan);
  plan_prefill(plan, limits_.max_rows() - static_cast<int64_t>(plan.rows.size()));
  return plan;
}

// It ended while its step ran, and the next plan will say so.
void batch_policy::correct_end(const sequence_result& r) {
  for (auto& e : ended_)
    if (e.id == r.id) e.n_tokens = sound_tokens(r, e.n_tokens);
}

void batch_policy::accept(step_result&& result, time now, std::vector<accepted_tokens>& out) {
  for (auto& r : result.results) {
    const auto found = by_sequence_.find(r.id);
    if (found == by_sequence_.end()) {
      correct_end(r);
      continue;
    }
    const auto [t, i] = found->second;
    auto& s = t->sequences[i];
    s.n_done = sound_tokens(r, s.n_done);
    accepted_tokens a{r.id, {}, 0, 0, end_cause::none, {}, r.status};
    if (s.n_generated == 0) {
      a.cached_tokens = s.what.shares_prompt ? 0 : r.cached_tokens;
      a.queue_us = std::chrono::duration_cast<std::chrono::microseconds>(t->started_at - t->queued_at).count();
    }
    const auto& stops = s.what.sampling.stop_ids;
    size_t n = 0;
    while (n < r.tokens.size() && a.end == end_cause::none) {
      const int32_t id = r.tokens[n++].id;
      s.last = id;
      ++s.n_generated;
      if (id == limits_.eos && !s.what.sampling.ignore_eos)
        a.end = end_cause::eos;
      else if (std::find(stops.begin(), stops.end(), id) != stops.end())
        a.end = end_cause::stop_token;
      else if (s.n_generated >= s.what.max_tokens)
        a.end = end_cause::length;
    }
    r.tokens.resize(n); // what lies behind an end was never generated
    a.tokens = std::move(r.tokens);
    if (a.tokens.empty() && r.failure.empty() && s.n_done >= static_cast<int64_t>(s.what.prompt.size()))
      r.failure = "the model gave no token";
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
}

} // namespace troupe
