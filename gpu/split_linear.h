// Cuts linears into items for the thread pool; small ones stay on the calling thread.
#pragma once

#include "gpu/fast_linear.h"
#include "gpu/host_threads.h"

namespace troupe {

// The bits of linear_host and linear_grouped_host.
void linear_fast(vector_level level, host_threads& threads, tensor y, tensor x, const matrix& m);
void linear_grouped_fast(vector_level level, host_threads& threads, tensor y, tensor x,
                         std::span<const matrix* const> groups);

} // namespace troupe
