// Attention of prompt rows where caches hold records, on Hopper.
#pragma once

#include "gpu/backend.h"
#include "gpu/cuda_lane.h"

#include <cstdint>

namespace troupe {

// By shapes and types alone, so all rows of a class go one way: 64 heads of 512, all caches of records.
bool attention_prompt_serves(const attention_args&, const cuda_lane&);

// Rows [first, first + n_rows) of the step. Precondition: it serves them, and step_kv was rounded as the rings are:
// what f16 does not hold of it is lost. Needs no scratch.
void attention_prompt_cuda(const attention_args&, const step_rows&, int64_t first, int64_t n_rows, const cuda_lane&);

} // namespace troupe
