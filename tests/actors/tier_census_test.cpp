// What several ranks' disks say: only what all of them have counts.
#include "actors/tier_census.h"

#include <doctest/doctest.h>

using namespace troupe;

namespace {

tier_stored entry(uint64_t id, uint64_t parent = 0) {
  return {entry_id{id}, entry_id{parent}, false, 64, 0, "salt", {id, 2}};
}

} // namespace

TEST_CASE("tier_census: an entry counts when all ranks have it, the others are strays") {
  tier_census c(2);
  CHECK_FALSE(c.take(tier_listed{1, {entry(1), entry(2)}, false, true, {}}));
  CHECK_FALSE(c.take(tier_listed{1, {entry(1), entry(7)}, true, true, {}}));
  const auto found = c.take(tier_listed{1, {entry(3)}, true, true, {}});
  REQUIRE(found);
  REQUIRE(found->entries.size() == 1);
  CHECK(found->entries[0].entry == entry_id{1});
  CHECK(found->strays == std::vector{entry_id{2}, entry_id{3}, entry_id{7}});
  CHECK(found->next == entry_id{8});
}

TEST_CASE("tier_census: entries of one number that differ are strays on both ranks") {
  tier_census c(2);
  c.take(tier_listed{1, {entry(1)}, true, true, {}});
  const auto found = c.take(tier_listed{1, {entry(1, 5)}, true, true, {}});
  REQUIRE(found);
  CHECK(found->entries.empty());
  CHECK(found->strays.size() == 1);
}

TEST_CASE("tier_census: an order is done when every rank has done it") {
  tier_census c(3);
  CHECK_FALSE(c.take(tier_result{entry_id{4}, true, true}));
  CHECK_FALSE(c.take(tier_result{entry_id{4}, true, false}));
  CHECK_FALSE(c.take(tier_result{entry_id{5}, true, true}));
  CHECK(c.take(tier_result{entry_id{4}, true, true}) == false);
  CHECK_FALSE(c.take(tier_result{entry_id{5}, true, true}));
  CHECK(c.take(tier_result{entry_id{5}, true, true}) == true);
}
