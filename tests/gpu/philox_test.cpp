// The counter-based random numbers of sampling: known answers, range, independence of seed, choice and position.
#include "gpu/philox.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <set>

using namespace troupe;

TEST_CASE("philox: the known answers of its authors' library") {
  using four = std::array<uint32_t, 4>;
  CHECK(philox({0, 0, 0, 0}, {0, 0}) == four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) == four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("philox: random_unit stays in [0, 1) and depends on seed, choice and position") {
  double sum = 0;
  std::set<double> distinct;
  for (int64_t i = 0; i < 10000; ++i) {
    const double u = random_unit(5, 0, i);
    CHECK((u >= 0 && u < 1));
    sum += u;
    distinct.insert(u);
  }
  CHECK(distinct.size() == 10000);
  CHECK(std::abs(sum / 10000 - 0.5) < 0.015);
  CHECK(random_unit(5, 0, 7) != random_unit(6, 0, 7));
  CHECK(random_unit(5, 0, 7) != random_unit(5, 1, 7));
  CHECK(random_unit(5, 0, 7) != random_unit(5 + (uint64_t{1} << 40), 0, 7));
  CHECK(random_unit(5, 0, 7) != random_unit(5, 0, 7 + (int64_t{1} << 40)));
}
