// One turn through the whole ring before the service is ready: progress was made in every rank.
#pragma once

#include "actors/ring.h"

#include <chrono>
#include <cstdint>
#include <vector>

namespace troupe {

// Blocks until `n_tokens` came back; more than two measure what steps with drafts cost. Throws std::runtime_error
// saying what failed or that the deadline passed.
void run_warm_up(const ring&, const std::vector<int32_t>& prompt, std::chrono::seconds deadline, int64_t n_tokens = 2);

} // namespace troupe
