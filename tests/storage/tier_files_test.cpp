// The files of a tier: what was written comes back bit for bit or not at all, whatever the disk does.
#include "storage/check.h"
#include "storage/parallel.h"
#include "storage/tier_files.h"
#include "tests/safetensors_writer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>
#include <random>
#include <sys/stat.h>

using namespace troupe;
using test::temp_folder;
namespace fs = std::filesystem;

namespace {

using bytes = std::vector<std::byte>;

struct disk {
  temp_folder where;
  std::unique_ptr<tier_files> open(const std::string& fingerprint = "fp_1", int32_t rank = 0,
                                   int64_t foreign = 1 << 20) {
    auto files = std::make_unique<tier_files>(tier_folder{where.path() / "rank-0", fingerprint, rank, 1, foreign});
    const auto why = files->open();
    if (why) FAIL(why->what);
    return files;
  }
  ~disk() { fault::disarm_all(); }
};

bytes some(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  bytes out(n);
  for (auto& b : out) b = static_cast<std::byte>(random());
  return out;
}

tier_entry entry(uint64_t id, int64_t payload_bytes = 1000) {
  return {id, id / 2, 1, static_cast<int64_t>(id) * 64, 3, "salt\0y", {id, 2, 3}, payload_bytes};
}

void flip(const fs::path& path, int64_t at) {
  std::fstream f(path, std::ios::binary | std::ios::in | std::ios::out);
  f.seekg(at);
  const char c = static_cast<char>(f.get());
  f.seekp(at);
  f.put(static_cast<char>(c ^ 1));
}

} // namespace

TEST_CASE("tier_files: what was written is found and read after a restart, and gone after remove") {
  disk d;
  for (const size_t n : {size_t{0}, size_t{1}, size_t{100000}}) {
    auto files = d.open();
    const uint64_t id = 500 + n;
    CHECK_FALSE(files->write(entry(id, static_cast<int64_t>(n)), some(n, n)));
    CHECK(static_cast<int64_t>(fs::file_size(files->path_of(id))) == entry(id, static_cast<int64_t>(n)).file_bytes(4));
    files.reset();
    files = d.open();
    const auto all = files->scan();
    REQUIRE(all.size() == 1);
    const auto want = entry(id, static_cast<int64_t>(n));
    CHECK(all[0].id == want.id);
    CHECK(all[0].parent == want.parent);
    CHECK(all[0].kind == want.kind);
    CHECK(all[0].n_tokens == want.n_tokens);
    CHECK(all[0].floor == want.floor);
    CHECK(all[0].salt == want.salt);
    CHECK(all[0].symbols == want.symbols);
    CHECK(all[0].payload_bytes == want.payload_bytes);
    bytes got;
    CHECK_FALSE(files->read(id, got));
    CHECK(got == some(n, n));
    files->remove(id);
    files->remove(id);
    CHECK(files->read(id, got)->error == ENOENT);
    CHECK(files->scan().empty());
  }
}

TEST_CASE("tier_files: several threads read different entries at once, as bytes of either kind, and a broken one fails "
          "alone") {
  disk d;
  auto files = d.open();
  constexpr uint64_t n = 40;
  for (uint64_t id = 1; id <= n; ++id) REQUIRE_FALSE(files->write(entry(id, 5000), some(5000, id)));
  flip(files->path_of(17), entry(17, 5000).file_bytes(4) - 1);
  std::vector<std::vector<uint8_t>> got(n + 1);
  std::vector<std::optional<tier_error>> why(n + 1);
  for_each_parallel(n, 4, [&](size_t i) { why[i + 1] = files->read(i + 1, got[i + 1]); });
  bytes same;
  for (uint64_t id = 1; id <= n; ++id) {
    CAPTURE(id);
    CHECK(why[id].has_value() == (id == 17));
    if (id == 17) continue;
    REQUIRE_FALSE(files->read(id, same));
    CHECK(same == some(5000, id));
    CHECK(std::ranges::equal(std::as_bytes(std::span(got[id])), same));
  }
  CHECK(why[17]->error == EBADMSG);
  CHECK_FALSE(fs::exists(files->path_of(17)));
}

TEST_CASE("tier_files: no file is written twice (O38)") {
  disk d;
  auto files = d.open();
  CHECK_FALSE(files->write(entry(7), some(1000, 1)));
  const auto written = files->bytes_written();
  CHECK(files->write(entry(7), some(1000, 1))->error == EEXIST);
  CHECK(files->bytes_written() == written);
  CHECK(files->n_files_written() == 1);
}

TEST_CASE("tier_files: every broken byte is found, and the file is removed (features 6.11)") {
  disk d;
  auto files = d.open();
  CHECK_FALSE(files->write(entry(9, 50), some(50, 2)));
  const auto size = static_cast<int64_t>(fs::file_size(files->path_of(9)));
  files->remove(9);
  for (int64_t at = 0; at < size; at += 3) {
    CAPTURE(at);
    CHECK_FALSE(files->write(entry(9, 50), some(50, 2)));
    flip(files->path_of(9), at);
    bytes got;
    const auto why = files->read(9, got);
    REQUIRE(why);
    CHECK(why->error == EBADMSG);
    CHECK(why->what.find(files->path_of(9).string()) != std::string::npos);
    CHECK_FALSE(fs::exists(files->path_of(9)));
  }
  CHECK_FALSE(files->write(entry(9, 50), some(50, 2)));
  flip(files->path_of(9), 20); // in the header
  CHECK(files->scan().empty());
  CHECK_FALSE(fs::exists(files->path_of(9)));
}

TEST_CASE("tier_files: cut, empty, foreign and unfinished files are left out and never end the process") {
  disk d;
  auto files = d.open();
  for (const uint64_t id : {1, 2, 3}) CHECK_FALSE(files->write(entry(id), some(1000, id)));
  fs::resize_file(files->path_of(1), 500);
  fs::resize_file(files->path_of(2), 0);
  auto part = files->path_of(3);
  part.replace_extension(".part");
  std::ofstream(part) << "half";
  std::ofstream(files->path_of(3).parent_path() / "notes.txt") << "mine";
  fs::rename(files->path_of(3), files->path_of(3).parent_path() / "00000000000000ff.tier");
  CHECK(files->scan().empty());
  CHECK_FALSE(fs::exists(part));
  CHECK(fs::exists(files->path_of(3).parent_path() / "notes.txt"));
}

TEST_CASE("tier_files: another fingerprint or rank sees nothing, and its bytes are bounded") {
  disk d;
  d.open()->write(entry(1), some(1000, 1));
  CHECK(d.open("fp_2")->scan().empty());
  CHECK(d.open("fp_2")->foreign_bytes() > 1000);
  CHECK(d.open("fp_1", 1)->scan().empty()); // not its rank's; such a file is broken for it
  d.open()->write(entry(2), some(1000, 1));
  CHECK(d.open("fp_2", 0, 500)->foreign_bytes() == 0);
  CHECK(d.open()->scan().empty());
}

TEST_CASE(
    "tier_files: a full or failing disk is a value, leaves nothing behind, and what is there is still read (O39)") {
  disk d;
  auto files = d.open();
  CHECK_FALSE(files->write(entry(1), some(1000, 1)));
  const std::pair<const char*, int> cases[] = {{"tier_files.no_space", ENOSPC}, {"tier_files.write_error", EIO}};
  for (const auto& [point, error] : cases)
    for (const uint64_t skip : {0, 1}) { // in the header, in the payload
      fault::arm(point, skip);
      const auto why = files->write(entry(2), some(1000, 2));
      REQUIRE(why);
      CHECK(why->error == error);
      CHECK(files->scan().size() == 1);
      bytes got;
      CHECK_FALSE(files->read(1, got));
    }
  CHECK_FALSE(files->write(entry(2), some(1000, 2)));
}

TEST_CASE("tier_files: a read error keeps the file, a short or torn one does not") {
  disk d;
  auto files = d.open();
  CHECK_FALSE(files->write(entry(1), some(1000, 1)));
  bytes got;
  for (const uint64_t skip : {0, 1}) {
    fault::arm("tier_files.read_error", skip);
    CHECK(files->read(1, got)->error == EIO);
  }
  CHECK_FALSE(files->read(1, got));
  fault::arm("tier_files.short_read", 1);
  CHECK(files->read(1, got)->error == EBADMSG);
  CHECK(files->read(1, got)->error == ENOENT);
  fault::arm("tier_files.torn");
  CHECK_FALSE(files->write(entry(1), some(1000, 1)));
  CHECK(files->scan().empty());
}

TEST_CASE("tier_files: what may not be opened is refused by name, and a restart does without it") {
  disk d;
  auto files = d.open();
  for (const uint64_t id : {1, 2}) CHECK_FALSE(files->write(entry(id), some(1000, id)));
  bytes got;
  fault::arm("tier_files.no_access", 0, 3);
  CHECK(files->read(1, got)->error == EACCES);
  CHECK(files->write(entry(3), some(1000, 3))->error == EACCES);
  CHECK(files->write_note("pins", "1 a\n")->error == EACCES);
  CHECK_FALSE(files->read(1, got)); // it may again
  CHECK_FALSE(files->write(entry(3), some(1000, 3)));
  fault::arm("tier_files.no_access");
  CHECK(files->scan().size() == 2); // one is left out, and makes room for another of its number
  fault::disarm_all();
  CHECK(files->scan().size() == 2);
  uint64_t gone = 0;
  for (const uint64_t id : {1, 2, 3})
    if (!fs::exists(files->path_of(id))) gone = id;
  REQUIRE(gone > 0);
  CHECK_FALSE(files->write(entry(gone), some(1000, 9)));
  files.reset();
  tier_files shut({d.where.path() / "rank-0", "fp_1", 0, 1, 0});
  fault::arm("tier_files.no_access");
  const auto why = shut.open();
  REQUIRE(why);
  CHECK(why->error == EACCES);
  CHECK(why->what.find((d.where.path() / "rank-0").string()) != std::string::npos);
  CHECK(shut.scan().empty());
  CHECK(shut.read(1, got).has_value());
}

TEST_CASE("tier_files: a folder that cannot be made or is taken is refused by name, and everything after it") {
  disk d;
  const auto held = d.open();
  tier_files second({d.where.path() / "rank-0", "fp_1", 0, 1, 0});
  CHECK(second.open()->what.find("another process") != std::string::npos);
  CHECK(second.scan().empty());
  CHECK(second.write(entry(1), some(10, 1)).has_value());
  bytes got;
  CHECK(second.read(1, got).has_value());
  std::ofstream(d.where.path() / "file") << "x";
  tier_files third({d.where.path() / "file" / "below", "fp_1", 0, 1, 0});
  const auto why = third.open();
  REQUIRE(why);
  CHECK(why->error == ENOTDIR);
}

TEST_CASE("tier_files: a note is replaced as a whole, and a broken one is none") {
  disk d;
  auto files = d.open();
  CHECK(files->read_note("pins").empty());
  CHECK_FALSE(files->write_note("pins", "1 a\n"));
  CHECK_FALSE(files->write_note("pins", "2 b b\n3 c\n"));
  CHECK(files->read_note("pins") == "2 b b\n3 c\n");
  CHECK(files->scan().empty());
  const auto path = files->path_of(0).parent_path().parent_path() / "pins";
  flip(path, 20);
  CHECK(files->read_note("pins").empty());
  fs::resize_file(path, 3);
  CHECK(files->read_note("pins").empty());
  CHECK_FALSE(files->write_note("pins", ""));
  CHECK(files->read_note("pins").empty());
}
