// Turns that wait: their order, and who may start. Knows no CAF.
#pragma once

#include "actors/batch_state.h"

#include <chrono>
#include <cstdint>
#include <functional>

namespace troupe {

// Ordered by arrival plus the patience of the class (interactive 0, batch 10 s, background 60 s): a turn of a lower
// class is overtaken only by what arrives within its patience, so none waits for ever.
class wait_queue {
public:
  using time = batch_turn::time;

  // `queued_at` and `rank` are set; sets what orders it.
  batch_turns::iterator push(batch_turn&&);
  // The first one whose reader is not behind, or end(): what cannot run keeps nobody waiting.
  batch_turns::iterator first();
  // The next turn to start, or end(). While the first does not fit, those behind it that do may pass it, for a while.
  batch_turns::iterator next(const std::function<bool(const batch_turn&)>& fits, time now);
  void move_to(batch_turns& to, batch_turns::iterator t) { to.splice(to.end(), turns_, t); }
  // A parked turn, not to be passed by: an interactive one before all that never ran, others where they stood.
  void take_back(batch_turns& from, batch_turns::iterator);
  void erase(batch_turns::iterator t) { turns_.erase(t); }

  // Turns that a new one of this class would have before it.
  int64_t n_before(int32_t rank, time now) const;
  int64_t size() const { return static_cast<int64_t>(turns_.size()); }
  bool empty() const { return turns_.empty(); }
  batch_turns::iterator begin() { return turns_.begin(); }
  batch_turns::iterator end() { return turns_.end(); }

private:
  batch_turns::iterator place(batch_turn::time due);
  batch_turns turns_;
};

} // namespace troupe
