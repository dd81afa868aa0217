// Bytes on their way between host memory and the disk: bounded, and a part of what host_cache_mb says.
#include "tests/actors/ledger_ring.h"
#include "tests/actors/tier_ring.h"
#include "tests/safetensors_writer.h"

#include <algorithm>

using namespace troupe;
using namespace ledger_ring;

TEST_CASE("kv_ledger: however long a prompt is, no more than the queue is on its way to disk, and all of it arrives") {
  for (const int64_t queue : {int64_t{0}, int64_t{900}, int64_t{5000}}) {
    CAPTURE(queue);
    auto c = tiered(100, 400, 200, 1 << 20);
    c.disk_queue_bytes = queue;
    tiered_ring r(c, 400);
    std::mt19937_64 random(31);
    const auto prompt = marked(random, 800, 2000); // 100 blocks
    r.admit(prompt, 300);
    constexpr int64_t largest = 300; // an entry with its header and symbols
    int64_t most = 0;
    while (r.policy.has_step(r.now)) {
      r.step();
      most = std::max(most, r.ledger.index().writing_bytes());
      r.answer(random() % 4);
    }
    CHECK(most > 0);
    CHECK(most <= std::max(queue, largest));
    r.run();
    r.answer();
    CHECK(r.ledger.index().writing_bytes() == 0);
    restarted_ring again(c, r.device);
    CHECK(again.ask(prompt, 2) == 799);
    for (const auto& [entry, n] : r.device.n_written) CHECK(n == 1);
  }
}

TEST_CASE("kv_ledger: what is on its way has its part of the host memory, and blocks the rest") {
  kv_cache_config c;
  c.block_bytes = 1000;
  c.snapshot_bytes = 5000;
  c.share_host_memory(1'000'000);
  CHECK(c.n_slots() == 1000); // no disk, nothing moves
  c.disk_cache_bytes = 1;
  c.share_host_memory(1'000'000);
  CHECK(c.disk_queue_bytes == 125'000);
  const int64_t batch = blocks_at_once * 1000 + 6000;
  CHECK(c.host_cache_bytes + c.disk_queue_bytes + most_batches * batch + 2 * 6000 == 1'000'000);
  c.share_host_memory(10'000); // too little for both: what comes back from disk has no place
  CHECK(c.n_slots() == 0);
}

TEST_CASE("tiers: a rank that is busy has no more than two batches of the disk's reads before it") {
  const test::temp_folder folder;
  const auto prompt = some_tokens(64 * 40 + 10, 32);
  tier_ring plain({.n_slots = 0, .n_snapshots = 0});
  const auto want = plain.ask(prompt);
  { tier_ring({.folder = folder.path()}).ask(prompt); }
  tier_ring r({.folder = folder.path()});
  const auto got = r.start(tier_ring::completion_of(prompt, 4));
  const auto& n_reads = r.r.numbers->disk_reads;
  REQUIRE(r.w.run_until([&] { return n_reads > 0; }));
  r.w.held = "rank";
  r.w.run();
  CHECK(n_reads == 1 + blocks_at_once); // the snapshot closes its batch
  r.w.held.clear();
  r.w.run();
  REQUIRE(got->has_ended());
  CHECK(n_reads == 1 + 40);
  CHECK(got->usage.cached_tokens == static_cast<int64_t>(prompt.size()) - 1);
  same(*got, *want);
}
