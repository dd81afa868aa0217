// Host memory and disk below the device: whatever moves, a hit shows what was saved, and limits hold.
#include "tests/actors/ledger_ring.h"

#include <algorithm>
#include <set>

using namespace troupe;
using namespace ledger_ring;

TEST_CASE("kv_ledger: what leaves the device goes to host memory and comes back from there (features 6.11)") {
  tiered_ring r(tiered(100, 40, 200, 0)); // 320 tokens on the device, 1,600 in host memory
  std::mt19937_64 random(1);
  std::vector<tokens> contexts;
  for (int i = 0; i < 8; ++i) {
    contexts.push_back(marked(random, 150 + i, 2000 + i));
    CHECK(r.ask(contexts.back(), 2) == 0);
  }
  for (int round = 0; round < 3; ++round)
    for (const auto& c : contexts) CHECK(r.ask(c, 2) == static_cast<int64_t>(c.size()) - 1);
  CHECK(r.ledger.index().n_slots_used() > 100);
  CHECK(r.device.n_from_memory > 0);
}

TEST_CASE("O31: host memory never holds more blocks or snapshots than its limit, whatever is asked") {
  const auto c = tiered(6, 40, 12, 0);
  tiered_ring r(c);
  std::mt19937_64 random(2);
  for (int i = 0; i < 1000; ++i) { // prefixes of up to 250 tokens where 96 fit
    r.ask(marked(random, 20 + static_cast<int64_t>(random() % 230), 2000 + i % 2 + static_cast<int>(random() % 4)), 2);
    CHECK(r.device.slots_of_host.size() <= 12);
    CHECK(r.device.snapshots.size() <= 6);
  }
}

TEST_CASE("O40: a prefix that left memory is found on disk, and the same after a restart") {
  const auto c = tiered(6, 40, 30, 1 << 20);
  tiered_ring r(c);
  std::mt19937_64 random(3);
  std::vector<tokens> contexts;
  for (int i = 0; i < 10; ++i) {
    contexts.push_back(marked(random, 150, 2000 + i));
    r.ask(contexts.back(), 2);
  }
  CHECK(r.ledger.explain({contexts[0], {}, ""}).missing == "disk");
  CHECK(r.ask(contexts[0], 2) == 149);
  CHECK(r.device.n_from_disk > 0);
  r.run();
  restarted_ring again(c, r.device);
  for (const auto& t : contexts) {
    CHECK(again.ask(t, 2) == 149);
    auto longer = t;
    longer.push_back(7);
    CHECK(again.ask(longer, 2) >= 149);
  }
  CHECK(again.device.disk.size() >= r.device.disk.size());
}

TEST_CASE("kv_ledger: a fork from the middle of a long prompt goes on at an interval snapshot behind a restart") {
  for (const int64_t interval : {16, 64, 1000}) {
    CAPTURE(interval);
    auto c = tiered(100, 400, 100, 1 << 20);
    c.snapshot_interval = interval;
    c.snapshot_bytes = 400; // as much as the blocks of 32 tokens
    c.snapshot_memory_bytes = 100 * c.snapshot_bytes;
    std::mt19937_64 random(13);
    tiered_ring r(c);
    const auto prompt = marked(random, 500, 2000);
    r.ask(prompt, 2);
    int64_t n_snapshots = 0, n_blocks = 0;
    for (const auto& [entry, s] : r.device.disk) ++(s.what.snapshot == snapshot_id{} ? n_blocks : n_snapshots);
    CHECK((n_snapshots - 2) * c.snapshot_bytes <= n_blocks * c.block_bytes); // besides both ends
    restarted_ring again(c, r.device);
    auto fork = tokens(prompt.begin(), prompt.begin() + 250);
    fork.push_back(7);
    const int64_t apart = std::max<int64_t>(interval, 32);
    CHECK(again.ask(fork, 2) == 250 / apart * apart);
  }
}

// O39 asks for bytes below 1.2 times those of the unique blocks. Blocks keep to once; a snapshot of window state, which
// is what makes them exact, is as large as thousands of tokens of blocks (design.md section 5), so a conversation of
// short turns writes two of them a turn on top, and disk_write_mb_per_hour bounds what that adds up to.
TEST_CASE("O38, O39: growing turns write each entry once, in deltas, and keep to the cap") {
  auto c = tiered(20, 400, 100, 200000);
  tiered_ring r(c);
  std::mt19937_64 random(4);
  tokens turn = marked(random, 30, 2000);
  for (int i = 0; i < 200; ++i) {
    r.ask(turn, 3);
    const auto reply = r.reply_of_last();
    turn.insert(turn.end(), reply.begin(), reply.end());
    for (int k = 0; k < 9; ++k) turn.push_back(static_cast<int32_t>(10 + random() % 3));
    CHECK(r.ledger.index().disk_bytes() <= c.disk_cache_bytes);
  }
  std::map<std::pair<std::vector<uint64_t>, int64_t>, int> by_content;
  for (const auto& [entry, n] : r.device.n_written) CHECK(n == 1);
  for (const auto& [entry, s] : r.device.disk) ++by_content[{s.what.symbols, s.what.n_tokens}];
  for (const auto& [content, n] : by_content) CHECK(n == 1);
  CHECK(r.device.n_written.size() < 2 * 200 + turn.size() / 8 + 2); // two snapshots a turn, and each block once
  CHECK(r.device.n_written.size() > 200);
}

TEST_CASE("O39: a disk that refuses is left alone for a while, and what is there is still found") {
  auto c = tiered(4, 40, 30, 1 << 20);
  tiered_ring r(c);
  std::mt19937_64 random(5);
  const auto kept = marked(random, 100, 2000);
  r.ask(kept, 2);
  const auto lost = marked(random, 100, 2001);
  r.admit(lost, 2);
  while (r.policy.has_step(r.now)) {
    r.step();
    r.answer(SIZE_MAX, false);
  }
  const auto n = r.device.n_written.size();
  for (int i = 0; i < 6; ++i) r.ask(marked(random, 100, 3000 + i), 2);
  CHECK(r.device.n_written.size() == n); // no more writes
  CHECK(r.ask(kept, 2) == 99);           // from disk
  CHECK(r.ask(lost, 2) == 0);            // from nowhere
  r.now += std::chrono::minutes(2);
  const auto later = marked(random, 100, 4000);
  r.ask(later, 2);
  CHECK(r.device.n_written.size() > n);
}

TEST_CASE("kv_ledger: writes of an hour keep to their budget") {
  auto c = tiered(100, 400, 100, 1 << 20);
  c.disk_bytes_per_hour = 5000;
  tiered_ring r(c);
  r.now += std::chrono::hours(5);
  std::mt19937_64 random(6);
  for (int i = 0; i < 20; ++i) r.ask(marked(random, 100, 2000 + i), 2);
  const auto n = r.device.n_written.size();
  CHECK(n * 100 < 5000 + 4000); // and the one that crossed the line
  r.now += std::chrono::minutes(61);
  r.ask(marked(random, 100, 3000), 2);
  CHECK(r.device.n_written.size() > n);
}

TEST_CASE("kv_ledger: a broken file is a miss, and the prompt is computed from what is there") {
  const auto c = tiered(4, 40, 30, 1 << 20);
  std::mt19937_64 random(7);
  const auto prompt = marked(random, 120, 2000);
  for (size_t broken = 0; broken < 16; ++broken) {
    CAPTURE(broken);
    tiered_ring r(c);
    r.ask(prompt, 2);
    restarted_ring again(c, r.device);
    auto at = again.device.disk.begin();
    std::advance(at, broken % again.device.disk.size());
    again.device.disk.erase(at);
    CHECK(again.ask(prompt, 2) <= 119);
    CHECK(again.ask(prompt, 2) == 119);
  }
}

TEST_CASE("kv_ledger: while a prefix is read the other streams run, and nobody else waits") {
  const auto c = tiered(6, 60, 30, 1 << 20);
  std::mt19937_64 random(12);
  const auto prompt = marked(random, 120, 2000);
  tiered_ring r(c);
  r.ask(prompt, 2);
  restarted_ring again(c, r.device);
  again.admit(marked(random, 20, 3000), 40);
  again.step();
  again.admit(prompt, 2);
  for (size_t n = 1; n < 12; ++n) { // the disk says nothing
    again.step();
    CHECK(again.said[sequence_id{100}].size() == n + 1);
  }
  again.admit(marked(random, 20, 3001), 5);
  for (int i = 0; i < 6; ++i) again.step();
  CHECK(again.said[sequence_id{300}].size() == 5);
  CHECK(again.n_waits == 0); // every one of these steps had rows to run
  CHECK(again.said[sequence_id{200}].empty());
  again.run();
  CHECK(again.device.n_cached.at(sequence_id{200}) == 119);
}

TEST_CASE("kv_ledger: a client that leaves while its prefix is read costs nothing but the read") {
  const auto c = tiered(4, 40, 30, 1 << 20);
  std::mt19937_64 random(8);
  const auto prompt = marked(random, 120, 2000);
  tiered_ring r(c);
  r.ask(prompt, 2);
  restarted_ring again(c, r.device);
  const auto turn = again.admit(prompt, 2);
  again.step();
  CHECK(again.device.reading.size() > 10);
  again.answer(5);
  again.step();
  CHECK(again.n_waits == 1); // a step that would only wait is known as such
  again.policy.cancel(turn);
  again.step();
  for (int i = 0; i < 4; ++i) { // others take what room there is
    again.admit(marked(random, 100, 3000 + i), 2);
    for (int k = 0; k < 20 && again.policy.has_step(again.now); ++k) again.step();
  }
  again.run();
  again.answer();
  CHECK(again.ask(prompt, 2) == 119);
}

TEST_CASE("kv_ledger: a pinned prefix stays through anything, until it is unpinned") {
  for (const int64_t disk_bytes : {0, 20000}) {
    CAPTURE(disk_bytes);
    tiered_ring r(tiered(10, 40, 40, disk_bytes));
    std::mt19937_64 random(9);
    const auto kept = marked(random, 100, 2000);
    CHECK(r.ledger.pin("system", {kept, {}, ""}).value().find("sent once") != std::string::npos);
    r.ask(kept, 2);
    CHECK_FALSE(r.ledger.pin("system", {kept, {}, ""}));
    const auto all = r.ledger.index().pins();
    REQUIRE(all.size() == 1);
    CHECK(all[0].name == "system");
    CHECK(all[0].n_tokens == 99);
    CHECK(all[0].n_blocks == 13);
    for (int i = 0; i < 60; ++i) r.ask(marked(random, 30 + i * 3, 3000 + i), 2);
    CHECK(r.ask(kept, 2) == 99);
    CHECK(r.ledger.unpin("system"));
    CHECK_FALSE(r.ledger.unpin("system"));
    for (int i = 0; i < 60; ++i) r.ask(marked(random, 30 + i * 3, 4000 + i), 2);
    CHECK(r.ask(kept, 2) == 0);
  }
}

TEST_CASE("kv_ledger: pins above their part of the budget are refused by name, and the old pin stays") {
  tiered_ring r(tiered(10, 80, 40, 0)); // 20 blocks may be pinned
  std::mt19937_64 random(10);
  const auto small = marked(random, 100, 2000), large = marked(random, 200, 2001);
  r.ask(small, 2);
  r.ask(large, 2);
  CHECK_FALSE(r.ledger.pin("a", {small, {}, ""}));
  const auto why = r.ledger.pin("a", {large, {}, ""});
  REQUIRE(why);
  CHECK(why->find("at most 20 blocks") != std::string::npos);
  CHECK(why->find("found 25") != std::string::npos);
  CHECK(r.ledger.index().pins().at(0).n_tokens == 99);
  CHECK(r.ledger.pin("b\nc", {small, {}, ""}).has_value());
  for (int i = 0; i < 4; ++i) CHECK_FALSE(r.ledger.pin("n" + std::to_string(i), {small, {}, ""})); // the same blocks
  CHECK(r.ledger.pin("one more", {small, {}, ""}).value().find("half of the snapshots") != std::string::npos);
}

TEST_CASE("kv_ledger: pins outlive a restart, and what they hold stays on disk") {
  const auto c = tiered(10, 40, 40, 20000);
  std::mt19937_64 random(11);
  const auto kept = marked(random, 100, 2000);
  tiered_ring r(c);
  r.ask(kept, 2);
  CHECK_FALSE(r.ledger.pin("system", {kept, {}, ""}));
  for (int i = 0; i < 10; ++i) r.ask(marked(random, 60, 3000 + i), 2);
  const auto pin = r.ledger.index().pins().at(0);
  CHECK(pin.entry != entry_id{});
  bench_ring again(c);
  again.device.disk = r.device.disk;
  again.ledger.restore(listing(again.device), {}, next_entry(again.device), {{"system", pin.entry}});
  again.check_each_step = true;
  CHECK(again.ledger.index().pins().at(0).n_tokens == 99);
  for (int i = 0; i < 60; ++i) again.ask(marked(random, 30 + i * 3, 4000 + i), 2);
  CHECK(again.ask(kept, 2) == 99);
}

TEST_CASE("kv_ledger: random turns, failures and restarts over small tiers never show wrong content") {
  for (uint64_t seed = 1; seed <= 80; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto pick = [&](int64_t low, int64_t high) { return ledger_ring::pick(random, low, high); };
    auto c = tiered(pick(1, 12), pick(20, 40), pick(0, 40), pick(0, 3) == 0 ? 0 : pick(500, 20000));
    c.snapshot_interval = std::vector<int64_t>{0, 1, 8, 13, 64}[random() % 5];
    c.snapshot_slack = pick(0, 5);
    c.disk_min_tokens = pick(1, 20);
    c.disk_queue_bytes = pick(0, 1) == 0 ? 1000 : 100000;
    if (pick(0, 2) == 0) c.tail_tokens = pick(1, 40);
    pretend_device before;
    std::vector<tokens> past{random_tokens(random, 50)};
    for (int life = 0; life < 3; ++life) {
      restarted_ring r(c, before);
      for (int i = 0; i < 150; ++i) {
        if (pick(0, 3) == 0) {
          r.admit(grow(random, past), pick(1, 12), static_cast<int>(pick(1, 3)), pick(0, 5) == 0 ? "salt" : "");
        }
        if (pick(0, 9) == 0) {
          const auto name = std::to_string(pick(0, 3));
          if (pick(0, 1) == 0)
            r.ledger.unpin(name);
          else
            (void)r.ledger.pin(name, {past[random() % past.size()], {}, ""});
        }
        if (pick(0, 19) == 0)
          r.policy.cancel(turn_id{static_cast<uint64_t>(pick(1, 1 + static_cast<int64_t>(r.last_turn)))});
        if (r.policy.has_step(r.now)) r.step(pick(0, 29) == 0 ? (pick(0, 1) == 0 ? 500 : 503) : 0);
        r.answer(static_cast<size_t>(pick(0, 6)), pick(0, 15) != 0);
        r.now += std::chrono::seconds(pick(0, 20));
      }
      r.run();
      r.check_replies();
      before = r.device;
    }
  }
}
