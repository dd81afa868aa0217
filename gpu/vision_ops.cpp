// Vision tower operations, the plain twins.
#include "gpu/vision_ops.h"

#include "gpu/dot.h"
#include "gpu/exp.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace troupe {

void rope_half_host(tensor x, tensor angles, int64_t heads) {
  const int64_t rows = x.rows();
  if (rows == 0) return;
  const int64_t half = angles.shape[1];
  TROUPE_CHECK(x.row_elements() == heads * 2 * half, "half an angle per element of a head");
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < half; ++i) {
      const float angle = angles.f32()[r * half + i];
      const float c = std::cos(angle), s = std::sin(angle);
      for (int64_t n = 0; n < heads; ++n) {
        float* v = x.f32() + (r * heads + n) * 2 * half;
        const float x1 = v[i], x2 = v[half + i];
        v[i] = x1 * c - x2 * s;
        v[half + i] = x2 * c + x1 * s;
      }
    }
}

void attention_full_host(tensor o, tensor q, tensor k, tensor v, float scale) {
  const int64_t rows = q.rows(), heads = q.shape[1], dim = q.shape[2];
  std::vector<float> score(static_cast<size_t>(rows));
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t r = 0; r < rows; ++r) {
      const float* query = q.f32() + (r * heads + head) * dim;
      float* out = o.f32() + (r * heads + head) * dim;
      for (int64_t i = 0; i < rows; ++i)
        score[static_cast<size_t>(i)] = row_dot(query, k.f32() + (i * heads + head) * dim, dim) * scale;
      const float top = *std::max_element(score.begin(), score.end());
      for (float& s : score) s = exp_f32(s - top);
      const float sum = row_sum(score.data(), rows);
      std::fill_n(out, dim, 0.0F);
      for (int64_t i = 0; i < rows; ++i) {
        const float p = score[static_cast<size_t>(i)];
        const float* value = v.f32() + (i * heads + head) * dim;
        for (int64_t d = 0; d < dim; ++d) out[d] = std::fma(p, value[d], out[d]);
      }
      for (int64_t d = 0; d < dim; ++d) out[d] /= sum;
    }
}

void gelu_host(tensor x) {
  for (int64_t i = 0; i < x.n_elements(); ++i) {
    float& v = x.f32()[i];
    v = 0.5F * v * (1.0F + std::erf(v * 0.70710678118654752F));
  }
}

void silu_mul_host(tensor y, tensor gate_up) {
  const int64_t width = y.rows() == 0 ? 0 : y.row_elements();
  for (int64_t r = 0; r < y.rows(); ++r)
    for (int64_t i = 0; i < width; ++i) {
      const float g = gate_up.f32()[r * 2 * width + i], u = gate_up.f32()[r * 2 * width + width + i];
      y.f32()[r * width + i] = silu_f32(g) * u;
    }
}

} // namespace troupe
