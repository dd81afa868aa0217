// The ledger of KV blocks.
#include "actors/block_pool.h"

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

TEST_CASE("block_pool: a block is free again when no sequence and not the cache has it") {
  block_pool p(4, 8);
  p.open(a);
  const auto blocks = *p.extend(a, 16);
  p.keep(blocks[0]);
  p.keep(blocks[0]);
  p.open(b);
  CHECK(p.share(b, blocks));
  CHECK(p.n_held() == 2);
  p.release(a);
  CHECK(p.n_held() == 2);
  CHECK(p.table(b).size() == 2);
  p.release(b);
  CHECK(p.n_held() == 0);
  CHECK(p.n_cached() == 1);
  CHECK(p.n_free() == 3);
  p.open(a);
  CHECK_FALSE(p.share(a, blocks)); // the second one is free
  CHECK(p.table(a).empty());
  p.let_go(blocks[0]);
  CHECK(p.n_cached() == 1);
  p.let_go(blocks[0]);
  CHECK(p.n_free() == 4);
}
