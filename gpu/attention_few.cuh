// Attention of rows of the decode class, 512 wide (attention_few.cu). For .cu files only.
#pragma once

#include "gpu/attention_keys.cuh"
#include "gpu/cuda_lane.h"

namespace troupe {

// By shape and device alone, so that a row's bits are its own.
bool attention_few_serves(const device::attention_view&, const cuda_lane&);
// Rows [first, first + n) of the step. No scratch.
void attention_few(device::attention_view, int64_t first, int64_t n, const cuda_lane&);

} // namespace troupe
