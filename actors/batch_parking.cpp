// batch_policy's way out when blocks run short: a turn gives its blocks back and waits at the head of the queue, to be
// computed again from its prompt and all tokens it has generated, or from what the prefix cache kept of them.
#include "actors/batch_policy.h"

#include "storage/check.h"

#include <algorithm>
#include <tuple>

namespace troupe {

// Room for start_margin() more tokens. Nothing starts before all that runs has it too, so blocks run out only after
// some sequence has grown by about that much: parking and starting never chase each other.
int64_t batch_policy::blocks_to_start(const sequence& s) const {
  if (!limits_.overcommit) return blocks_for(s.n_most);
  const auto n = std::max(s.n_done, static_cast<int64_t>(s.what.prompt.size()));
  return std::max(s.n_blocks, blocks_for(std::min(s.n_most, n + limits_.start_margin())));
}

// What the running turns count for when another is to start.
int64_t batch_policy::blocks_held() const {
  if (!limits_.overcommit) return n_reserved_;
  int64_t n = 0;
  for (const auto& t : running_)
    for (const auto& s : t.sequences)
      if (s.live) n += blocks_to_start(s);
  return n;
}

// Reserves blocks for this step's row of each stream and `n_more` positions behind it, as far as they go (`is_asked`:
// only says how many that would be).
int64_t batch_policy::grow(int64_t n_more, bool is_asked) {
  int64_t n = 0;
  for (auto& t : running_) {
    if (t.paused) continue;
    for (auto& s : t.sequences) {
      if (!s.live || s.n_left() > 0) continue;
      const int64_t wanted = blocks_for(std::min(s.n_most, s.n_done + 1 + n_more)) - s.n_blocks;
      if (wanted <= 0) continue;
      n += wanted;
      if (is_asked) continue;
      if (n_reserved_ + wanted > limits_.n_blocks) return n;
      s.n_blocks += wanted;
      n_reserved_ += wanted;
    }
  }
  return n;
}

// Of the lowest class the one whose reader is behind, else the youngest, but none that has come back and not yet gained
// a block of tokens while there is another.
void batch_policy::make_room() {
  while (n_reserved_ + grow(0, true) > limits_.n_blocks) {
    TROUPE_CHECK(running_.size() > 1, "a turn that is too large for all blocks is refused when it arrives");
    const auto key = [this](const turn& t) {
      const bool is_fresh = t.is_parked && t.n_gained < limits_.block_tokens;
      return std::tuple(class_now(t), t.paused, !is_fresh, t.queued_at);
    };
    park(std::max_element(running_.begin(), running_.end(),
                          [&](const turn& a, const turn& b) { return key(a) < key(b); }));
  }
  grow(0, false);
  grow(limits_.drafts.block, false);
}

// Turns whose readers are behind keep no room from the first that could run, unless it is of a lower class. False: it
// has room, or that would not be enough, or nobody waits.
bool batch_policy::park_paused(int64_t n_held_now) {
  if (!limits_.overcommit || n_paused_ == 0) return false;
  const auto first = waiting_.first();
  if (first == waiting_.end() || fits(*first, n_held_now)) return false;
  const auto gives_way = [&](const turn& t) { return t.paused && class_now(t) >= class_now(*first); };
  int64_t n_held = n_held_now, n_slots = static_cast<int64_t>(free_slots_.size());
  for (const auto& t : running_) {
    if (!gives_way(t)) continue;
    n_slots += t.n_live;
    for (const auto& s : t.sequences)
      if (s.live) n_held -= blocks_to_start(s);
  }
  for (const auto& s : first->sequences)
    if (s.live) n_held += blocks_to_start(s);
  if (n_slots < first->n_live || n_held > limits_.n_blocks) return false;
  while (!fits(*first, blocks_held())) { // the youngest gives way first
    const auto last = std::find_if(running_.rbegin(), running_.rend(), gives_way);
    park(std::prev(last.base()));
  }
  return true;
}

void batch_policy::park(turns::iterator t) {
  for (auto& s : t->sequences) {
    if (!s.live) continue;
    if (s.told) ended_.push_back({s.what.id, s.slot, s.n_done, true});
    release(s);
    s.told = false;
    s.n_done = 0;
    s.what.prompt.insert(s.what.prompt.end(), s.generated.begin() + s.n_resumed, s.generated.end());
    s.n_resumed = static_cast<int64_t>(s.generated.size());
  }
  t->is_started = false;
  t->is_parked = true;
  t->n_parked += !t->paused;
  ++n_parkings_;
  waiting_.take_back(running_, t);
}

} // namespace troupe
