// batch_policy's way out when blocks run short: the youngest turn of the lowest class gives its blocks back and waits
// at the head of the queue, to be computed again from its prompt and all tokens it has generated.
#include "actors/batch_policy.h"

#include "storage/check.h"

#include <algorithm>

namespace troupe {

// Blocks that this step's streams need beyond what is reserved for them.
int64_t batch_policy::blocks_to_grow() const {
  int64_t n = 0;
  for (const auto& t : running_) {
    if (t.paused) continue;
    for (const auto& s : t.sequences)
      if (s.live && s.n_left() <= 0) n += std::max<int64_t>(blocks_for(s.n_done + 1) - s.n_blocks, 0);
  }
  return n;
}

void batch_policy::make_room(step_plan& plan) {
  int64_t n_needed = blocks_to_grow();
  while (n_reserved_ + n_needed > limits_.n_blocks) {
    TROUPE_CHECK(running_.size() > 1, "a turn that is too large for all blocks is refused when it arrives");
    const auto before = [](const turn& a, const turn& b) { // of two, the one that is parked later
      return a.rank != b.rank ? a.rank < b.rank : a.queued_at < b.queued_at;
    };
    park(std::max_element(running_.begin(), running_.end(), before), plan);
    n_needed = blocks_to_grow();
  }
  if (n_needed == 0) return;
  n_reserved_ += n_needed;
  for (auto& t : running_) {
    if (t.paused) continue;
    for (auto& s : t.sequences)
      if (s.live && s.n_left() <= 0) s.n_blocks = std::max(s.n_blocks, blocks_for(s.n_done + 1));
  }
}

void batch_policy::park(turns::iterator t, step_plan& plan) {
  for (auto& s : t->sequences) {
    if (!s.live) continue;
    if (s.told) plan.ended.push_back({s.what.id, s.slot, s.n_done, true});
    release(s);
    s.told = false;
    s.n_done = 0;
    s.what.prompt.insert(s.what.prompt.end(), s.generated.begin() + s.n_resumed, s.generated.end());
    s.n_resumed = static_cast<int64_t>(s.generated.size());
  }
  t->is_started = false;
  t->is_parked = true;
  ++n_parkings_;
  waiting_.take_back(running_, t);
}

} // namespace troupe
