// The tiers through the real ring with the shipped model: what comes back from host memory or from disk, after a
// restart too, gives the tokens and log-probabilities of a run that never lost it.
#include "storage/check.h"
#include "storage/tier_files.h"
#include "tests/actors/tier_ring.h"
#include "tests/safetensors_writer.h"

#include <doctest/doctest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

using namespace troupe;
namespace fs = std::filesystem;

namespace {

using tokens = std::vector<int32_t>;

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> out;
  for (const auto& f : fs::recursive_directory_iterator(folder))
    if (f.path().extension() == ".tier") out.push_back(f.path());
  std::sort(out.begin(), out.end());
  return out;
}

// What failed is mended: a while later entries are written as before.
void check_writes_again(tier_ring& r, int64_t n_writes) {
  fault::disarm_all();
  r.w.advance(std::chrono::minutes(2));
  r.ask(some_tokens(300, 20));
  CHECK(r.r.numbers->disk_writes > n_writes);
}

// Entry `i` of a folder again, with other bytes and checksums that are right: what a bug of another build would leave.
fs::path rewrite(const fs::path& folder, size_t i, const std::function<void(std::vector<std::byte>&)>& change) {
  tier_files files({folder / "rank-0", "fp_test", 0, 1, 0});
  REQUIRE_FALSE(files.open());
  auto all = files.scan();
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  auto& e = all.at(i);
  std::vector<std::byte> payload;
  REQUIRE_FALSE(files.read(e.id, payload));
  change(payload);
  e.payload_bytes = static_cast<int64_t>(payload.size());
  files.remove(e.id);
  REQUIRE_FALSE(files.write(e, payload));
  return files.path_of(e.id);
}

struct disarmed {
  ~disarmed() { fault::disarm_all(); }
};

// What is logged while it lives.
class log_lines {
public:
  log_lines() : before_(spdlog::default_logger()) {
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("lines", std::move(sink)));
  }
  log_lines(log_lines&&) = delete;
  ~log_lines() { spdlog::set_default_logger(before_); }
  int64_t n_of(const std::string& what) const {
    std::istringstream all(text_.str());
    int64_t n = 0;
    for (std::string line; std::getline(all, line);) n += line.find(what) != std::string::npos;
    return n;
  }

private:
  std::shared_ptr<spdlog::logger> before_;
  std::ostringstream text_;
};

} // namespace

TEST_CASE("tiers: what went out to host memory and came back gives the same bits") {
  tier_ring small({.n_blocks = 8, .n_slots = 40}), plain({.n_blocks = 100, .n_slots = 0, .n_snapshots = 0});
  std::vector<std::shared_ptr<exact_sink>> want;
  for (uint64_t i = 0; i < 4; ++i) want.push_back(plain.ask(some_tokens(300, i)));
  for (int round = 0; round < 3; ++round)
    for (uint64_t i = 0; i < 4; ++i) {
      const auto got = small.ask(some_tokens(300, i));
      CHECK(got->usage.cached_tokens == (round == 0 ? 0 : 299));
      same(*got, *want[i]);
    }
  CHECK(small.r.numbers->cache_hits_memory > 0);
}

TEST_CASE("O40: a prefix is restored from disk after a restart, and the conversation goes on with the same bits") {
  const test::temp_folder folder;
  tier_ring plain({.n_slots = 0, .n_snapshots = 0});
  auto prompt = some_tokens(400, 1);
  {
    tier_ring first({.folder = folder.path()});
    const auto got = first.ask(prompt, 20);
    CHECK(got->usage.cached_tokens == 0);
    prompt.insert(prompt.end(), got->ids().begin(), got->ids().end());
    CHECK(first.r.numbers->disk_writes == 6 + 2); // full blocks of 419 tokens, ends of prompt and reply
    CHECK(files_below(folder.path()).size() == 8);
    CHECK(first.r.numbers->disk_bytes > 0);
  } // no drain: as if killed
  const auto more = some_tokens(50, 2);
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
  auto prompt = some_tokens(15000, 3);
  int64_t n_ran = 0;
  {
    tier_ring first({.folder = folder.path()});
    const auto got = first.ask(prompt, 30);
    same(*got, *plain.ask(prompt, 30));
    prompt.insert(prompt.end(), got->ids().begin(), got->ids().end());
    n_ran = static_cast<int64_t>(prompt.size()) - 1;
  }
  const auto more = some_tokens(100, 4);
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
  const auto prompt = some_tokens(12000, 21);
  {
    tier_ring first({.folder = folder.path()});
    first.ask(prompt, 2);
  }
  auto fork = tokens(prompt.begin(), prompt.begin() + 6000);
  const auto more = some_tokens(40, 22);
  fork.insert(fork.end(), more.begin(), more.end());
  tier_ring plain({.n_slots = 0, .n_snapshots = 0}), second({.folder = folder.path()});
  const auto want = plain.ask(fork, 30), got = second.ask(fork, 30);
  CHECK(got->usage.cached_tokens == 4096);
  same(*got, *want);
}

TEST_CASE("6.10: a fork of a prompt of 11,431 tokens finds 8,192, all of it from the second on, with the same bits" *
          doctest::test_suite("slow")) {
  const auto prompt = some_tokens(11431, 23);
  tier_ring r({.n_blocks = 600}), plain({.n_slots = 0, .n_snapshots = 0});
  r.ask(prompt, 2);
  for (const int64_t want : {8192, 11300, 11300}) {
    auto fork = tokens(prompt.begin(), prompt.begin() + 11300);
    const auto more = some_tokens(40, 24 + static_cast<uint64_t>(r.r.last_turn));
    fork.insert(fork.end(), more.begin(), more.end());
    const auto got = r.ask(fork, 20);
    CHECK(got->usage.cached_tokens == want);
    if (want == 8192 || r.r.last_turn == 3) same(*got, *plain.ask(fork, 20));
  }
}

TEST_CASE("tiers: a corrupt file is a miss, a line in the log, and gone") {
  const test::temp_folder folder;
  const auto prompt = some_tokens(400, 5);
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

TEST_CASE("tiers: an entry of another shape is a miss, a line in the log, and gone") {
  using bytes = std::vector<std::byte>;
  const std::function<void(bytes&)> changes[] = {
      [](bytes& b) { b.resize(b.size() - 8); },
      [](bytes& b) { b.resize(b.size() + 8); },
      [](bytes& b) { b.clear(); },
      [](bytes& b) { b.resize(5); },
      [](bytes& b) { b[24] = std::byte{7}; }, // how many rings a snapshot has; of a block, a value as good as any
  };
  const auto prompt = some_tokens(400, 5);
  tier_ring plain({.n_slots = 0, .n_snapshots = 0});
  const auto want = plain.ask(prompt);
  const test::temp_folder before;
  { tier_ring({.folder = before.path()}).ask(prompt); }
  // Six blocks, then the ends of prompt and reply. Nobody asks for the latter.
  for (const auto& [i, k] : std::vector<std::pair<size_t, size_t>>{
           {0, 0}, {2, 1}, {4, 2}, {5, 3}, {6, 0}, {6, 1}, {6, 2}, {6, 3}, {6, 4}, {7, 4}}) {
    CAPTURE(i);
    CAPTURE(k);
    const test::temp_folder folder;
    fs::copy(before.path(), folder.path(), fs::copy_options::recursive);
    const auto victim = rewrite(folder.path(), i, changes[k]);
    const log_lines log;
    tier_ring again({.folder = folder.path()});
    const auto got = again.ask(prompt);
    same(*got, *want);
    const bool is_read = i < 7;
    CHECK((got->usage.cached_tokens == 399) == !is_read);
    CHECK(again.r.numbers->disk_read_errors == is_read);
    CHECK(log.n_of("do not fit this model") == is_read);
    CHECK(fs::exists(victim) == !is_read);
    CHECK(again.ask(prompt)->usage.cached_tokens == 399);
  }
}

TEST_CASE("O39: a full disk stops the writes, not the service, and what is there still hits") {
  const disarmed after;
  const test::temp_folder folder;
  const auto kept = some_tokens(300, 6), lost = some_tokens(300, 7);
  tier_ring r({.n_blocks = 8, .n_slots = 8, .n_snapshots = 3, .folder = folder.path()});
  const auto want = r.ask(kept);
  const auto n_writes = r.r.numbers->disk_writes.load();
  CHECK(n_writes == 6);
  const log_lines log;
  fault::arm("tier_files.no_space", 0, 1000);
  r.ask(lost);
  CHECK(r.r.numbers->disk_writes == n_writes);
  CHECK(r.r.numbers->disk_write_errors > 0);
  const auto n_errors = r.r.numbers->disk_write_errors.load();
  for (uint64_t i = 0; i < 4; ++i) r.ask(some_tokens(300, 10 + i));
  CHECK(r.r.numbers->disk_write_errors == n_errors); // it is not even tried
  CHECK(log.n_of("No space left") == 1);             // one event
  const auto got = r.ask(kept);
  CHECK(got->usage.cached_tokens == 299);
  same(*got, *want);
  check_writes_again(r, n_writes);
}

// On the device's budget of a test: 12 turns in place of 200, and a cap in place of a file system of 64 MB, which a
// test cannot mount. Its 1.2 times is of blocks alone: see tiers_test.
TEST_CASE("O39: a conversation that grows writes each block once, and no byte that is not there afterwards") {
  const test::temp_folder folder;
  tokens turn;
  int64_t n_writes = 0, n_bytes = 0;
  {
    tier_ring r({.folder = folder.path()});
    turn = some_tokens(130, 40);
    for (uint64_t i = 0; i < 12; ++i) {
      const auto got = r.ask(turn, 7);
      turn.insert(turn.end(), got->ids().begin(), got->ids().end());
      const auto more = some_tokens(45, 50 + i);
      if (i + 1 < 12) turn.insert(turn.end(), more.begin(), more.end());
    }
    n_writes = r.r.numbers->disk_writes;
    n_bytes = r.r.numbers->disk_bytes_written;
  }
  tier_files files({folder.path() / "rank-0", "fp_test", 0, 1, 0});
  REQUIRE_FALSE(files.open());
  int64_t n_blocks = 0, n_snapshots = 0, n_left = 0;
  for (const auto& e : files.scan()) {
    ++(e.kind == 0 ? n_blocks : n_snapshots);
    n_left += e.payload_bytes;
  }
  CHECK(n_blocks == (static_cast<int64_t>(turn.size()) - 1) / 64);
  CHECK(n_snapshots == 2 * 12); // ends of prompts and of replies
  CHECK(n_writes == n_blocks + n_snapshots);
  CHECK(n_bytes == n_left);
}

TEST_CASE("tiers: files that may not be read are a miss and one line in the log") {
  const disarmed after;
  const test::temp_folder folder;
  const auto kept = some_tokens(300, 6);
  tier_ring r({.n_blocks = 8, .n_slots = 8, .n_snapshots = 3, .folder = folder.path()});
  const auto want = r.ask(kept);
  for (uint64_t i = 0; i < 3; ++i) r.ask(some_tokens(300, 10 + i)); // nothing of it stays in memory
  const log_lines log;
  fault::arm("tier_files.no_access", 0, 1000);
  const auto got = r.ask(kept);
  CHECK(got->usage.cached_tokens == 0);
  same(*got, *want);
  CHECK(r.r.numbers->disk_read_errors == 5); // its four full blocks, and the end of its prompt
  CHECK(log.n_of("could not be read") == 1);
  CHECK(log.n_of("Permission denied") == log.n_of("could not be read") + log.n_of("no more writes"));
  fault::disarm_all();
  CHECK(r.ask(kept)->usage.cached_tokens == 299);
}

TEST_CASE("tiers: files that may not be made are one line in the log, and memory serves") {
  const disarmed after;
  const test::temp_folder folder;
  const auto kept = some_tokens(300, 6), lost = some_tokens(300, 7);
  tier_ring r({.n_blocks = 40, .folder = folder.path()}), plain({.n_slots = 0, .n_snapshots = 0});
  r.ask(kept);
  const auto n_writes = r.r.numbers->disk_writes.load();
  const log_lines log;
  fault::arm("tier_files.no_access", 0, 1000);
  same(*r.ask(lost), *plain.ask(lost));
  CHECK(r.ask(lost)->usage.cached_tokens == 299);
  for (uint64_t i = 0; i < 3; ++i) r.ask(some_tokens(300, 10 + i));
  CHECK(r.r.numbers->disk_write_errors > 0);
  CHECK(r.r.numbers->disk_writes == n_writes);
  CHECK(log.n_of("Permission denied") == 1);
  check_writes_again(r, n_writes);
}

TEST_CASE("tiers: a folder that may not be used at the start is one line in the log, and the service runs") {
  const disarmed after;
  const test::temp_folder folder;
  const auto prompt = some_tokens(300, 8);
  { tier_ring({.folder = folder.path()}).ask(prompt); }
  const auto n_files = files_below(folder.path()).size();
  const log_lines log;
  fault::arm("tier_files.no_access");
  tier_ring r({.folder = folder.path()}), plain({.n_slots = 0, .n_snapshots = 0});
  const auto got = r.ask(prompt);
  CHECK(got->usage.cached_tokens == 0);
  same(*got, *plain.ask(prompt));
  CHECK(r.ask(prompt)->usage.cached_tokens == 299);
  CHECK(r.r.numbers->disk_writes == 0);
  CHECK(log.n_of("Permission denied") == 1);
  CHECK(files_below(folder.path()).size() == n_files);
  fault::disarm_all();
}

TEST_CASE("tiers: pins are set, listed and taken back by message, and outlive a restart") {
  const test::temp_folder folder;
  const auto prompt = some_tokens(300, 9);
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
    for (uint64_t i = 0; i < 6; ++i) r.ask(some_tokens(300, 10 + i));
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
  const auto prompt = some_tokens(300, 8);
  r.ask(prompt);
  CHECK(r.ask(prompt)->usage.cached_tokens == 299);
  CHECK(r.r.numbers->disk_writes == 0);
}
