// The quantisers on the device: the bits of the twin.
#include "tests/cuda/twins.h"

#include <cmath>
#include <limits>

namespace troupe::test {
namespace {

constexpr quantiser all_quantisers[] = {quantiser::fp8_32, quantiser::fp4_e8m0_32, quantiser::fp4_e4m3_16};

TEST_CASE("cuda formats: all quantisers give the bits of the twin at every magnitude") {
  twins t;
  for (quantiser how : all_quantisers)
    for (float spread : {1e-44F, 1e-38F, 1e-30F, 1e-5F, 1e-3F, 1.0F, 700.0F, 1e30F})
      for (int64_t n : {1, 3, 33}) {
        auto values = random_floats(n * 96, 9, 1);
        for (float& v : values) v *= spread;
        const auto x = t.make(dtype::f32, {n, 96}, values);
        t.run([&](backend& b) { b.quantise(t.of(b, x), how); });
        t.equal("quantise", x);
      }
}

TEST_CASE("cuda formats: ties, signed zeros and the ends of the grids round as the twin's") {
  twins t;
  for (quantiser how : all_quantisers) {
    std::vector<float> values;
    for (int i = 0; i < 4096; ++i) // eighths of a step and their neighbours, in groups with one amax of 448 or 6
      for (float sign : {1.0F, -1.0F}) {
        const float at = (how == quantiser::fp8_32 ? 448.0F : 6.0F) * static_cast<float>(i) / 4096.0F;
        for (float v : {at, std::nextafter(at, 0.0F), std::nextafter(at, 1e9F)}) values.push_back(sign * v);
      }
    while (values.size() % 32 != 0) values.push_back(-0.0F);
    for (size_t i = 0; i < values.size(); i += 16) values[i] = how == quantiser::fp8_32 ? 448.0F : 6.0F;
    const auto x = t.make(dtype::f32, {static_cast<int64_t>(values.size() / 32), 32}, values);
    t.run([&](backend& b) { b.quantise(t.of(b, x), how); });
    t.equal("quantise, ties", x);
  }
}

TEST_CASE("cuda formats: one number that is none poisons its group and no other") {
  twins t;
  for (quantiser how : all_quantisers) {
    auto values = random_floats(4 * 96, 10);
    values[5] = std::numeric_limits<float>::quiet_NaN();
    values[130] = std::numeric_limits<float>::infinity();
    values[300] = -std::numeric_limits<float>::infinity();
    const auto x = t.make(dtype::f32, {4, 96}, values);
    t.run([&](backend& b) { b.quantise(t.of(b, x), how); });
    t.equal("quantise, a poisoned row", x);
  }
}

} // namespace
} // namespace troupe::test
