// The sampler of a CUDA backend.
#pragma once

#include "gpu/backend.h"
#include "gpu/sample.h"

#include <memory>

namespace troupe {

// Takes memory of `device`, which outlives it.
std::unique_ptr<row_sampler> make_cuda_sampler(backend& device, int64_t vocabulary, int64_t max_rows);

} // namespace troupe
