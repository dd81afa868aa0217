// Choice of experts on the device against the host twin.
#include "tests/cuda/alone.h"

#include <cmath>

namespace troupe::test {
namespace {

// A gate whose outputs are the first elements of x, so that both sides route equal scores; they have few bits, lest a
// product be rounded.
struct world {
  twins t;
  int64_t n, n_experts, k, width;
  twin_tensor x, bias, bias_vl, vl, ids, weights;
  std::unique_ptr<matrix> host_gate, device_gate;

  world(int64_t rows, int64_t experts, int64_t chosen, float step, float spread)
      : n(rows), n_experts(experts), k(chosen), width((experts + 127) / 128 * 128) {
    std::vector<float> gate(static_cast<size_t>(n_experts * width));
    for (int64_t e = 0; e < n_experts; ++e) gate[static_cast<size_t>(e * width + e)] = 1;
    stored_matrix m;
    m.how = stored_matrix::format::dense;
    m.name = "gate", m.out = n_experts, m.in = width;
    m.weight = tensor(gate.data(), dtype::f32, {n_experts, width});
    host_gate = t.host->load(m), device_gate = t.device->load(m);
    const auto rounded = [&](int64_t count, unsigned seed, float by) {
      auto v = random_floats(count, seed, by);
      for (float& f : v) f = std::clamp(std::round(f / step), -127.0F, 127.0F) * step;
      return v;
    };
    x = t.make(dtype::f32, {n, width}, rounded(n * width, 1, spread));
    bias = t.make(dtype::f32, {n_experts}, rounded(n_experts, 2, spread / 4));
    bias_vl = t.make(dtype::f32, {n_experts}, rounded(n_experts, 3, spread));
    std::vector<int32_t> image;
    for (int64_t r = 0; r < n; ++r) image.push_back(static_cast<int32_t>(r % 3 == 1));
    vl = t.ints({n}, image);
    ids = t.output({n, k}, dtype::i32), weights = t.output({n, k});
  }
  void route(backend& b, int64_t first, int64_t count, bool images) {
    const auto of = [&](const twin_tensor& v) { return t.of(b, v.slice(first, count)); };
    b.route(of(ids), of(weights), of(x), &b == t.host.get() ? *host_gate : *device_gate, t.of(b, bias),
            images ? t.of(b, bias_vl) : tensor(), images ? of(vl) : tensor(), 1.5F);
  }
};

TEST_CASE("cuda route: the experts are the twin's, ties and images included") {
  struct shape {
    int64_t n, n_experts, k;
    float step, spread;
  };
  for (const shape& s : {shape{1, 384, 6, 0.0625F, 2},
                         {33, 384, 6, 0.0625F, 2},
                         {3, 128, 3, 0.5F, 20},
                         {33, 37, 4, 1, 1},
                         {5, 384, 6, 1, 0.5F},
                         {3, 1, 1, 1, 1},
                         {2, 9, 9, 1, 1},
                         {3, 385, 6, 1, 0.5F},
                         {2, 1024, 40, 1, 0.5F}}) {
    world w(s.n, s.n_experts, s.k, s.step, s.spread);
    for (const bool images : {false, true}) {
      w.t.run([&](backend& b) { w.route(b, 0, s.n, images); });
      w.t.equal("route ids", w.ids);
      w.t.near("route weights", w.weights, 1e-6);
      alone_equals_together("route", w.t, w.weights,
                            [&](backend& b, int64_t first, int64_t count) { w.route(b, first, count, images); });
    }
  }
}

} // namespace
} // namespace troupe::test
