// Hyper-connection streams, the plain twins.
#include "gpu/mix.h"

#include "gpu/dot.h"
#include "gpu/exp.h"
#include "gpu/linear.h"

#include <algorithm>
#include <cmath>

namespace troupe {
namespace {

constexpr int64_t max_copies = 8;

// c (m, m), row j, column k. The last step normalises columns.
void sinkhorn(float* c, int64_t m, int iterations, float eps) {
  const auto rows = [&] {
    for (int64_t j = 0; j < m; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < m; ++k) sum += c[j * m + k];
      for (int64_t k = 0; k < m; ++k) c[j * m + k] /= sum + eps;
    }
  };
  const auto columns = [&] {
    for (int64_t k = 0; k < m; ++k) {
      float sum = 0;
      for (int64_t j = 0; j < m; ++j) sum += c[j * m + k];
      for (int64_t j = 0; j < m; ++j) c[j * m + k] /= sum + eps;
    }
  };
  for (int64_t j = 0; j < m; ++j) {
    float* row = c + j * m;
    const float top = *std::max_element(row, row + m);
    float sum = 0;
    for (int64_t k = 0; k < m; ++k) sum += row[k] = exp_f32(row[k] - top);
    for (int64_t k = 0; k < m; ++k) row[k] = row[k] / sum + eps;
  }
  columns();
  for (int i = 1; i < iterations; ++i) {
    rows();
    columns();
  }
}

} // namespace

void mix_coefficients(const mix_args& a, const float* z, int64_t row) {
  const int64_t m = a.pre.shape[1];
  const float *scale = a.scale.f32(), *base = a.base.f32();
  float* pre = a.pre.f32() + row * m;
  float* post = a.post.f32() + row * m;
  float* comb = a.comb.f32() + row * m * m;
  for (int64_t i = 0; i < m; ++i) {
    pre[i] = sigmoid_f32(z[i] * scale[0] + base[i]) + a.hc_eps;
    post[i] = 2.0F * sigmoid_f32(z[m + i] * scale[1] + base[m + i]);
  }
  for (int64_t i = 0; i < m * m; ++i) comb[i] = z[2 * m + i] * scale[2] + base[2 * m + i];
  sinkhorn(comb, m, a.iterations, a.hc_eps);
}

void mix_host(const mix_args& a) {
  const int64_t rows = a.h.rows();
  if (rows == 0) return;
  const int64_t m = a.h.shape[1], width = a.h.row_elements();
  TROUPE_CHECK(m <= max_copies && a.fn->out == (2 + m) * m && a.fn->in == width, "mix has (2 + M) M outputs over M D");
  float z[(2 + max_copies) * max_copies];
  for (int64_t r = 0; r < rows; ++r) {
    const tensor v = a.h.slice(r, 1).reshape({1, width});
    linear_host(tensor(z, dtype::f32, {1, a.fn->out}), v, *a.fn);
    const float by = 1.0F / std::sqrt(row_dot(v.f32(), v.f32(), width) / static_cast<float>(width) + a.eps);
    for (int64_t i = 0; i < a.fn->out; ++i) z[i] *= by;
    mix_coefficients(a, z, r);
  }
}

void fold_host(tensor x, tensor h, tensor pre) {
  const int64_t m = h.shape[1], dim = h.shape[2];
  for (int64_t r = 0; r < h.rows(); ++r) {
    float* out = x.f32() + r * dim;
    const float* w = pre.f32() + r * m;
    const float* in = h.f32() + r * m * dim;
    for (int64_t i = 0; i < dim; ++i) {
      float sum = w[0] * in[i];
      for (int64_t k = 1; k < m; ++k) sum = std::fma(w[k], in[k * dim + i], sum);
      out[i] = sum;
    }
  }
}

void expand_host(tensor h, tensor y, tensor post, tensor comb) {
  const int64_t m = h.shape[1], dim = h.shape[2];
  TROUPE_CHECK(m <= max_copies, "at most eight residual copies");
  for (int64_t r = 0; r < h.rows(); ++r) {
    float* stream = h.f32() + r * m * dim;
    const float* in = y.f32() + r * dim;
    const float *p = post.f32() + r * m, *c = comb.f32() + r * m * m;
    for (int64_t i = 0; i < dim; ++i) {
      float old[max_copies];
      for (int64_t j = 0; j < m; ++j) old[j] = stream[j * dim + i];
      for (int64_t k = 0; k < m; ++k) {
        float sum = p[k] * in[i];
        for (int64_t j = 0; j < m; ++j) sum = std::fma(c[j * m + k], old[j], sum);
        stream[k * dim + i] = sum;
      }
    }
  }
}

void spread_host(tensor h, tensor x) {
  const int64_t m = h.shape[1], dim = h.shape[2];
  for (int64_t r = 0; r < h.rows(); ++r)
    for (int64_t k = 0; k < m; ++k) std::copy_n(x.f32() + r * dim, dim, h.f32() + (r * m + k) * dim);
}

void mean_copies_host(tensor y, tensor h) {
  const int64_t m = h.shape[1], dim = h.shape[2];
  for (int64_t r = 0; r < h.rows(); ++r)
    for (int64_t i = 0; i < dim; ++i) {
      float sum = 0;
      for (int64_t k = 0; k < m; ++k) sum += h.f32()[(r * m + k) * dim + i];
      y.f32()[r * dim + i] = sum / static_cast<float>(m);
    }
}

} // namespace troupe
