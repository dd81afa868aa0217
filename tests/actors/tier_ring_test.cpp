// The tiers through the real ring with the shipped model: what comes back from host memory or from disk, after a
// restart too, gives the tokens and log-probabilities of a run that never lost it.
#include "storage/check.h"
#include "tests/actors/tiny_ring.h"
#include "tests/safetensors_writer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

using namespace troupe;
namespace fs = std::filesystem;

namespace {

using tokens = std::vector<int32_t>;

struct tier_settings {
  int64_t n_blocks = 260, n_slots = 260, n_snapshots = 50;
  fs::path folder{}; // empty: no disk
  int64_t disk_bytes = int64_t{1} << 30;
  int32_t chunk = 512;
};

// One life of a server.
struct tier_ring : tiny_ring {
  explicit tier_ring(const tier_settings& s)
      : tiny_ring({.n_blocks = s.n_blocks, .max_running = 2, .chunk = s.chunk, .interval = 4096},
                  [&s](ring_config& c) { add_tiers(c, s); }) {
    r.parts.max_context = r.parts.info.context;
    r.parts.prepare = w.own(spawn_prepare(w.system(), {r.parts.config, r.parts.info, r.parts.max_context}, text, 0));
  }
  static void add_tiers(ring_config& c, const tier_settings& s) {
    const auto bytes = plan_state(tiny_folder, host_caches);
    c.prefix.snapshot_memory_bytes = s.n_snapshots * bytes.per_snapshot;
    c.prefix.block_bytes = bytes.per_block;
    c.prefix.host_cache_bytes = s.n_slots * bytes.per_block;
    c.prefix.fingerprint = "fp_test";
    c.prefix.disk_min_tokens = 100;
    if (s.folder.empty()) return;
    c.prefix.disk_cache_bytes = s.disk_bytes;
    c.disk = tier_disk_config{s.folder, "fp_test", 0, 1, s.disk_bytes};
  }
  std::shared_ptr<exact_sink> ask(const tokens& prompt, int64_t max_tokens = 4) {
    auto q = tiny_completion("", max_tokens);
    q.prompts.clear();
    q.prompt_ids = {prompt};
    return tiny_ring::ask(q);
  }
};

tokens some(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  tokens out(static_cast<size_t>(n));
  for (auto& t : out) t = 300 + static_cast<int32_t>(random() % 1500);
  return out;
}

void same(const exact_sink& got, const exact_sink& want) {
  CHECK(got.ids() == want.ids());
  CHECK(got.said == want.said);
}

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> out;
  for (const auto& f : fs::recursive_directory_iterator(folder))
    if (f.path().extension() == ".tier") out.push_back(f.path());
  std::sort(out.begin(), out.end());
  return out;
}

struct disarmed {
  ~disarmed() { fault::disarm_all(); }
};

} // namespace

TEST_CASE("tiers: what went out to host memory and came back gives the same bits") {
  tier_ring small({.n_blocks = 8, .n_slots = 40}), plain({.n_blocks = 100, .n_slots = 0, .n_snapshots = 0});
  std::vector<std::shared_ptr<exact_sink>> want;
  for (uint64_t i = 0; i < 4; ++i) want.push_back(plain.ask(some(300, i)));
  for (int round = 0; round < 3; ++round)
    for (uint64_t i = 0; i < 4; ++i) {
      const auto got = small.ask(some(300, i));
      CHECK(got->usage.cached_tokens == (round == 0 ? 0 : 299));
      same(*got, *want[i]);
    }
  CHECK(small.r.numbers->cache_hits_memory > 0);
}

TEST_CASE("O40: a prefix is restored from disk after a restart, and the conversation goes on with the same bits") {
  const test::temp_folder folder;
  tier_ring plain({.n_slots = 0, .n_snapshots = 0});
  auto prompt = some(400, 1);
  {
    tier_ring first({.folder = folder.path()});
    const auto got = first.ask(prompt, 20);
    CHECK(got->usage.cached_tokens == 0);
    prompt.insert(prompt.end(), got->ids().begin(), got->ids().end());
    CHECK(first.r.numbers->disk_writes == 6 + 2); // full blocks of 419 tokens, ends of prompt and reply
    CHECK(files_below(folder.path()).size() == 8);
    CHECK(first.r.numbers->disk_bytes > 0);
  } // no drain: as if killed
  const auto more = some(50, 2);
  prompt.insert(prompt.end(), more.begin(), more.end());
  const auto want = plain.ask(prompt, 12);
  tier_ring second({.folder = folder.path()});
  const auto got = second.ask(prompt, 12);
  CHECK(got->usage.cached_tokens == 419);
  same(*got, *want);
  CHECK(second.r.numbers->cache_hits_disk > 0);
  CHECK(second.ask(prompt, 12)->usage.cached_tokens == 469);
  CHECK(second.r.numbers->disk_reads == 7);
}

TEST_CASE("tiers: a conversation of 15,000 tokens goes on after a restart as if nothing had been" *
          doctest::test_suite("slow")) {
  const test::temp_folder folder;
  tier_ring plain({.n_slots = 0, .n_snapshots = 8});
  auto prompt = some(15000, 3);
  int64_t n_ran = 0;
  {
    tier_ring first({.folder = folder.path()});
    const auto got = first.ask(prompt, 30);
    same(*got, *plain.ask(prompt, 30));
    prompt.insert(prompt.end(), got->ids().begin(), got->ids().end());
    n_ran = static_cast<int64_t>(prompt.size()) - 1;
  }
  const auto more = some(100, 4);
  prompt.insert(prompt.end(), more.begin(), more.end());
  const auto want = plain.ask(prompt, 100);
  tier_ring second({.folder = folder.path()});
  const auto got = second.ask(prompt, 100);
  CHECK(got->usage.cached_tokens == n_ran);
  same(*got, *want);
}

TEST_CASE("tiers: a fork in the middle of a prompt of 12,000 tokens goes on behind a restart at an interval snapshot" *
          doctest::test_suite("slow")) {
  const test::temp_folder folder;
  const auto prompt = some(12000, 21);
  {
    tier_ring first({.folder = folder.path()});
    first.ask(prompt, 2);
  }
  auto fork = tokens(prompt.begin(), prompt.begin() + 6000);
  const auto more = some(40, 22);
  fork.insert(fork.end(), more.begin(), more.end());
  tier_ring plain({.n_slots = 0, .n_snapshots = 0}), second({.folder = folder.path()});
  const auto want = plain.ask(fork, 30), got = second.ask(fork, 30);
  CHECK(got->usage.cached_tokens == 4096);
  same(*got, *want);
}

TEST_CASE("tiers: a corrupt file is a miss, a line in the log, and gone") {
  const test::temp_folder folder;
  const auto prompt = some(400, 5);
  tier_ring plain({.n_slots = 0, .n_snapshots = 0});
  const auto want = plain.ask(prompt);
  { tier_ring({.folder = folder.path()}).ask(prompt); }
  const auto all = files_below(folder.path());
  REQUIRE(all.size() == 8);
  for (size_t i = 0; i < all.size(); i += 3) {
    const auto& victim = all[i];
    if (!fs::exists(victim)) continue;
    std::fstream f(victim, std::ios::binary | std::ios::in | std::ios::out);
    f.seekp(-9, std::ios::end);
    f.put('x').put('y');
    f.close();
    tier_ring again({.folder = folder.path()});
    const auto got = again.ask(prompt);
    same(*got, *want);
    CHECK(again.r.numbers->disk_read_errors <= 1);
    CHECK(again.ask(prompt)->usage.cached_tokens == 399);
  }
}

TEST_CASE("O39: a full disk stops the writes, not the service, and what is there still hits") {
  const disarmed after;
  const test::temp_folder folder;
  const auto kept = some(300, 6), lost = some(300, 7);
  tier_ring r({.n_blocks = 8, .n_slots = 8, .n_snapshots = 3, .folder = folder.path()});
  const auto want = r.ask(kept);
  const auto n_writes = r.r.numbers->disk_writes.load();
  CHECK(n_writes == 6);
  fault::arm("tier_files.no_space", 0, 1000);
  r.ask(lost);
  CHECK(r.r.numbers->disk_writes == n_writes);
  CHECK(r.r.numbers->disk_write_errors > 0);
  const auto n_errors = r.r.numbers->disk_write_errors.load();
  for (uint64_t i = 0; i < 4; ++i) r.ask(some(300, 10 + i));
  CHECK(r.r.numbers->disk_write_errors == n_errors); // it is not even tried
  const auto got = r.ask(kept);
  CHECK(got->usage.cached_tokens == 299);
  same(*got, *want);
  fault::disarm_all();
  r.w.advance(std::chrono::minutes(2));
  r.ask(some(300, 20));
  CHECK(r.r.numbers->disk_writes > n_writes);
}

TEST_CASE("tiers: pins are set, listed and taken back by message, and outlive a restart") {
  const test::temp_folder folder;
  const auto prompt = some(300, 9);
  const tier_settings s{.n_blocks = 8, .n_slots = 20, .n_snapshots = 4, .folder = folder.path()};
  {
    tier_ring r(s);
    const auto& kv_cache = r.r.engine.kv_cache;
    CHECK(r.w.ask<pin_answer>(kv_cache, pin_prefix{"system", prompt, {}, ""})->refused.find("sent once") !=
          std::string::npos);
    r.ask(prompt);
    const auto pinned = r.w.ask<pin_answer>(kv_cache, pin_prefix{"system", prompt, {}, ""});
    CHECK(pinned->refused.empty());
    CHECK(pinned->n_tokens == 299);
    for (uint64_t i = 0; i < 6; ++i) r.ask(some(300, 10 + i));
    CHECK(r.ask(prompt)->usage.cached_tokens == 299);
  }
  tier_ring again(s);
  const auto& kv_cache = again.r.engine.kv_cache;
  const auto list = again.w.ask<pin_list>(kv_cache, pins_atom_v);
  REQUIRE(list->prefixes.size() == 1);
  CHECK(list->prefixes[0].name == "system");
  CHECK(list->prefixes[0].n_tokens == 299);
  CHECK(list->prefixes[0].n_blocks == 5);
  CHECK(list->prefixes[0].is_on_disk);
  CHECK(*again.w.ask<bool>(kv_cache, unpin_prefix{"system"}));
  CHECK_FALSE(*again.w.ask<bool>(kv_cache, unpin_prefix{"system"}));
  CHECK(again.w.ask<pin_list>(kv_cache, pins_atom_v)->prefixes.empty());
}

TEST_CASE("tiers: a folder that cannot be used is a line in the log, and the service runs") {
  const test::temp_folder folder;
  std::ofstream(folder.path() / "file") << "x";
  tier_ring r({.folder = folder.path() / "file"});
  const auto prompt = some(300, 8);
  r.ask(prompt);
  CHECK(r.ask(prompt)->usage.cached_tokens == 299);
  CHECK(r.r.numbers->disk_writes == 0);
}
