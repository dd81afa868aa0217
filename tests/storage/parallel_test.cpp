// Work over threads: each index once, failures carried to the caller.
#include "storage/check.h"
#include "storage/parallel.h"

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

using namespace troupe;

TEST_CASE("parallel: every index runs once, whatever the number of threads") {
  for (const unsigned n_threads : {1U, 3U, 64U})
    for (const size_t n : {size_t{0}, size_t{1}, size_t{100}}) {
      std::vector<std::atomic<int>> runs(n);
      for_each_parallel(n, n_threads, [&](size_t i) { ++runs[i]; });
      size_t n_once = 0;
      for (const auto& r : runs) n_once += r == 1;
      CHECK(n_once == n);
    }
  CHECK(n_cores() >= 1);
}

TEST_CASE("parallel: where no thread is to be had, those there are do it all") {
  fault::arm("parallel.no_thread");
  std::atomic<int> n_run{0};
  for_each_parallel(100, 4, [&](size_t) { ++n_run; });
  fault::disarm_all();
  CHECK(n_run == 100);
}

TEST_CASE("parallel: what failed first by index is thrown, and no index begins after it") {
  for (const unsigned n_threads : {1U, 4U}) {
    std::atomic<size_t> n_run{0};
    std::string found;
    try {
      for_each_parallel(1000000, n_threads, [&](size_t i) {
        ++n_run;
        if (i >= 10) throw std::runtime_error("index " + std::to_string(i));
      });
    } catch (const std::runtime_error& e) { found = e.what(); }
    CHECK(found == "index 10");
    CHECK(n_run < 11 + 4);
  }
}
