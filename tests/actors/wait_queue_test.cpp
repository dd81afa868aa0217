// Who starts next.
#include "actors/wait_queue.h"

#include <doctest/doctest.h>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

using instant = wait_queue::time;

batch_turns::iterator add(wait_queue& q, uint64_t id, int32_t rank, instant at, int64_t n_blocks = 1) {
  batch_turn t;
  t.id = turn_id{id};
  t.rank = rank;
  t.queued_at = at;
  t.n_live = n_blocks;
  return q.push(std::move(t));
}

std::vector<uint64_t> drain(wait_queue& q) {
  std::vector<uint64_t> ids;
  while (!q.empty()) {
    const auto t = q.next([](const batch_turn&) { return true; }, instant{});
    ids.push_back(static_cast<uint64_t>(t->id));
    q.erase(t);
  }
  return ids;
}

} // namespace

TEST_CASE("wait_queue: a class is overtaken by higher ones only within its patience") {
  wait_queue q;
  add(q, 1, 2, instant{});       // background
  add(q, 2, 1, instant{});       // batch
  add(q, 3, 0, instant{} + 1s);  // interactive
  add(q, 4, 0, instant{} + 9s);  // before batch
  add(q, 5, 0, instant{} + 11s); // after it
  add(q, 6, 0, instant{} + 61s); // after background
  CHECK(drain(q) == std::vector<uint64_t>{3, 4, 2, 5, 1, 6});
}

TEST_CASE("wait_queue: the position of a new turn counts those before it") {
  wait_queue q;
  for (uint64_t i = 1; i <= 3; ++i) add(q, i, 0, instant{});
  for (uint64_t i = 4; i <= 5; ++i) add(q, i, 2, instant{});
  CHECK(q.n_before(0, instant{} + 1s) == 3);
  CHECK(q.n_before(2, instant{} + 1s) == 5);
  CHECK(q.n_before(0, instant{} + 70s) == 5);
}

TEST_CASE("wait_queue: what fits passes a first turn that does not, for five seconds") {
  wait_queue q;
  add(q, 1, 0, instant{}, 100);
  for (uint64_t i = 2; i < 30; ++i) add(q, i, 0, instant{});
  const auto fits = [](const batch_turn& t) { return t.n_live < 10; };
  for (int i = 0; i < 5; ++i) {
    const auto t = q.next(fits, instant{} + std::chrono::seconds(i));
    REQUIRE(t != q.end());
    CHECK(t->id == turn_id{static_cast<uint64_t>(i) + 2});
    q.erase(t);
  }
  CHECK(q.next(fits, instant{} + 6s) == q.end());
  CHECK(q.next([](const batch_turn&) { return true; }, instant{} + 6s)->id == turn_id{1});
}

TEST_CASE("wait_queue: a first turn is passed by a bounded number, however fast they come") {
  wait_queue q;
  add(q, 1, 0, instant{}, 100);
  int n = 0;
  for (; n < 1000; ++n) {
    add(q, 2, 0, instant{});
    const auto t = q.next([](const batch_turn& t) { return t.n_live < 10; }, instant{});
    if (t == q.end()) break;
    q.erase(t);
  }
  CHECK(n == 64);
}
