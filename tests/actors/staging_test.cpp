// Where a rank finds the rows of its step, and what ends its waiting.
#include "actors/staging.h"
#include "tests/says.h"

#include <doctest/doctest.h>

#include <future>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

void write_rows(staging_buffer& b, uint64_t epoch, uint64_t step, std::byte what, bool fails = false) {
  const int32_t slot = b.take_slot();
  for (std::byte& x : b.slot(slot, 3)) x = what;
  std::vector<sequence_failure> failures;
  if (fails) failures.push_back({sequence_id{9}, "row 7", 503});
  b.finish(epoch, step, slot, std::move(failures));
}

std::future<staged_rows> begin_wait(const staging_buffer& b, uint64_t epoch, uint64_t step) {
  return std::async(std::launch::async, [&b, epoch, step] { return b.wait(epoch, step, 2, 60s); });
}

} // namespace

TEST_CASE("staging: a step finds its rows by its number, in whichever slot they were read last") {
  staging_buffer b;
  b.resize(4, 3);
  b.begin_epoch(1);
  for (uint64_t step = 1; step < 30; ++step) {
    write_rows(b, 1, step, static_cast<std::byte>(step), step % 2 == 0);
    if (step % 3 == 0) b.take_slot(); // of an engram_fetch that died
    const auto rows = b.wait(1, step, 2, 0ms);
    CHECK(rows.missing == "");
    CHECK(rows.failures.size() == (step % 2 == 0 ? 1 : 0));
    REQUIRE(rows.bytes.size() == 8);
    for (const std::byte x : rows.bytes) CHECK(x == static_cast<std::byte>(step));
  }
  CHECK(b.wait(1, 1, 2, 0ms).missing == "the Engram rows of step 1 were not read within 0 ms"); // its slot went on
}

TEST_CASE("staging: a rank that waits is woken by its step alone") {
  staging_buffer b;
  b.resize(4, 3);
  b.begin_epoch(1);
  auto waits = begin_wait(b, 1, 5);
  write_rows(b, 1, 4, std::byte{4});
  write_rows(b, 1, 5, std::byte{5});
  const auto rows = waits.get();
  CHECK(rows.missing == "");
  CHECK(rows.bytes[0] == std::byte{5});
}

TEST_CASE("staging: a deadline, a new epoch and an end are told apart") {
  staging_buffer b;
  b.resize(4, 3);
  b.begin_epoch(1);
  const auto late = b.wait(1, 2, 2, 1ms);
  CHECK(says(late.missing, "step 2 were not read within 1 ms"));
  CHECK_FALSE(late.is_over);
  auto waits = begin_wait(b, 1, 2);
  b.begin_epoch(2);
  const auto old = waits.get();
  CHECK(says(old.missing, "step 2: its epoch is over"));
  CHECK(old.is_over);
  waits = begin_wait(b, 2, 1);
  b.close();
  const auto ended = waits.get();
  CHECK(says(ended.missing, "step 1: its rank is to end"));
  CHECK(ended.is_over);
  write_rows(b, 2, 1, std::byte{1});
  CHECK(b.wait(2, 1, 2, 60s).missing == ""); // what is there is there
}
