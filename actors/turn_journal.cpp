// Records of turns in flight, and what is made of them after a restart.
#include "actors/turn_journal.h"

#include "storage/check.h"

#include <utility>

namespace troupe {

bool turn_journal::begin(const turn_begin& b) {
  const auto id = b.admit.turn;
  TROUPE_CHECK(b.open.turn == id && b.open.sequences.size() == b.admit.sequences.size(), "both halves are of one turn");
  auto [at, is_new] = turns_.try_emplace(id);
  if (!is_new) return false;
  auto& r = at->second;
  r.open = b.open;
  r.admit = b.admit;
  r.choices.resize(r.admit.sequences.size());
  for (size_t i = 0; i < r.admit.sequences.size(); ++i) sequences_[r.admit.sequences[i].id] = {&r, i};
  return true;
}

const turn_journal::record* turn_journal::find(turn_id id) const {
  const auto found = turns_.find(id);
  return found == turns_.end() ? nullptr : &found->second;
}

turn_journal::choice* turn_journal::find(sequence_id id) {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : &found->second.first->choices[found->second.second];
}

void turn_journal::say(const tokens_accepted& step) {
  for (const auto& a : step.sequences) {
    const auto found = sequences_.find(a.id);
    if (found == sequences_.end()) continue;
    auto& r = *found->second.first;
    auto& c = r.choices[found->second.second];
    if (c.n_cached < 0) c.n_cached = a.cached_tokens;
    if (a.tokens.empty() && a.end == end_cause::none) continue;
    if (!c.has_begun) {
      c.sums.id = a.id;
      c.sums.cached_tokens = c.n_cached;
      c.sums.queue_us = a.queue_us;
    }
    c.has_begun = true;
    r.has_gained = true;
    n_tokens_ += static_cast<int64_t>(a.tokens.size());
    if (r.admit.sequences[found->second.second].sampling.n_logprobs >= 0)
      c.whole.insert(c.whole.end(), a.tokens.begin(), a.tokens.end());
    else
      for (const auto& t : a.tokens) c.ids.push_back(t.id);
    c.sums.n_drafts += a.n_drafts;
    c.sums.n_accepted += a.n_accepted;
    c.sums.end = a.end;
    c.sums.failure = a.failure;
    c.sums.status = a.status;
  }
}

void turn_journal::stop(sequence_id id) {
  if (auto* c = find(id)) c->is_stopped = true;
}

void turn_journal::cancel(turn_id id) {
  if (const auto found = turns_.find(id); found != turns_.end()) found->second.is_cancelled = true;
}

void turn_journal::fail(turn_id id, const api_error& why) {
  if (const auto found = turns_.find(id); found != turns_.end() && !found->second.failure) found->second.failure = why;
}

void turn_journal::forget(turn_id id) {
  const auto found = turns_.find(id);
  if (found == turns_.end()) return;
  for (const auto& s : found->second.admit.sequences) sequences_.erase(s.id);
  for (const auto& c : found->second.choices) n_tokens_ -= c.n_tokens();
  turns_.erase(found);
}

void turn_journal::mark_images(turn_id id, uint64_t ranks) {
  if (const auto found = turns_.find(id); found != turns_.end()) found->second.images_at = ranks;
}

void turn_journal::mark_admitted(turn_id id) {
  if (const auto found = turns_.find(id); found != turns_.end())
    found->second.was_admitted = found->second.is_in_ring = true;
}

std::vector<turn_id> turn_journal::lose_epoch() {
  std::vector<turn_id> out;
  for (auto& [id, r] : turns_) {
    if (r.is_in_ring) r.n_losses = r.has_gained ? 1 : r.n_losses + 1;
    if (r.is_in_ring && r.n_losses >= max_losses) out.push_back(id);
    r.is_in_ring = r.has_gained = false;
  }
  return out;
}

bool turn_journal::is_suspect(turn_id id) const {
  const auto* r = find(id);
  return r && !r->is_cancelled && !r->failure && r->n_losses > 1 && !r->has_gained;
}

std::vector<turn_id> turn_journal::turns() const {
  std::vector<turn_id> out;
  out.reserve(turns_.size());
  for (const auto& entry : turns_) out.push_back(entry.first);
  return out;
}

bool turn_journal::has_images(turn_id id) const {
  const auto* r = find(id);
  if (!r) return false;
  for (const auto& s : r->admit.sequences)
    if (!s.images.empty()) return true;
  return false;
}

uint64_t turn_journal::images_at(turn_id id) const {
  const auto* r = find(id);
  return r ? r->images_at : 0;
}

bool turn_journal::is_cancelled(turn_id id) const {
  const auto* r = find(id);
  return r && r->is_cancelled;
}

std::optional<api_error> turn_journal::failure(turn_id id) const {
  const auto* r = find(id);
  return r ? r->failure : std::nullopt;
}

std::optional<turn_admit> turn_journal::to_admit(turn_id id) const {
  const auto* r = find(id);
  if (!r || r->is_cancelled || r->failure) return std::nullopt;
  turn_admit out{r->admit.turn, {}, r->was_admitted, 0};
  for (size_t i = 0; i < r->choices.size(); ++i) {
    const auto& c = r->choices[i];
    if (c.is_stopped || c.sums.end != end_cause::none) continue;
    auto& s = out.sequences.emplace_back(r->admit.sequences[i]);
    s.n_cached = c.n_cached;
    s.generated = c.ids;
    for (const auto& t : c.whole) s.generated.push_back(t.id);
  }
  if (out.sequences.empty()) return std::nullopt;
  return out;
}

turn_replayed turn_journal::to_replay(turn_id id) const {
  const auto* r = find(id);
  TROUPE_CHECK(r, "a turn is replayed from its record");
  turn_replayed out{r->open, {}};
  for (const auto& c : r->choices) {
    if (!c.has_begun) continue;
    auto& a = out.said.emplace_back(c.sums);
    a.tokens = c.whole;
    for (const auto id_of : c.ids) a.tokens.push_back({id_of, 0, {}});
  }
  return out;
}

} // namespace troupe
