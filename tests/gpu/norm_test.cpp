// Root mean square norm.
#include "gpu/norm.h"

#include "tests/near.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

using namespace troupe;

namespace {

std::vector<float> random_floats(size_t n, unsigned seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(bits);
  return v;
}

} // namespace

TEST_CASE("norm: a row equals the formula in f64") {
  const int64_t rows = 3, dim = 37;
  std::vector<float> x = random_floats(rows * dim, 1), w = random_floats(dim, 2), y(rows * dim);
  rms_norm_host(tensor(y.data(), dtype::f32, {rows, dim}), tensor(x.data(), dtype::f32, {rows, dim}),
                tensor(w.data(), dtype::f32, {dim}), 1e-20F);
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < dim; ++i) sum += static_cast<double>(x[r * dim + i]) * x[r * dim + i];
    for (int64_t i = 0; i < dim; ++i)
      CHECK(y[r * dim + i] == doctest::Approx(w[i] * x[r * dim + i] / std::sqrt(sum / dim)).epsilon(1e-6));
  }
}

TEST_CASE("norm: a row of zeros stays zero with eps 1e-20") {
  std::vector<float> x(8), w(8, 1);
  const tensor t(x.data(), dtype::f32, {1, 8});
  rms_norm_host(t, t, tensor(w.data(), dtype::f32, {8}), 1e-20F);
  for (const float v : x) CHECK(v == 0);
}

TEST_CASE("norm: in place gives the same bits, and a row does not depend on the others") {
  const int64_t rows = 4, dim = 64;
  std::vector<float> x = random_floats(rows * dim, 3), w = random_floats(dim, 4), y(rows * dim), one(dim);
  const tensor weight(w.data(), dtype::f32, {dim});
  rms_norm_host(tensor(y.data(), dtype::f32, {rows, dim}), tensor(x.data(), dtype::f32, {rows, dim}), weight, 1e-20F);
  rms_norm_host(tensor(one.data(), dtype::f32, {1, dim}), tensor(x.data() + 2 * dim, dtype::f32, {1, dim}), weight,
                1e-20F);
  CHECK(std::vector<float>(y.begin() + 2 * dim, y.begin() + 3 * dim) == one);
  rms_norm_host(tensor(x.data(), dtype::f32, {rows, dim}), tensor(x.data(), dtype::f32, {rows, dim}), weight, 1e-20F);
  CHECK(x == y);
}

TEST_CASE("norm: no rows is a no-op") {
  float w = 1;
  rms_norm_host(tensor(&w, dtype::f32, {0, 1}), tensor(&w, dtype::f32, {0, 1}), tensor(&w, dtype::f32, {1}), 1e-20F);
  CHECK(w == 1);
}
