// How full the queue is, and what a client that finds it full is told: position and expected wait (api.md 2.5). Knows
// no CAF.
#pragma once

#include "actors/counters.h"
#include "actors/turn_sink.h"

#include <cstdint>
#include <optional>

namespace troupe {

// What a newcomer finds.
struct queue_view {
  int64_t n_waiting = 0; // turns
  int64_t position = 1;  // it would have; 1 is next to start
  int64_t n_running = 0; // turns beside each other
  double turn_s = 0;     // how long a turn runs; 0: not known
  int32_t max_queue = 0;
};

// As fast as turns end: the mean turn over those that run beside each other. Between 1 s and 10 minutes.
int32_t expected_wait_s(const queue_view&);
// 429 with Retry-After and the position.
api_error queue_full(const queue_view&);
// The same for a turn that has waited as long as it may.
api_error waited_too_long(const queue_view&, int32_t max_wait_s);

// The check before any work is done for a turn: its body is not read, its prompt not prepared. `n_arriving`: turns
// whose bodies are being read. Turns that are being prepared may all start at once, so the places that are free count
// too. The scheduler's own limit is the exact one; this one bounds what is on the way to it.
std::optional<api_error> refuse_early(const counters&, int64_t n_arriving, int32_t max_queue, int32_t max_running);

} // namespace troupe
