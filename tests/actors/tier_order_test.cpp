// Which entries leave a full disk first: what is cheap to compute again, and what nobody asked for the longest; a
// shared beginning never before what hangs on it.                                              bugs/ops.md O38;
// features 6.6
#include "tests/actors/ledger_ring.h"

using namespace troupe;
using namespace ledger_ring;

namespace {

// Memory holds everything, so the disk alone decides what it keeps.
kv_cache_config small_disk(int64_t disk_bytes) { return tiered(1000, 4000, 100, disk_bytes); }

struct disk_ring : tiered_ring {
  explicit disk_ring(const kv_cache_config& c) : tiered_ring(c), config(c) {}
  // Tokens of the prompt that a restart would find.
  int64_t on_disk(const tokens& prompt) {
    restarted_ring again(config, device);
    return again.ask(prompt);
  }
  tokens add(int64_t n, int32_t mark) {
    auto prompt = marked(random, n, mark);
    ask(prompt, 2);
    CHECK(ledger.index().disk_bytes() <= config.disk_cache_bytes);
    CHECK(on_disk(prompt) == n - 1); // the newest is there, whatever had to go
    return prompt;
  }

  kv_cache_config config;
  std::mt19937_64 random{21};
};

} // namespace

TEST_CASE("O38: of prefixes as long as one another those leave the disk first that were used the longest ago") {
  disk_ring r(small_disk(20000)); // 5 or 6 of them
  std::vector<tokens> all;
  for (int i = 0; i < 4; ++i) all.push_back(r.add(100, 2000 + i));
  for (const auto& t : all) CHECK(r.on_disk(t) == 99);
  CHECK(r.ask(all[0], 2) == 99); // used again: now the second one is the oldest
  for (int i = 4; i < 8; ++i) all.push_back(r.add(100, 2000 + i));
  CHECK(r.on_disk(all[0]) == 99);
  CHECK(r.on_disk(all[1]) == 0);
  CHECK(r.on_disk(all[2]) == 0);
  int64_t n_found = 0;
  for (const auto& t : all) n_found += r.on_disk(t) == 99;
  CHECK(n_found >= 4); // no more went than had to
  for (int i = 8; i < 40; ++i) r.add(100, 2000 + i);
  CHECK(r.on_disk(all[0]) == 0); // its turn came
}

TEST_CASE("O38: a prefix that is dear to compute again outlives cheap ones that are younger, but not for ever") {
  disk_ring r(small_disk(20000));
  const auto dear = r.add(300, 2000);
  const auto first = r.add(60, 2001);
  for (int i = 0; i < 6; ++i) r.add(60, 2002 + i);
  CHECK(r.on_disk(first) == 0);
  CHECK(r.on_disk(dear) == 299);
  for (int i = 0; i < 60; ++i) {
    if (i % 5 == 0) CHECK(r.ask(dear, 2) == 299); // who asks for it now and then finds it
    r.add(60, 2100 + i);
    REQUIRE(r.on_disk(dear) == 299);
  }
  for (int i = 0; i < 200; ++i) r.add(60, 2200 + i);
  CHECK(r.on_disk(dear) == 0);
}

TEST_CASE("O38: a short prefix that many ask for outlives long ones that were asked for once") {
  disk_ring r(small_disk(30000)); // 3 of the long ones
  const auto useful = r.add(60, 2000);
  for (int i = 0; i < 30; ++i) {
    CHECK(r.ask(useful, 2) == 59);
    r.add(200, 2100 + i);
    CHECK(r.on_disk(useful) == 59);
  }
}

TEST_CASE("O38: a beginning that others share stays on disk as long as one of them does, and is written once") {
  disk_ring r(small_disk(20000));
  const auto shared = r.add(80, 2000);
  std::vector<tokens> all;
  for (int i = 0; i < 30; ++i) {
    auto prompt = shared;
    const auto more = marked(r.random, 60, 3000 + i);
    prompt.insert(prompt.end(), more.begin(), more.end());
    r.ask(prompt, 2);
    CHECK(r.ledger.index().disk_bytes() <= 20000);
    CHECK(r.on_disk(prompt) == 139);
    all.push_back(prompt);
  }
  CHECK(r.on_disk(all.front()) < 139);
  CHECK(r.on_disk(all.front()) >= 79); // what it shares is there
  for (const auto& [entry, n] : r.device.n_written) CHECK(n == 1);
}
