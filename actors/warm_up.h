// One turn through the whole ring before the service is ready: progress was made in every rank.
#pragma once

#include "actors/ring.h"

#include <chrono>
#include <cstdint>
#include <vector>

namespace troupe {

// Blocks until two tokens came back. Throws std::runtime_error saying what failed or that the deadline passed.
void run_warm_up(const ring&, const std::vector<int32_t>& prompt, std::chrono::seconds deadline);

} // namespace troupe
