// Vector forms of what works on one row at a time, as a table of functions for each vector level. The scalar table
// holds the twins; the others give the same bits.
#pragma once

#include "gpu/backend.h"
#include "gpu/vector_level.h"

namespace troupe {

struct row_kernels {
  // gpu/moe.h
  void (*gate_activation)(float* g, const float* u, int64_t n, float weight, float limit);
};

// Any level of supported_vector_levels().
const row_kernels& row_kernels_of(vector_level level);

} // namespace troupe
