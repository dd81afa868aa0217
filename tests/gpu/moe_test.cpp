// Routing and experts: the formulas in f64, grouping and splitting that change no bit, ranks that own a part.
#include "gpu/backend.h"
#include "gpu/exp.h"
#include "gpu/fast_rows.h"
#include "gpu/moe.h"
#include "tests/near.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>

namespace troupe::test {
namespace {

constexpr int64_t dim = 96, width = 80, n_experts = 5, k = 2, rows = 19;

std::vector<float> normal(int64_t n, uint32_t seed, float by = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> d(0, by);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = d(random);
  return v;
}

stored_matrix stored(std::vector<float>& w, int64_t out, int64_t in) {
  stored_matrix m;
  m.name = std::string("expert");
  m.out = out;
  m.in = in;
  m.weight = tensor(w.data(), dtype::f32, {out, in});
  return m;
}

// Experts, a router and inputs, loaded into one backend.
struct moe_case {
  std::unique_ptr<backend> b;
  std::vector<std::vector<float>> weights;
  std::unique_ptr<expert_set> all, low, high;
  std::unique_ptr<matrix> gate, up, down, router;
  std::vector<float> x_values = normal(rows * dim, 3, 2);
  tensor x, y, ids, slot_weights, bias, bias_vl, vl;

  explicit moe_case(const host_backend_config& config) : b(make_host_backend(config)) {
    std::vector<stored_expert> e;
    weights.reserve(3 * n_experts + 1);
    for (uint32_t i = 0; i < n_experts; ++i) {
      auto& g = weights.emplace_back(normal(width * dim, 100 + i, 0.4F));
      auto& u = weights.emplace_back(normal(width * dim, 200 + i, 0.4F));
      auto& d = weights.emplace_back(normal(width * dim, 300 + i, 0.2F));
      e.push_back({stored(g, width, dim), stored(u, width, dim), stored(d, dim, width)});
    }
    all = b->load_experts(e, 0);
    low = b->load_experts(std::span(e).first(3), 0);
    high = b->load_experts(std::span(e).subspan(3), 3);
    gate = b->load(e[0].gate);
    up = b->load(e[0].up);
    down = b->load(e[0].down);
    auto& r = weights.emplace_back(normal(n_experts * dim, 400, 0.2F));
    router = b->load(stored(r, n_experts, dim));
    x = put({rows, dim}, x_values);
    y = b->allocate(dtype::f32, {rows, dim}, "y");
    ids = b->allocate(dtype::i32, {rows, k}, "ids");
    slot_weights = b->allocate(dtype::f32, {rows, k}, "weights");
    bias = put({n_experts}, normal(n_experts, 5, 0.3F));
    bias_vl = put({n_experts}, normal(n_experts, 6, 0.3F));
    vl = b->allocate(dtype::i32, {rows}, "vl");
    for (int64_t i = 0; i < rows; ++i) vl.i32()[i] = i % 3 == 0;
    b->route(ids, slot_weights, x, *router, bias, bias_vl, vl, 1.5F);
  }
  tensor put(std::initializer_list<int64_t> shape, const std::vector<float>& v) {
    tensor t = b->allocate(dtype::f32, shape, "input");
    b->upload(t, v.data(), t.size_bytes());
    return t;
  }
  std::vector<float> result() const { return {y.f32(), y.f32() + y.n_elements()}; }
  // Of the shared expert, for rows [first, first + n) of x.
  std::vector<float> gated(float limit, int64_t first = 0, int64_t n = rows) {
    std::vector<float> out(static_cast<size_t>(n * dim), -7.0F); // whatever was there
    b->gated_mlp(tensor(out.data(), dtype::f32, {n, dim}), x.slice(first, n), *gate, *up, *down, limit);
    return out;
  }
};

const host_backend_config scalar = {.n_threads = 1, .scalar_only = true};

std::vector<double> times(const std::vector<float>& w, const std::vector<double>& x, int64_t out) {
  std::vector<double> y(static_cast<size_t>(out));
  for (size_t n = 0; n < y.size(); ++n)
    for (size_t i = 0; i < x.size(); ++i) y[n] += w[n * x.size() + i] * x[i];
  return y;
}

std::vector<double> expert_exact(const moe_case& c, int64_t e, const std::vector<double>& x, double weight,
                                 double limit) {
  std::vector<double> g = times(c.weights[static_cast<size_t>(3 * e)], x, width);
  const std::vector<double> u = times(c.weights[static_cast<size_t>(3 * e + 1)], x, width);
  for (size_t i = 0; i < g.size(); ++i) {
    const double a = std::min(g[i], limit), b = std::clamp(u[i], -limit, limit);
    g[i] = a / (1 + std::exp(-a)) * b * weight;
  }
  return times(c.weights[static_cast<size_t>(3 * e + 2)], g, dim);
}

TEST_CASE("moe: routing picks by biased score and weighs by unbiased score, with the image bias inside an image") {
  const moe_case c(scalar);
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> x(c.x_values.begin() + r * dim, c.x_values.begin() + (r + 1) * dim);
    std::vector<double> s = times(c.weights.back(), x, n_experts);
    for (double& v : s) v = std::sqrt(std::log1p(std::exp(v)));
    const float* bias = c.vl.i32()[r] != 0 ? c.bias_vl.f32() : c.bias.f32();
    std::vector<int32_t> order = {0, 1, 2, 3, 4};
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return s[a] + bias[a] > s[b] + bias[b]; });
    const double sum = s[order[0]] + s[order[1]];
    for (int64_t j = 0; j < k; ++j) {
      CHECK(c.ids.i32()[r * k + j] == order[j]);
      CHECK(c.slot_weights.f32()[r * k + j] == doctest::Approx(s[order[j]] / sum * 1.5).epsilon(1e-5));
    }
  }
}

TEST_CASE("moe: equal scores take the lower expert first") {
  float score[4] = {1, 2, 2, 2}, weights[3];
  const float bias[4] = {1, 0, 0, 0};
  int32_t ids[3];
  route_row(ids, weights, score, bias, 4, 3, 1);
  CHECK(ids[0] == 0);
  CHECK(ids[1] == 1);
  CHECK(ids[2] == 2);
}

TEST_CASE("moe: experts and the shared expert follow the formula, clamp included") {
  moe_case c(scalar);
  constexpr float limit = 3; // low enough to act on this input
  c.b->experts(c.y, c.x, *c.all, c.ids, c.slot_weights, limit);
  std::vector<float> expected, expected_shared;
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> x(c.x_values.begin() + r * dim, c.x_values.begin() + (r + 1) * dim);
    const std::vector<double> shared = expert_exact(c, 0, x, 1, limit);
    expected_shared.insert(expected_shared.end(), shared.begin(), shared.end());
    std::vector<double> sum(dim);
    for (int64_t j = 0; j < k; ++j) {
      const auto part = expert_exact(c, c.ids.i32()[r * k + j], x, c.slot_weights.f32()[r * k + j], limit);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    expected.insert(expected.end(), sum.begin(), sum.end());
  }
  CHECK(rms_error(c.result(), expected) < 1e-6);
  CHECK(rms_error(c.gated(limit), expected_shared) < 1e-6);
}

TEST_CASE("moe: grouping rows by expert, vectors and threads change no bit") {
  moe_case twin(scalar);
  twin.b->experts(twin.y, twin.x, *twin.all, twin.ids, twin.slot_weights, 10);
  const std::vector<float> gated = twin.gated(0);
  for (int n_threads : {1, 2, 3}) {
    moe_case c({.n_threads = n_threads});
    CHECK(std::memcmp(c.ids.data, twin.ids.data, static_cast<size_t>(c.ids.size_bytes())) == 0);
    CHECK(std::memcmp(c.slot_weights.data, twin.slot_weights.data, static_cast<size_t>(c.ids.size_bytes())) == 0);
    c.b->experts(c.y, c.x, *c.all, c.ids, c.slot_weights, 10);
    CHECK(c.result() == twin.result());
    CHECK(c.gated(0) == gated);
    // A row alone has the bits it has among others.
    c.b->experts(c.y.slice(4, 1), c.x.slice(4, 1), *c.all, c.ids.slice(4, 1), c.slot_weights.slice(4, 1), 10);
    CHECK(c.result() == twin.result());
    CHECK(c.gated(0, 4, 1) == std::vector<float>(gated.begin() + 4 * dim, gated.begin() + 5 * dim));
  }
}

TEST_CASE("moe: sets of some experts leave out the slots of others, and their sums add up to the whole") {
  for (const bool is_scalar : {true, false}) {
    moe_case c({.n_threads = 2, .scalar_only = is_scalar});
    c.b->experts(c.y, c.x, *c.low, c.ids, c.slot_weights, 10);
    std::vector<float> sum = c.result();
    c.b->experts(c.y, c.x, *c.high, c.ids, c.slot_weights, 10);
    const std::vector<float> high = c.result();
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += high[i];
    c.b->experts(c.y, c.x, *c.all, c.ids, c.slot_weights, 10);
    CHECK(rms_error(sum, c.result()) < 1e-6);
    for (int64_t r = 0; r < rows; ++r)
      if (c.ids.i32()[r * k] < 3 && c.ids.i32()[r * k + 1] < 3)
        for (int64_t i = 0; i < dim; ++i) CHECK_UNARY(high[static_cast<size_t>(r * dim + i)] == 0);
    c.b->experts(c.y.slice(0, 0), c.x.slice(0, 0), *c.all, c.ids.slice(0, 0), c.slot_weights.slice(0, 0), 10);
  }
}

TEST_CASE("moe: the activation has the same bits at every vector level, also for values that are not finite") {
  std::vector<float> g = normal(77, 1, 30), u = normal(77, 2, 20);
  g[3] = NAN, g[9] = INFINITY, g[11] = -INFINITY, u[20] = NAN, u[40] = -INFINITY, g[75] = NAN;
  for (float limit : {10.0F, 0.0F}) {
    std::vector<float> expected = g;
    gate_activation(expected.data(), u.data(), 77, 0.7F, limit);
    for (const vector_level level : supported_vector_levels()) {
      if (level == vector_level::scalar) continue;
      std::vector<float> a = g;
      row_kernels_of(level)->gate_activation(a.data(), u.data(), 77, 0.7F, limit);
      for (size_t i = 0; i < a.size(); ++i)
        CHECK_UNARY((a[i] == expected[i] || (std::isnan(a[i]) && std::isnan(expected[i]))));
    }
  }
}

TEST_CASE("exp: within one unit in the last place, and right at the edges") {
  double worst = 0;
  for (float x = -87.25F; x < 88.7F; x += 0.003F) {
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::fabs(exp_f32(x) - exact) / exact);
  }
  CHECK(worst < 0x1p-23);
  CHECK(exp_f32(0) == 1);
  CHECK(exp_f32(-INFINITY) == 0);
  CHECK(exp_f32(-1000) == 0);
  CHECK(std::isinf(exp_f32(89)));
  CHECK(std::isnan(exp_f32(NAN)));
}

} // namespace
} // namespace troupe::test
