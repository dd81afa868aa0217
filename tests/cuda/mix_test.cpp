// The hyper-connection streams on the device against the host twins.
#include "tests/cuda/alone.h"

#include <cmath>

namespace troupe::test {
namespace {

struct mix_case {
  int64_t copies, dim;
};
constexpr mix_case mix_cases[] = {{4, 5120}, {4, 96}, {4, 37}, {1, 8}, {2, 32}, {3, 37}, {5, 16}, {6, 12}, {8, 64}};

stored_matrix matrix_of(std::vector<float>& weight, int64_t n_out, int64_t in) {
  weight = random_floats(n_out * in, 20, 1.0F / std::sqrt(static_cast<float>(in)));
  stored_matrix m;
  m.name = "fn";
  m.out = n_out;
  m.in = in;
  m.weight = tensor(weight.data(), dtype::f32, {n_out, in});
  return m;
}

// 128 inputs and multiples of them with four copies have a kernel for prompts of their own.
TEST_CASE("cuda mix: coefficients are near the twin and a row's own, in both classes") {
  twins t;
  std::vector<mix_case> cases(std::begin(mix_cases), std::end(mix_cases));
  cases.insert(cases.end(), {{4, 32}, {4, 288}});
  for (const auto [m, dim] : cases)
    for (int64_t n : {1, 3, 33, 130}) {
      const int64_t n_out = (2 + m) * m;
      std::vector<float> weight;
      const stored_matrix stored = matrix_of(weight, n_out, m * dim);
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
      for (const bool prompts : {false, true}) {
        t.device->set_row_classes(prompts ? std::span<const row_run>(all_prefill) : std::span<const row_run>());
        t.run([&](backend& b) { run(b, 0, n); });
        t.near(prompts ? "mix pre of prompts" : "mix pre", pre, 1e-5);
        t.near(prompts ? "mix post of prompts" : "mix post", post, 1e-5);
        t.near(prompts ? "mix comb of prompts" : "mix comb", comb, 2e-5);
        alone_equals_together("mix pre", t, pre, run);
        alone_equals_together("mix post", t, post, run);
        alone_equals_together("mix comb", t, comb, run);
      }
    }
}

// The product itself, which the gates of the case above would hide behind their slopes: with no base it can be read
// back from the first gates.
TEST_CASE("cuda mix: products of prompts keep the bits of f32 weights") {
  twins t;
  t.device->set_row_classes(all_prefill);
  const int64_t n = 64, dim = 5120;
  std::vector<float> weight;
  const stored_matrix stored = matrix_of(weight, 24, 4 * dim);
  const auto on_device = t.device->load(stored);
  const auto h = t.floats({n, 4, dim}, 21, 3), base = t.floats({24}, 23, 0);
  const auto scale = t.make(dtype::f32, {3}, std::vector<float>{1, 1, 1});
  const auto pre = t.output({n, 4}), post = t.output({n, 4}), comb = t.output({n, 4, 4});
  mix_args a;
  a.pre = pre.device, a.post = post.device, a.comb = comb.device, a.h = h.device, a.fn = on_device.get();
  a.scale = scale.device, a.base = base.device, a.hc_eps = 0;
  t.device->mix(a);
  const std::vector<float> in = t.read_host(h), got = t.read_device(pre);
  double error = 0, size = 0;
  for (int64_t r = 0; r < n; ++r) {
    const float* x = in.data() + r * 4 * dim;
    double squares = 0;
    for (int64_t k = 0; k < 4 * dim; ++k) squares += static_cast<double>(x[k]) * x[k];
    for (int64_t o = 0; o < 4; ++o) {
      double z = 0;
      for (int64_t k = 0; k < 4 * dim; ++k)
        z += static_cast<double>(x[k]) * weight[static_cast<size_t>(o * 4 * dim + k)];
      z /= std::sqrt(squares / static_cast<double>(4 * dim));
      const double g = got[static_cast<size_t>(r * 4 + o)], back = std::log(g / (1 - g));
      error += (back - z) * (back - z), size += z * z;
    }
  }
  error = std::sqrt(error / size);
  MESSAGE("mix product of prompts: rms error " << error << ", bound 1e-6");
  CHECK(error <= 1e-6);
}

// Few and many rows have blocks of their own.
TEST_CASE("cuda mix: rows of prompts have the same bits in both sizes of block and with small scratch") {
  twins t, small(1 << 20);
  for (twins* on : {&t, &small}) on->device->set_row_classes(all_prefill);
  const int64_t n = 2300, dim = 1024;
  std::vector<float> weight;
  const stored_matrix stored = matrix_of(weight, 24, 4 * dim);
  const auto read = [&](twins& of, int64_t first, int64_t count) {
    const auto fn = of.device->load(stored);
    const auto h = of.floats({n, 4, dim}, 21, 3), scale = of.floats({3}, 22), base = of.floats({24}, 23);
    const auto pre = of.output({count, 4}), post = of.output({count, 4}), comb = of.output({count, 4, 4});
    mix_args a;
    a.pre = pre.device, a.post = post.device, a.comb = comb.device, a.h = h.device.slice(first, count);
    a.fn = fn.get(), a.scale = scale.device, a.base = base.device;
    of.device->mix(a);
    return std::pair(of.read_device(pre), of.read_device(comb));
  };
  const auto together = read(t, 0, n), in_slabs = read(small, 0, n);
  CHECK(together == in_slabs);
  for (const int64_t count : {1, 50, 300}) {
    const auto [pre, comb] = read(t, n - count, count);
    CHECK_MESSAGE(std::equal(pre.begin(), pre.end(), together.first.end() - 4 * count), count << " rows");
    CHECK_MESSAGE(std::equal(comb.begin(), comb.end(), together.second.end() - 16 * count), count << " rows");
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

TEST_CASE("cuda mix: expand_fold_norm has the bits of an expansion and a folded norm, and a row its own") {
  twins t;
  for (const auto [m, dim] : mix_cases)
    for (const bool has_also : {false, true})
      for (int64_t n : {1, 3, 300}) { // forms for few rows and for many
        const auto values = random_floats(n * m * dim, 50);
        const auto h = t.make(dtype::f32, {n, m, dim}, values), apart = t.make(dtype::f32, {n, m, dim}, values);
        const auto y = t.floats({n, dim}, 51), post = t.floats({n, m}, 52), comb = t.floats({n, m, m}, 53);
        const auto pre = t.floats({n, m}, 54), weight = t.floats({dim}, 55), also = t.floats({n, dim}, 56);
        const auto x = t.output({n, dim}), x_apart = t.output({n, dim});
        const auto last_of = [&](const twin_tensor& v, int64_t count) { return v.device.slice(n - count, count); };
        // Of the last `count` rows.
        const auto run = [&](tensor streams, tensor to, int64_t count) {
          t.device->expand_fold_norm(streams, last_of(y, count), has_also ? last_of(also, count) : tensor{},
                                     last_of(post, count), last_of(comb, count), to, last_of(pre, count), weight.device,
                                     1e-6F);
        };
        t.host->expand_fold_norm(h.host, y.host, has_also ? also.host : tensor{}, post.host, comb.host, x.host,
                                 pre.host, weight.host, 1e-6F);
        run(h.device, x.device, n);
        t.equal("expand_fold_norm, streams", h);
        t.near("expand_fold_norm", x, 1e-5);
        backend& b = *t.device;
        if (has_also)
          b.expand_sum(apart.device, y.device, also.device, post.device, comb.device);
        else
          b.expand(apart.device, y.device, post.device, comb.device);
        b.fold_norm(x_apart.device, apart.device, pre.device, weight.device, 1e-6F);
        CHECK(t.read_device<uint32_t>(h) == t.read_device<uint32_t>(apart));
        CHECK(t.read_device<uint32_t>(x) == t.read_device<uint32_t>(x_apart));
        const auto row = t.make(dtype::f32, {1, m, dim}, std::vector<float>(values.end() - m * dim, values.end()));
        const auto of_row = t.output({1, dim});
        run(row.device, of_row.device, 1);
        CHECK(t.read_device<uint32_t>(of_row) == t.read_device<uint32_t>(x.slice(n - 1, 1)));
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
