// Hyper-connection streams against golden coefficients and the formulas.
#include "gpu/mix.h"

#include "tests/golden_file.h"
#include "tests/near.h"

#include <doctest/doctest.h>

#include <vector>

using namespace troupe;

TEST_CASE("mix: coefficients agree with the golden Sinkhorn cases") {
  test::golden_file want(test::golden_in_tree("model") / "units/sinkhorn.safetensors");
  const std::vector<float> z = want.floats("z");
  const int64_t n = 32, m = 4;
  std::vector<float> pre(n * m), post(n * m), comb(n * m * m);
  mix_args a;
  a.pre = tensor(pre.data(), dtype::f32, {n, m});
  a.post = tensor(post.data(), dtype::f32, {n, m});
  a.comb = tensor(comb.data(), dtype::f32, {n, m, m});
  a.scale = want.get("scale");
  a.base = want.get("base");
  for (int64_t r = 0; r < n; ++r) mix_coefficients(a, z.data() + r * (2 + m) * m, r);
  CHECK(test::relative_error(pre, want.floats("pre")) < 1e-6);
  CHECK(test::relative_error(post, want.floats("post")) < 1e-6);
  CHECK(test::relative_error(comb, want.floats("comb")) < 1e-5);
  CHECK(want.unused().empty());
}

TEST_CASE("mix: expand sums over the first index of the comb, fold weighs the copies") {
  std::vector<float> h{1, 10, 100, 1000}, y{5, 7}, post{2, 3}, comb{0.5F, 0.25F, 4, 8}; // M = 2, D = 2
  const tensor stream(h.data(), dtype::f32, {1, 2, 2});
  expand_host(stream, tensor(y.data(), dtype::f32, {1, 2}), tensor(post.data(), dtype::f32, {1, 2}),
              tensor(comb.data(), dtype::f32, {1, 2, 2}));
  CHECK(h == std::vector<float>{2 * 5 + 0.5F * 1 + 4 * 100, 2 * 7 + 0.5F * 10 + 4 * 1000, 3 * 5 + 0.25F * 1 + 8 * 100,
                                3 * 7 + 0.25F * 10 + 8 * 1000});
  std::vector<float> copies{1, 2, 3, 4}, pre{10, 100}, x(2);
  fold_host(tensor(x.data(), dtype::f32, {1, 2}), tensor(copies.data(), dtype::f32, {1, 2, 2}),
            tensor(pre.data(), dtype::f32, {1, 2}));
  CHECK(x == std::vector<float>{310, 420});
}

TEST_CASE("mix: spread copies a row, the mean gives it back") {
  std::vector<float> x{1, -2, 3, 4}, h(12), y(4); // two rows, D = 2, M = 3
  spread_host(tensor(h.data(), dtype::f32, {2, 3, 2}), tensor(x.data(), dtype::f32, {2, 2}));
  CHECK(h == std::vector<float>{1, -2, 1, -2, 1, -2, 3, 4, 3, 4, 3, 4});
  mean_copies_host(tensor(y.data(), dtype::f32, {2, 2}), tensor(h.data(), dtype::f32, {2, 3, 2}));
  CHECK(y == x);
}
