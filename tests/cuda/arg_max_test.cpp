// arg_max against its host twin.
#include "tests/cuda/twins.h"

namespace troupe::test {
namespace {

TEST_CASE("cuda arg_max: the twin's index, of equals the lowest, and no number is the least") {
  twins t;
  for (int64_t rows : {1, 3, 33})
    for (int64_t width : {1, 37, 4096, 4097, 129280}) {
      auto x = random_floats((rows + 2) * width, 1), y = random_floats(rows * width, 2);
      for (size_t i = 0; i < x.size(); i += 3) x[i] = std::round(x[i]); // many equal sums
      for (size_t i = 0; i < y.size(); i += 2) y[i] = std::round(y[i]);
      y[0] = NAN;
      if (rows > 1)
        for (int64_t v = 0; v < width; ++v) y[static_cast<size_t>(width + v)] = v % 2 == 0 ? NAN : -INFINITY;
      std::vector<int32_t> at;
      for (int64_t r = 0; r < rows; ++r) at.push_back(static_cast<int32_t>((r * 7 + 2) % (rows + 2)));
      const auto a = t.make(dtype::f32, {rows + 2, width}, x), b = t.make(dtype::f32, {rows, width}, y);
      const auto index = t.ints({rows}, at), ids = t.output({rows}, dtype::i32);
      for (int again = 0; again < 2; ++again) { // counters are as they were
        t.run([&](backend& be) { be.arg_max(t.of(be, ids), t.of(be, a), t.of(be, index), t.of(be, b)); });
        CHECK(t.read_device<int32_t>(ids) == t.read_host<int32_t>(ids));
      }
      t.equal("arg_max", ids);
    }
}

} // namespace
} // namespace troupe::test
