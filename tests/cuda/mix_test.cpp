// The hyper-connection streams on the device against the host twins.
#include "tests/cuda/alone.h"

#include <cmath>

namespace troupe::test {
namespace {

struct mix_case {
  int64_t copies, dim;
};
constexpr mix_case mix_cases[] = {{4, 5120}, {4, 96}, {4, 37}, {1, 8}, {2, 32}, {3, 37}, {5, 16}, {6, 12}, {8, 64}};

TEST_CASE("cuda mix: coefficients are near the twin and a row's own") {
  twins t;
  for (const auto [m, dim] : mix_cases)
    for (int64_t n : {1, 3, 33, 130}) {
      const int64_t n_out = (2 + m) * m;
      auto weight = random_floats(n_out * m * dim, 20, 1.0F / std::sqrt(static_cast<float>(m * dim)));
      stored_matrix stored;
      stored.name = "fn";
      stored.out = n_out;
      stored.in = m * dim;
      stored.weight = tensor(weight.data(), dtype::f32, {n_out, m * dim});
      const auto on_host = t.host->load(stored), on_device = t.device->load(stored);
      const auto h = t.floats({n, m, dim}, 21, 3), scale = t.floats({3}, 22), base = t.floats({n_out}, 23);
      const auto pre = t.output({n, m}), post = t.output({n, m}), comb = t.output({n, m, m});
      const auto run = [&](backend& b, int64_t first, int64_t count) {
        mix_args a;
        a.pre = t.of(b, pre).slice(first, count);
        a.post = t.of(b, post).slice(first, count);
        a.comb = t.of(b, comb).slice(first, count);
        a.h = t.of(b, h).slice(first, count);
        a.fn = &b == t.host.get() ? on_host.get() : on_device.get();
        a.scale = t.of(b, scale);
        a.base = t.of(b, base);
        b.mix(a);
      };
      t.run([&](backend& b) { run(b, 0, n); });
      t.near("mix pre", pre, 1e-5);
      t.near("mix post", post, 1e-5);
      t.near("mix comb", comb, 2e-5);
      alone_equals_together("mix pre", t, pre, run);
      alone_equals_together("mix comb", t, comb, run);
    }
}

TEST_CASE("cuda mix: fold_norm has the bits of a fold and a norm, and a row its own") {
  twins t;
  for (const auto [m, dim] : mix_cases)
    for (int64_t n : {1, 3, 33}) {
      const auto h = t.floats({n, m, dim}, 40), pre = t.floats({n, m}, 41), weight = t.floats({dim}, 42);
      const auto apart = t.output({n, dim}), together = t.output({n, dim});
      backend& b = *t.device;
      b.fold(apart.device, h.device, pre.device);
      b.rms_norm(apart.device, apart.device, weight.device, 1e-6F);
      const auto run = [&](backend& on, int64_t first, int64_t count) {
        const auto of = [&](const twin_tensor& v) { return t.of(on, v.slice(first, count)); };
        on.fold_norm(of(together), of(h), of(pre), t.of(on, weight), 1e-6F);
      };
      t.run([&](backend& on) { run(on, 0, n); });
      CHECK(t.read_device<uint32_t>(together) == t.read_device<uint32_t>(apart));
      t.near("fold_norm", together, 1e-5);
      alone_equals_together("fold_norm", t, together, run);
    }
}

TEST_CASE("cuda mix: fold, expand and mean have the bits of the twin") {
  twins t;
  for (const auto [m, dim] : mix_cases)
    for (int64_t n : {1, 3, 33}) {
      const auto h = t.floats({n, m, dim}, 30), y = t.floats({n, dim}, 31), pre = t.floats({n, m}, 32);
      const auto post = t.floats({n, m}, 33), comb = t.floats({n, m, m}, 34);
      const auto folded = t.output({n, dim}), mean = t.output({n, dim});
      t.run([&](backend& b) {
        b.fold(t.of(b, folded), t.of(b, h), t.of(b, pre));
        b.mean_copies(t.of(b, mean), t.of(b, h));
        b.expand(t.of(b, h), t.of(b, y), t.of(b, post), t.of(b, comb));
      });
      t.equal("fold", folded);
      t.equal("mean_copies", mean);
      t.equal("expand", h);
      const auto also = t.floats({n, dim}, 35);
      t.run([&](backend& b) { b.expand_sum(t.of(b, h), t.of(b, y), t.of(b, also), t.of(b, post), t.of(b, comb)); });
      t.equal("expand_sum", h);
    }
}

} // namespace
} // namespace troupe::test
