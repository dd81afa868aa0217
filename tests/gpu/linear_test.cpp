// The linear: the twin against f64, every vector level against the twin bit for bit, splitting over threads.
#include "gpu/fast_linear.h"
#include "gpu/formats.h"
#include "gpu/split_linear.h"
#include "tests/near.h"

#include <doctest/doctest.h>

#include <cstring>
#include <random>

namespace troupe::test {
namespace {

struct linear_case {
  int64_t out, in;
  bool is_bf16, has_bias;
};
constexpr linear_case cases[] = {{128, 256, true, false},  {160, 300, false, true}, {24, 1024, false, false},
                                 {8, 256, true, true},     {33, 77, true, false},   {1, 530, false, true},
                                 {96, 1300, false, false}, {320, 512, true, true}};

std::vector<float> normal(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> d;
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = d(random);
  return v;
}

struct made {
  std::vector<float> w, bias;
  memory_account account{INT64_MAX, 0};
  std::unique_ptr<host_matrix> m;

  explicit made(const linear_case& c, uint32_t seed = 1)
      : w(normal(c.out * c.in, seed)), bias(normal(c.out, seed + 1)) {
    if (c.is_bf16)
      for (float& v : w) v = bf16_to_f32(f32_to_bf16(v));
    stored_matrix stored;
    stored.name = std::string("linear");
    stored.out = c.out;
    stored.in = c.in;
    stored.weight = tensor(w.data(), dtype::f32, {c.out, c.in});
    if (c.has_bias) stored.bias = tensor(bias.data(), dtype::f32, {c.out});
    m = std::make_unique<host_matrix>(stored, account);
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_CASE("linear: the twin is within the bound of a fused sum, and panels hold the weights exactly") {
  for (const auto& c : cases) {
    INFO(c.out << " x " << c.in);
    const made a(c);
    CHECK(a.m->is_bf16() == c.is_bf16);
    int n_wrong = 0;
    for (int64_t n = 0; n < c.out; ++n)
      for (int64_t k = 0; k < c.in; ++k) n_wrong += a.m->weight(n, k) != a.w[static_cast<size_t>(n * c.in + k)] ? 1 : 0;
    CHECK(n_wrong == 0);
    std::vector<float> x = normal(3 * c.in, 9), y(static_cast<size_t>(3 * c.out));
    linear_host(tensor(y.data(), dtype::f32, {3, c.out}), tensor(x.data(), dtype::f32, {3, c.in}), *a.m);
    for (int64_t r = 0; r < 3; ++r)
      for (int64_t n = 0; n < c.out; ++n) {
        exact_dot d = dot_exact(x.data() + r * c.in, 1, a.w.data() + n * c.in, 1, c.in);
        if (c.has_bias) {
          d.sum += a.bias[static_cast<size_t>(n)];
          d.sum_abs += std::fabs(a.bias[static_cast<size_t>(n)]);
        }
        n_wrong += std::fabs(y[static_cast<size_t>(r * c.out + n)] - d.sum) > sum_bound(c.in, d.sum_abs) ? 1 : 0;
      }
    CHECK(n_wrong == 0);
  }
}

TEST_CASE("linear: every vector level gives the bits of the twin for every number of rows, and touches nothing else") {
  for (const auto& c : cases) {
    const made a(c);
    constexpr int64_t most_rows = 29;
    const std::vector<float> x = normal(most_rows * c.in, 5);
    std::vector<float> expected(static_cast<size_t>(most_rows * c.out));
    for (int64_t r = 0; r < most_rows; ++r) linear_row(expected.data() + r * c.out, x.data() + r * c.in, *a.m);
    for (const vector_level level : supported_vector_levels())
      for (int64_t rows = 1; rows <= most_rows; ++rows) {
        INFO(std::string(name(level)) << ", " << c.out << " x " << c.in << ", rows " << rows);
        const int64_t stride = c.out + 3;
        std::vector<float> y(static_cast<size_t>(rows * stride), 7.0F);
        linear_panels(level, *a.m, 0, a.m->n_panels(), y.data(), stride, x.data(), c.in, rows);
        int n_wrong = 0;
        for (int64_t r = 0; r < rows; ++r) {
          n_wrong += std::memcmp(y.data() + r * stride, expected.data() + r * c.out,
                                 static_cast<size_t>(c.out) * sizeof(float)) != 0;
          for (int64_t i = c.out; i < stride; ++i) n_wrong += y[static_cast<size_t>(r * stride + i)] != 7.0F;
        }
        CHECK(n_wrong == 0);
      }
  }
}

TEST_CASE("linear: splitting over threads and groups keeps the bits") {
  const linear_case c = {320, 512, true, true};
  const made a(c, 1), b(c, 11), d(c, 21);
  const matrix* groups[] = {a.m.get(), b.m.get(), d.m.get()};
  const int64_t rows = 70;
  std::vector<float> x = normal(rows * 3 * c.in, 5);
  const tensor in(x.data(), dtype::f32, {rows, 3, c.in}), one(x.data(), dtype::f32, {rows * 3, c.in});
  std::vector<float> y(static_cast<size_t>(rows * 3 * c.out)), expected = y, expected_one = y;
  const tensor out(y.data(), dtype::f32, {rows, 3, c.out});
  linear_grouped_host(tensor(expected.data(), dtype::f32, {rows, 3, c.out}), in, groups);
  linear_host(tensor(expected_one.data(), dtype::f32, {rows * 3, c.out}), one, *a.m);
  for (const vector_level level : supported_vector_levels())
    for (int n_threads : {1, 2, 3}) {
      host_threads threads(n_threads);
      std::fill(y.begin(), y.end(), 0.0F);
      linear_grouped_fast(level, threads, out, in, groups);
      CHECK(same_bits(y, expected));
      linear_fast(level, threads, out.reshape({rows * 3, c.out}), one, *a.m);
      CHECK(same_bits(y, expected_one));
    }
}

} // namespace
} // namespace troupe::test
