// Rows of a table: the right bytes from every source, each row read once, failures by name, nothing past 4 GiB lost.
#include "storage/check.h"
#include "storage/row_store.h"
#include "tests/safetensors_writer.h"
#include "tests/says.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fcntl.h>
#include <random>
#include <string>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

using namespace troupe;
using test::temp_folder;

namespace {

constexpr int64_t n_rows = 1000, width = 64, groups = 2;
constexpr size_t record_bytes = width + groups;

std::byte weight_byte(int64_t row, int64_t column) { return static_cast<std::byte>((row * 7 + column * 3) & 0xFF); }
std::byte scale_byte(int64_t row, int64_t group) { return static_cast<std::byte>((row * 11 + group) & 0xFF); }

// A table of 1000 rows whose bytes follow from row and column.
struct table_folder : temp_folder {
  table_folder() {
    std::vector<std::byte> weight, scale;
    for (int64_t r = 0; r < n_rows; ++r) {
      for (int64_t c = 0; c < width; ++c) weight.push_back(weight_byte(r, c));
      for (int64_t g = 0; g < groups; ++g) scale.push_back(scale_byte(r, g));
    }
    test::write_safetensors(path() / "model.safetensors", {{"embed.scale", dtype::f8_e8m0, {n_rows, groups}, scale},
                                                           {"embed.weight", dtype::f8_e4m3, {n_rows, width}, weight}});
  }
  row_store store(unsigned n_in_flight, uint64_t budget_bytes) const {
    const checkpoint_files files(path());
    return row_store(files, *files.find("embed.weight"), *files.find("embed.scale"), {n_in_flight, budget_bytes});
  }
};

std::vector<std::byte> read(row_store& store, const std::vector<int64_t>& ids) {
  std::vector<std::byte> records(ids.size() * store.record_bytes(), std::byte{0xEE});
  store.read(ids, records);
  return records;
}

void check_records(row_store& store, const std::vector<int64_t>& ids) {
  const std::vector<std::byte> records = read(store, ids);
  size_t n_wrong = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    for (int64_t c = 0; c < width; ++c)
      n_wrong += records[i * record_bytes + static_cast<size_t>(c)] != weight_byte(ids[i], c);
    for (int64_t g = 0; g < groups; ++g)
      n_wrong += records[i * record_bytes + static_cast<size_t>(width + g)] != scale_byte(ids[i], g);
  }
  CHECK(n_wrong == 0);
}

std::string error_of(row_store& store, const std::vector<int64_t>& ids) {
  try {
    read(store, ids);
  } catch (const std::system_error& e) { return e.what(); }
  return "no error";
}

// One store of each kind; the kernel of the machine at hand may lack io_uring, then two of them use pread.
std::vector<row_store> each_source(const table_folder& folder) {
  std::vector<row_store> stores;
  stores.push_back(folder.store(16, 0));
  fault::arm("row_store.no_io_uring");
  stores.push_back(folder.store(16, 0));
  fault::disarm_all();
  stores.push_back(folder.store(16, n_rows * record_bytes));
  return stores;
}

} // namespace

TEST_CASE("row_store: a row is its weight bytes, then its scale bytes") {
  const table_folder folder;
  row_store store = folder.store(4, 0);
  CHECK(store.n_rows() == n_rows);
  CHECK(store.weight_bytes() == width);
  CHECK(store.scale_bytes() == groups);
  CHECK(store.record_bytes() == record_bytes);
  check_records(store, {0, 1, 999, 500});
}

TEST_CASE("row_store: every source gives the same rows in the order asked, repeated ids and no ids included") {
  const table_folder folder;
  std::mt19937 random(7);
  std::vector<int64_t> ids;
  for (int i = 0; i < 3000; ++i) ids.push_back(static_cast<int64_t>(random() % n_rows));
  for (row_store& store : each_source(folder)) {
    check_records(store, ids);
    check_records(store, {5, 5, 3, 5, 3});
    check_records(store, {});
    check_records(store, {999});
  }
}

TEST_CASE(
    "row_store: the source is told, pread when the kernel refuses a ring, memory when the budget holds the table") {
  const table_folder folder;
  const std::vector<row_store> stores = each_source(folder);
  CHECK(stores[0].reads_from() != row_store::source::memory);
  const bool has_ring = stores[0].reads_from() == row_store::source::io_uring;
  MESSAGE("row_store: io_uring is " << std::string(has_ring ? "used" : "not available"));
  CHECK(stores[1].reads_from() == row_store::source::pread);
  CHECK(stores[2].reads_from() == row_store::source::memory);
  CHECK(folder.store(1, n_rows * record_bytes - 1).reads_from() != row_store::source::memory);
}

TEST_CASE("row_store: each distinct row of a batch is read once") {
  const table_folder folder;
  row_store disk = folder.store(8, 0);
  read(disk, {9, 4, 9, 9, 4, 2});
  CHECK(disk.counted().rows_asked == 6);
  CHECK(disk.counted().rows_read == 3);
  CHECK(disk.counted().bytes_read == 3 * record_bytes);
  row_store memory = folder.store(8, 1 << 20);
  read(memory, {9, 4, 9});
  CHECK(memory.counted().rows_asked == 3);
  CHECK(memory.counted().rows_read == 0);
  CHECK(memory.counted().bytes_read == n_rows * record_bytes);
}

TEST_CASE("row_store: an id outside the table is refused with file, tensor and row") {
  const table_folder folder;
  for (row_store& store : each_source(folder))
    for (const int64_t id : {int64_t{-1}, n_rows, int64_t{1} << 62}) {
      const std::string text = error_of(store, {1, id, 2});
      CAPTURE(text);
      CHECK(says(text, "model.safetensors: tensor 'embed.weight' at offset "));
      CHECK(says(text, "row " + std::to_string(id) + " asked, expected 0 to 999"));
    }
}

TEST_CASE("row_store: a table cut short fails with file, tensor, row and offset, and rows that are there still read") {
  const table_folder folder;
  std::vector<row_store> stores = each_source(folder);
  stores.pop_back(); // the one in memory does not mind
  const checkpoint_files files(folder.path());
  const uint64_t last_row = files.find("embed.weight")->offset + 999 * width;
  std::filesystem::resize_file(folder.path() / "model.safetensors", last_row + 10);
  for (row_store& store : stores) {
    const std::string text = error_of(store, {1, 999, 7});
    CAPTURE(text);
    CHECK(says(text, "model.safetensors: tensor 'embed.weight': short read of row 999 at offset " +
                         std::to_string(last_row) + ": expected 64 bytes, found 10"));
    check_records(store, {998, 1, 7});
  }
}

TEST_CASE("row_store: I/O errors and sudden ends are reported, interrupted reads go on") {
  const table_folder folder;
  std::vector<int64_t> ids(200);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i) * 3;
  std::vector<row_store> stores = each_source(folder);
  stores.pop_back();
  for (row_store& store : stores) {
    fault::arm("row_store.io_error", 100);
    const std::string io_error = error_of(store, ids);
    CAPTURE(io_error);
    CHECK(says(io_error, "failed read of row "));
    fault::arm("row_store.short_read", 50);
    const std::string short_read = error_of(store, ids);
    CAPTURE(short_read);
    CHECK(says(short_read, "short read of row "));
    fault::arm("row_store.interrupted", 10, 30);
    check_records(store, ids);
    CHECK_FALSE(fault::at("row_store.interrupted")); // all 30 were met
    fault::disarm_all();
  }
}

TEST_CASE("row_store: two tensors that are no table are refused by name") {
  temp_folder folder;
  const auto path = folder.path() / "model.safetensors";
  const auto zeros = [](size_t n) { return std::vector<std::byte>(n); };
  test::write_safetensors(path, {{"w", dtype::u8, {4, 8}, zeros(32)},
                                 {"s5", dtype::u8, {5, 2}, zeros(10)},
                                 {"flat", dtype::u8, {8}, zeros(8)},
                                 {"none", dtype::u8, {0, 8}, {}}});
  const checkpoint_files files(folder.path());
  const auto make = [&](const char* weight, const char* scale) {
    row_store store(files, *files.find(weight), *files.find(scale), {1, 0});
  };
  CHECK_THROWS_WITH_AS(make("w", "s5"), doctest::Contains("tensor 's5': expected 4 rows as in 'w', found 5"),
                       checkpoint_error);
  CHECK_THROWS_WITH_AS(make("w", "flat"), doctest::Contains("tensor 'flat': expected rows and columns, found 1"),
                       checkpoint_error);
  CHECK_THROWS_WITH_AS(make("none", "none"), doctest::Contains("tensor 'none': expected a row at least"),
                       checkpoint_error);
}

TEST_CASE("row_store: the last row of a table of the real size is read, past 98 GB") {
  // The native table of layer 1 (spec/model-tensors.md section 1), all holes but the row that is read.
  constexpr int64_t rows = 384006168;
  constexpr uint64_t weight_size = uint64_t{rows} * 256, scale_size = uint64_t{rows} * 8;
  std::string header = R"({"w":{"dtype":"F8_E4M3","shape":[384006168,256],"data_offsets":[0,98305579008]},)"
                       R"("s":{"dtype":"F8_E8M0","shape":[384006168,8],"data_offsets":[98305579008,101377628352]}})";
  while (header.size() % 8 != 0) header += ' ';
  temp_folder folder;
  const auto path = folder.path() / "model.safetensors";
  test::write_raw_safetensors(path, header, {});
  const uint64_t data = 8 + header.size();
  std::error_code unsupported;
  std::filesystem::resize_file(path, data + weight_size + scale_size, unsupported);
  if (unsupported) {
    MESSAGE("row_store: the temporary folder holds no file of 94 GiB: " << unsupported.message());
    return;
  }
  const std::vector<char> weight_row(256, 'W'), scale_row(8, 'S');
  const int descriptor = ::open(path.c_str(), O_WRONLY);
  REQUIRE(::pwrite(descriptor, weight_row.data(), 256, static_cast<off_t>(data + weight_size - 256)) == 256);
  REQUIRE(::pwrite(descriptor, scale_row.data(), 8, static_cast<off_t>(data + weight_size + scale_size - 8)) == 8);
  ::close(descriptor);

  const checkpoint_files files(folder.path());
  for (const char* point : {"nothing", "row_store.no_io_uring"}) {
    fault::arm(point);
    row_store store(files, *files.find("w"), *files.find("s"), {32, 0});
    fault::disarm_all();
    CHECK(store.n_rows() == rows);
    const std::vector<std::byte> records = read(store, {rows - 1, 0, rows - 1});
    std::vector<std::byte> last(256, std::byte{'W'});
    last.resize(264, std::byte{'S'});
    CHECK(std::equal(last.begin(), last.end(), records.begin()));
    CHECK(std::all_of(records.begin() + 264, records.begin() + 528, [](std::byte b) { return b == std::byte{0}; }));
    CHECK(std::equal(last.begin(), last.end(), records.begin() + 528));
  }
}

TEST_CASE("row_store: the tables of the tiny model read as their tensors do") {
  const checkpoint_files files(std::filesystem::path(TROUPE_SOURCE_DIR) / "etc/models/tiny");
  size_t n_tables = 0;
  for (const tensor_info& t : files.tensors()) {
    if (!t.name.ends_with("engram.embed.weight")) continue;
    const tensor_info* scale = files.find(t.name.substr(0, t.name.size() - 6) + "scale");
    REQUIRE(scale != nullptr);
    row_store store(files, t, *scale, {64, 0});
    std::vector<int64_t> ids;
    for (int64_t id = store.n_rows() - 1; id >= 0; id -= 61) ids.push_back(id);
    const std::vector<std::byte> records = read(store, ids), weights = files.read(t), scales = files.read(*scale);
    size_t n_wrong = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto row = static_cast<size_t>(ids[i]);
      const std::byte* record = &records[i * store.record_bytes()];
      n_wrong += !std::equal(record, record + store.weight_bytes(), &weights[row * store.weight_bytes()]);
      n_wrong +=
          !std::equal(record + store.weight_bytes(), record + store.record_bytes(), &scales[row * store.scale_bytes()]);
    }
    CHECK(n_wrong == 0);
    ++n_tables;
  }
  CHECK(n_tables == 2);
}
