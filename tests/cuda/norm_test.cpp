// The norm on the device against its host twin.
#include "tests/cuda/alone.h"

namespace troupe::test {
namespace {

TEST_CASE("cuda norm: rows of any width are near the twin, and the same alone") {
  twins t;
  for (int64_t dim : {1, 3, 37, 64, 96, 512, 1280, 5120, 20480})
    for (int64_t n : {1, 3, 33}) {
      const auto x = t.floats({n, dim}, 3, 5), w = t.floats({dim}, 4), y = t.output({n, dim});
      t.run([&](backend& b) { b.rms_norm(t.of(b, y), t.of(b, x), t.of(b, w), 1e-6F); });
      t.near("rms_norm", y, 2e-6);
      alone_equals_together("rms_norm", t, y, [&](backend& b, int64_t first, int64_t count) {
        b.rms_norm(y.device.slice(first, count), x.device.slice(first, count), w.device, 1e-6F);
      });
      t.run([&](backend& b) { b.rms_norm(t.of(b, x), t.of(b, x), t.of(b, w), 1e-6F); });
      CHECK(t.read_device(x) == t.read_device(y)); // in place
    }
}

} // namespace
} // namespace troupe::test
