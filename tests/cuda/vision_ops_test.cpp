// Vision tower operations on the device against the host twins.
#include "tests/cuda/alone.h"

namespace troupe::test {
namespace {

TEST_CASE("cuda vision_ops: half-split rotation is near the twin") {
  twins t;
  for (int64_t n : {1, 3, 33})
    for (int64_t heads : {1, 5, 16})
      for (int64_t half : {1, 19, 32}) {
        const auto x = t.floats({n, heads, 2 * half}, 60), angles = t.floats({n, half}, 61, 40);
        t.run([&](backend& b) { b.rope_half(t.of(b, x), t.of(b, angles), heads); });
        t.near("rope_half", x, 1e-6);
      }
}

TEST_CASE("cuda vision_ops: activations are near the twin") {
  twins t;
  for (int64_t n : {1, 3, 33})
    for (int64_t width : {1, 37, 96, 2816}) {
      const auto x = t.floats({n, width}, 62, 3), gate_up = t.floats({n, 2 * width}, 63, 4);
      const auto y = t.output({n, width});
      t.run([&](backend& b) {
        b.gelu(t.of(b, x));
        b.silu_mul(t.of(b, y), t.of(b, gate_up));
      });
      t.near("gelu", x, 1e-6);
      t.equal("silu_mul", y);
    }
}

TEST_CASE("cuda vision_ops: attention of all rows to all rows is near the twin") {
  twins t;
  struct shape {
    int64_t n, heads, dim;
  };
  for (const auto [n, heads, dim] :
       {shape{1, 1, 64}, {3, 2, 8}, {33, 3, 37}, {64, 2, 64}, {65, 4, 64}, {200, 2, 72}, {130, 1, 256}, {777, 2, 64}}) {
    const auto q = t.floats({n, heads, dim}, 64), k = t.floats({n, heads, dim}, 65), v = t.floats({n, heads, dim}, 66);
    const auto o = t.output({n, heads, dim});
    for (float scale : {0.125F, 2.0F}) {
      t.run([&](backend& b) { b.attention_full(t.of(b, o), t.of(b, q), t.of(b, k), t.of(b, v), scale); });
      t.near("attention_full", o, scale > 1 ? 3e-4 : 5e-5); // an error of a score is one of its weight
    }
  }
}

} // namespace
} // namespace troupe::test
