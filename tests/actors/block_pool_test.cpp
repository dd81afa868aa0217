// The ledger of KV blocks, and the prefix index that stores nothing yet.
#include "actors/block_pool.h"
#include "actors/prefix_index.h"

#include <doctest/doctest.h>

#include <set>

using namespace troupe;

namespace {
constexpr sequence_id a{1}, b{2};
} // namespace

TEST_CASE("block_pool: a sequence gets new blocks only when its tokens need them") {
  block_pool p(4, 8);
  CHECK(p.open(a));
  CHECK(p.extend(a, 8)->size() == 1);
  CHECK(p.extend(a, 8)->empty());
  CHECK(p.extend(a, 9)->size() == 1);
  CHECK(p.n_held() == 2);
  CHECK(p.n_free() + p.n_held() + p.n_cached() == p.n_total());
}

TEST_CASE("block_pool: no block has two holders") {
  block_pool p(8, 8);
  p.open(a);
  p.open(b);
  std::set<block_id> seen;
  for (int64_t n_tokens : {8, 20, 32}) {
    for (const auto id : {a, b}) {
      const auto fresh = p.extend(id, n_tokens);
      REQUIRE(fresh.has_value());
      for (const auto block : *fresh) CHECK(seen.insert(block).second);
    }
  }
  CHECK(seen.size() == 8);
}

TEST_CASE("block_pool: too little room takes nothing") {
  block_pool p(2, 8);
  p.open(a);
  CHECK_FALSE(p.extend(a, 17).has_value());
  CHECK(p.n_free() == 2);
  CHECK(p.extend(a, 16)->size() == 2);
}

TEST_CASE("block_pool: releasing twice is refused") {
  block_pool p(2, 8);
  p.open(a);
  p.extend(a, 10);
  CHECK(p.release(a));
  CHECK_FALSE(p.release(a));
  CHECK(p.n_free() == 2);
}

TEST_CASE("block_pool: opening twice and extending what is not open are refused") {
  block_pool p(2, 8);
  CHECK(p.open(a));
  CHECK_FALSE(p.open(a));
  CHECK_FALSE(p.extend(b, 1).has_value());
}

TEST_CASE("prefix_index: an empty index knows no prefix") {
  const prefix_index index;
  const std::vector<int32_t> prompt{1, 2, 3};
  CHECK(index.find(prompt, "") == 0);
  CHECK(index.n_entries() == 0);
}
