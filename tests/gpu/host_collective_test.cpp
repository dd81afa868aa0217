// Collectives between threads: fixed order of sums, deadline, abort, contributions that do not fit.
#include "gpu/backend.h"
#include "gpu/collective.h"
#include "tests/says.h"

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <string>
#include <system_error>
#include <thread>

namespace troupe {
namespace {

using namespace std::chrono_literals;

// Runs one function a rank, each in a thread; returns what each threw ("" for nothing).
std::vector<std::string> run_ranks(int n, std::chrono::milliseconds deadline,
                                   const std::function<void(collective&)>& work) {
  auto members = make_host_collectives(n, deadline);
  std::vector<std::string> errors(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      try {
        work(*members[static_cast<size_t>(r)]);
      } catch (const std::system_error& e) { errors[static_cast<size_t>(r)] = e.what(); }
    });
  for (auto& t : threads) t.join();
  return errors;
}

TEST_CASE("host_collective: a sum runs in rank order and has the same bits on every rank") {
  for (int n : {1, 2, 3}) {
    std::atomic<int> n_wrong = 0;
    const auto value = [](int rank, size_t i) { return 1.0F / static_cast<float>(3 + i * 7 + 1000 * rank); };
    const auto errors = run_ranks(n, 10s, [&](collective& c) {
      for (size_t round = 0; round < 50; ++round) {
        std::vector<float> x(round * 13 % 101);
        for (size_t i = 0; i < x.size(); ++i) x[i] = value(c.rank(), i + round);
        c.all_reduce_sum(x);
        for (size_t i = 0; i < x.size(); ++i) {
          float expected = value(0, i + round);
          for (int r = 1; r < n; ++r) expected += value(r, i + round);
          n_wrong += x[i] != expected ? 1 : 0;
        }
      }
    });
    for (const auto& e : errors) CHECK(e.empty());
    CHECK(n_wrong == 0);
  }
}

TEST_CASE("host_collective: a gather holds the ranks one after another") {
  std::atomic<int> n_wrong = 0;
  const auto errors = run_ranks(3, 10s, [&](collective& c) {
    const std::vector<float> mine = {static_cast<float>(c.rank()), 10.0F + static_cast<float>(c.rank())};
    std::vector<float> all(6);
    c.all_gather(all, mine);
    n_wrong += all != std::vector<float>{0, 10, 1, 11, 2, 12};
  });
  for (const auto& e : errors) CHECK(e.empty());
  CHECK(n_wrong == 0);
}

TEST_CASE("host_collective: a rank that does not arrive is named to the others, and the group stays broken") {
  const auto errors = run_ranks(3, 30ms, [](collective& c) {
    std::vector<float> x(8);
    if (c.rank() != 1) c.all_reduce_sum(x);
  });
  CHECK(says(errors[0], "rank 1 did not arrive within 30 ms"));
  CHECK(errors[1].empty());
  CHECK(says(errors[2], "rank 1 did not arrive within 30 ms"));

  auto members = make_host_collectives(2, 1ms);
  std::vector<float> x(1);
  CHECK_THROWS_AS(members[0]->all_reduce_sum(x), std::system_error);
  CHECK_THROWS_AS(members[1]->all_reduce_sum(x), std::system_error);
}

TEST_CASE("host_collective: an abort wakes the waiting ranks") {
  const auto errors = run_ranks(2, 10min, [](collective& c) {
    std::vector<float> x(8);
    if (c.rank() == 0)
      c.all_reduce_sum(x);
    else
      c.abort();
  });
  CHECK(says(errors[0], "aborted"));
  CHECK(errors[1].empty());
}

TEST_CASE("host_collective: ranks that call different operations all hear of it") {
  const auto sizes = run_ranks(2, 10s, [](collective& c) {
    std::vector<float> x(c.rank() == 0 ? 8 : 9);
    c.all_reduce_sum(x);
  });
  for (const auto& e : sizes)
    CHECK(says(e, "rank 0 calls all_reduce_sum of 8 values, rank 1 calls all_reduce_sum of 9"));
  const auto kinds = run_ranks(2, 10s, [](collective& c) {
    std::vector<float> x(4), y(8);
    if (c.rank() == 0)
      c.all_reduce_sum(x);
    else
      c.all_gather(y, x);
  });
  for (const auto& e : kinds) CHECK(says(e, "all_gather of 4"));
}

TEST_CASE("host_collective: backends of a group reduce and gather, one alone keeps its values") {
  const auto errors = run_ranks(2, 10s, [](collective& c) {
    auto b = make_host_backend({.n_threads = 1, .group = &c});
    tensor x = b->allocate(dtype::f32, {2}, "x"), y = b->allocate(dtype::f32, {2, 2}, "y");
    const float mine[2] = {1.0F + static_cast<float>(b->rank()), 5};
    b->upload(x, mine, sizeof mine);
    b->all_gather(y, x);
    b->all_reduce_sum(x);
    if (b->n_ranks() != 2 || y.f32()[0] != 1 || y.f32()[2] != 2 || x.f32()[0] != 3 || x.f32()[1] != 10)
      throw std::system_error(std::make_error_code(std::errc::io_error), "a wrong value");
  });
  for (const auto& e : errors) CHECK(e.empty());
  auto alone = make_host_backend({.n_threads = 1});
  tensor x = alone->allocate(dtype::f32, {2}, "x"), y = alone->allocate(dtype::f32, {1, 2}, "y");
  x.f32()[1] = 3;
  alone->all_reduce_sum(x);
  alone->all_gather(y, x);
  CHECK(x.f32()[1] == 3);
  CHECK(y.f32()[1] == 3);
}

} // namespace
} // namespace troupe
