// y[r,:] = w * x[r,:] / sqrt(mean(x[r,:]^2) + eps), sums in f32.                       Spec: model.md, "Notation".
#pragma once

#include "gpu/tensor.h"

namespace troupe {

// x, y (rows, dim) f32, y may be x | weight (dim) f32 | rows == 0 is a no-op | no allocation.
// A row's sum of squares: see row_dot in gpu/dot.h, so its bits do not depend on other rows.
void rms_norm_host(tensor y, tensor x, tensor weight, float eps);

} // namespace troupe
