// Root mean square norm, the plain twin.
#include "gpu/norm.h"

#include "gpu/dot.h"

#include <cmath>

namespace troupe {

void rms_norm_host(tensor y, tensor x, tensor weight, float eps) {
  const int64_t rows = x.rows();
  if (rows == 0) return;
  const int64_t dim = x.row_elements();
  TROUPE_CHECK(y.n_elements() == x.n_elements() && weight.n_elements() == dim, "a norm keeps the shape of its rows");
  for (int64_t r = 0; r < rows; ++r) {
    const float* in = x.f32() + r * dim;
    float* out = y.f32() + r * dim;
    const float by = 1.0F / std::sqrt(row_dot(in, in, dim) / static_cast<float>(dim) + eps);
    for (int64_t i = 0; i < dim; ++i) out[i] = weight.f32()[i] * (in[i] * by);
  }
}

} // namespace troupe
