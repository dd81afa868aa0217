// The vector form of the linear: panels of 32 outputs side by side, several rows or panels at once.
#pragma once

#include "gpu/linear.h"
#include "gpu/vector_level.h"

namespace troupe {

// y[r * y_stride + n] for the outputs n of panels [first, last) and rows r < n_rows, x[r * x_stride + k] likewise: the
// bits of linear_row. Any level of supported_vector_levels(). Precondition: y and x do not overlap.
void linear_panels(vector_level level, const host_matrix& m, int64_t first, int64_t last, float* y, int64_t y_stride,
                   const float* x, int64_t x_stride, int64_t n_rows);

} // namespace troupe
