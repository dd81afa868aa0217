// Admission, waiting and the end of sequences; batch_plan.cpp plans steps. Decisions only, no messages sent.
#include "actors/batch_policy.h"

#include "storage/check.h"

#include <algorithm>
#include <string>

namespace troupe {

namespace {

constexpr int32_t drain_retry_s = 5; // api.md section 0

api_error refusal(int32_t status, std::string type, std::string message, int32_t retry_after_s = 0) {
  return {status, std::move(type), std::move(message), {}, retry_after_s, 0};
}

} // namespace

batch_policy::batch_policy(const batch_limits& limits)
    : limits_(limits), drafts_(limits.drafts), share_(limits.block_tokens) {
  TROUPE_CHECK(limits.max_running > 0 && limits.chunk_tokens > 0 && limits.block_tokens > 0, "limits are positive");
  for (int32_t i = limits.max_running; i-- > 0;) free_slots_.push_back(i); // the lowest slot goes first
}

int64_t batch_policy::blocks_for(int64_t n_tokens) const {
  return (n_tokens + limits_.block_tokens - 1) / limits_.block_tokens;
}

queue_view batch_policy::view(int64_t position, time now) const {
  queue_view v{waiting_.size(), position, static_cast<int64_t>(running_.size()), mean_turn_s_, limits_.max_queue};
  if (v.turn_s == 0) // none has ended yet: the oldest that runs is a lower bound
    for (const auto& t : running_)
      v.turn_s = std::max(v.turn_s, std::chrono::duration<double>(now - t.started_at).count());
  return v;
}

std::optional<api_error> batch_policy::admit(turn_admit admit, time now) {
  if (draining_ && !admit.is_resumed)
    return refusal(503, "ServiceUnavailableError", "The server is stopping.", drain_retry_s);
  int64_t n_blocks = 0;
  for (const auto& s : admit.sequences) {
    TROUPE_CHECK(!s.prompt.empty() && s.max_tokens > 0, "request and prepare refuse an empty prompt or no tokens");
    n_blocks += blocks_for(static_cast<int64_t>(s.prompt.size()) + s.max_tokens);
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
  const int32_t rank = class_of(admit.sequences.front().priority);
  if (n_waiting() >= limits_.max_queue && !admit.is_resumed)
    return queue_full(view(waiting_.n_before(rank, now) + 1, now));

  turn t;
  t.id = admit.turn;
  t.n_live = n;
  t.rank = rank;
  t.queued_at = now;
  for (auto& what : admit.sequences) {
    auto& s = t.sequences.emplace_back();
    s.n_most = static_cast<int64_t>(what.prompt.size()) + what.max_tokens;
    s.what = std::move(what);
    s.generated = std::exchange(s.what.generated, {});
    s.n_cached = s.what.n_cached;
    s.n_generated = s.n_resumed = static_cast<int64_t>(s.generated.size());
    s.what.prompt.insert(s.what.prompt.end(), s.generated.begin(), s.generated.end());
  }
  const auto at = waiting_.push(std::move(t));
  by_turn_.emplace(at->id, at);
  for (size_t i = 0; i < at->sequences.size(); ++i) by_sequence_[at->sequences[i].what.id] = {at, i};
  return std::nullopt;
}

void batch_policy::drop_turn(turns::iterator t) {
  by_turn_.erase(t->id);
  n_paused_ -= t->paused;
  if (t->is_started)
    running_.erase(t);
  else
    waiting_.erase(t);
}

void batch_policy::release(sequence& s) {
  if (s.slot < 0) return;
  free_slots_.push_back(s.slot);
  s.slot = -1;
  n_reserved_ -= s.n_blocks;
  s.n_blocks = 0;
  --n_running_;
}

void batch_policy::end_sequence(turns::iterator t, sequence& s, end_cause why) {
  if (!s.live) return;
  s.live = false;
  ++n_ended_[static_cast<size_t>(why)];
  by_sequence_.erase(s.what.id);
  ended_.push_back({s.what.id, s.slot, s.n_done});
  release(s);
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

std::vector<std::pair<turn_id, api_error>> batch_policy::expire(time now,
                                                                const std::function<bool(turn_id)>& never_ran) {
  std::vector<std::pair<turn_id, api_error>> late;
  if (limits_.max_wait_s == 0) return late;
  int64_t position = 0;
  for (const auto& t : waiting_) {
    ++position;
    if (now - t.queued_at >= std::chrono::seconds(limits_.max_wait_s) && never_ran(t.id))
      late.emplace_back(t.id, waited_too_long(view(position, now), limits_.max_wait_s));
  }
  for (const auto& [id, why] : late) cancel(id);
  return late;
}

void batch_policy::set_paused(turn_id id, bool paused) {
  const auto found = by_turn_.find(id);
  if (found == by_turn_.end() || found->second->paused == paused) return;
  found->second->paused = paused;
  n_paused_ += paused ? 1 : -1;
}

std::vector<sequence_id> batch_policy::with_images() const {
  std::vector<sequence_id> out;
  for (const auto& [id, place] : by_sequence_)
    if (!place.first->sequences[place.second].what.images.empty()) out.push_back(id);
  return out;
}

void batch_policy::fail_all(const std::string& why, int32_t status, std::vector<accepted_tokens>& out) {
  while (!by_turn_.empty()) {
    const auto t = running_.empty() ? waiting_.begin() : running_.begin();
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

} // namespace troupe
