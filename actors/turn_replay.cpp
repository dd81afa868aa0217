// turn_table after a restart of fan_out: decoder and parser of a turn are rebuilt by running its tokens through them
// again, and what the sink has had already is dropped on the way.                             Design section 3.
#include "actors/turn_table.h"

#include <optional>
#include <utility>

namespace troupe {

void turn_table::replay(turn_replayed&& r, time now, outcome& out) {
  const auto id = r.open.turn;
  if (!open(std::move(r.open), now)) return;
  auto& t = *turns_.at(id);
  if (!r.said.empty()) {
    t.has_spoken = true;
    t.first_at = t.last_at = now;
  }
  for (auto& a : r.said) {
    t.usage.accepted_drafts += a.n_accepted;
    t.usage.rejected_drafts += a.n_drafts - a.n_accepted;
    std::optional<api_error> failure;
    if (a.end == end_cause::failed) failure = to_error(a);
    if (failure) a.end = end_cause::none;
    replay_choice(t, std::move(a), out);
    if (!t.drafts.empty()) push(t, out);
    if (failure) return fail(id, *failure, now, out);
  }
  if (t.n_open == 0) finish(t, to_text(t.worst), now, out);
}

// One token at a time, as if each had come in a step of its own: the text of a token does not depend on its step.
void turn_table::replay_choice(turn& t, accepted_tokens&& said, outcome& out) {
  const auto found = sequences_.find(said.id);
  if (found == sequences_.end()) return;
  const size_t index = found->second.choice;
  auto& c = t.choices[index];
  const auto at = static_cast<size_t>(c.index);
  const auto sent = at < t.sink->sent.choices.size() ? t.sink->sent.choices[at] : turn_progress::choice{};
  auto tokens = std::move(said.tokens);
  const auto end = std::exchange(said.end, end_cause::none);
  int64_t n_ridden = 0;
  for (size_t i = 0; i < std::max<size_t>(tokens.size(), 1) && !c.has_ended; ++i) {
    auto one = said;
    if (i < tokens.size()) one.tokens = {std::move(tokens[i])};
    if (i + 1 >= tokens.size()) one.end = end;
    take(t, c, index, std::move(one), out);
    count_spoken(t, c);
    for (const auto& d : t.drafts) n_ridden += static_cast<int64_t>(d.n_tokens);
    const bool was_sent = c.has_ended ? sent.has_ended : n_ridden <= sent.n_tokens;
    if (was_sent) {
      count_ridden(t);
    } else if (!t.drafts.empty() && !c.has_ended) {
      push(t, out);
    }
  }
}

// What the counters have of a choice is kept where a restart leaves it alone, so that nothing is counted twice.
turn_progress::choice& turn_table::progress(turn& t, const choice& c) {
  auto& all = t.sink->sent.choices;
  const auto index = static_cast<size_t>(c.index);
  if (index >= all.size()) all.resize(index + 1);
  return all[index];
}

void turn_table::count_spoken(turn& t, const choice& c) {
  auto& counted = progress(t, c).n_counted;
  if (c.n_tokens <= counted) return; // running through again what was said before a restart
  numbers_.generated_tokens += c.n_tokens - std::exchange(counted, c.n_tokens);
}

bool turn_table::is_paused(turn_id id) const {
  const auto found = turns_.find(id);
  return found != turns_.end() && found->second->is_paused;
}

void turn_table::note(turn_id id, std::string_view text) const {
  const auto found = turns_.find(id);
  if (found == turns_.end()) return;
  const auto& t = *found->second;
  if (t.sink->sent.is_open && !t.is_closed) t.sink->note(text);
}

void turn_table::note_all(std::string_view text) const {
  for (const auto& entry : turns_) note(entry.first, text);
}

} // namespace troupe
