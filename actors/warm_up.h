// One turn through the whole ring before the service is ready: progress was made in every rank.
#pragma once

#include "actors/ring.h"

#include <chrono>
#include <cstdint>
#include <vector>

namespace troupe {

struct warm_up_turn {
  std::vector<int32_t> prompt;
  int64_t n_tokens = 2;    // of each sequence; more than two measure what steps with drafts cost
  int32_t n_sequences = 1; // that decode beside each other
};

// Blocks until all tokens came back. What it leaves in the prefix cache is found by no client. Throws
// std::runtime_error saying what failed or that the deadline passed.
void run_warm_up(const ring&, const warm_up_turn&, std::chrono::seconds deadline);

} // namespace troupe
