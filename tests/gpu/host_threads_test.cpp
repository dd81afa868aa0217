// The fork-join pool: every item once, loop after loop, also when threads wake late.
#include "gpu/host_threads.h"

#include <doctest/doctest.h>

#include <vector>

namespace troupe {
namespace {

TEST_CASE("host_threads: every item of every loop runs once, whatever the number of threads") {
  for (int n_threads : {1, 2, 4}) {
    host_threads pool(n_threads);
    CHECK(pool.size() == n_threads);
    std::vector<int> counts;
    int n_wrong = 0;
    for (int64_t n = 0; n < 2000; ++n) {
      counts.assign(static_cast<size_t>(n % 37), 0);
      pool.for_each(static_cast<int64_t>(counts.size()), [&](int64_t i) { ++counts[static_cast<size_t>(i)]; });
      for (int c : counts) n_wrong += c != 1 ? 1 : 0;
    }
    CHECK(n_wrong == 0);
  }
}

TEST_CASE("host_threads: a sleeping pool wakes for the next loop") {
  host_threads pool(3);
  std::vector<int64_t> sums(64);
  for (int round = 0; round < 20; ++round) {
    pool.for_each(64, [&](int64_t i) { sums[static_cast<size_t>(i)] += i; });
    std::this_thread::yield();
  }
  for (int64_t i = 0; i < 64; ++i) CHECK(sums[static_cast<size_t>(i)] == 20 * i);
}

} // namespace
} // namespace troupe
