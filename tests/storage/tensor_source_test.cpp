// Tensors that are in no file: read as a file's, rows of a table, and written to files that read back the same.
#include "storage/row_store.h"
#include "storage/safetensors.h"
#include "storage/safetensors_writer.h"
#include "tests/safetensors_writer.h"

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <string>
#include <system_error>

using namespace troupe;
using test::temp_folder;

namespace {

// Byte b of tensor number t is 31 t + 7 b.
struct counting_source final : tensor_source {
  mutable std::atomic<int> n_reads{0};
  std::string name() const override { return "counted bytes"; }
  static std::byte byte(uint64_t tensor, uint64_t at) { return static_cast<std::byte>(31 * tensor + 7 * at); }
  void read(const tensor_info& t, uint64_t byte_offset, std::span<std::byte> out) const override {
    ++n_reads;
    for (size_t i = 0; i < out.size(); ++i) out[i] = byte(t.offset, byte_offset + i);
  }
};

std::vector<tensor_info> three() {
  return {{"a", dtype::f32, {3}, 0, 0, 12},
          {"table.weight", dtype::f8_e4m3, {100, 64}, 0, 1, 6400},
          {"table.scale", dtype::f8_e8m0, {100, 2}, 0, 2, 200}};
}

} // namespace

TEST_CASE("safetensors: tensors of a source are found and read by name and range") {
  const auto source = std::make_shared<counting_source>();
  const checkpoint_files files(three(), source);
  CHECK(files.files().empty());
  CHECK(files.tensors().size() == 3);
  CHECK(files.find("b") == nullptr);
  const tensor_info& t = *files.find("table.weight");
  CHECK(files.origin(t) == "counted bytes");
  std::vector<std::byte> part(5);
  files.read_range(t, 6395, part);
  CHECK(part.back() == counting_source::byte(1, 6399));
  CHECK(files.read(*files.find("a")).size() == 12);
  files.drop_cache();
}

TEST_CASE("row_store: rows of a source are made, each once a batch") {
  const auto source = std::make_shared<counting_source>();
  std::optional<row_store> store;
  {
    const checkpoint_files files(three(), source);
    store.emplace(files, *files.find("table.weight"), *files.find("table.scale"),
                  row_store_config{.n_reads_in_flight = 4});
  }
  CHECK(store->reads_from() == row_store::source::made);
  std::vector<std::byte> records(4 * store->record_bytes());
  store->read(std::vector<int64_t>{99, 3, 99, 0}, records);
  CHECK(source->n_reads == 6);
  CHECK(store->counted().rows_read == 3);
  for (const size_t i : {0, 2}) {
    CHECK(records[i * 66 + 63] == counting_source::byte(1, 99 * 64 + 63));
    CHECK(records[i * 66 + 64] == counting_source::byte(2, 99 * 2));
  }
  CHECK(records[66] == counting_source::byte(1, 3 * 64));
  try {
    store->read(std::vector<int64_t>{100}, std::span(records).first(66));
    FAIL("row 100 of 100 was read");
  } catch (const std::system_error& e) {
    CHECK(std::string(e.what()).find("counted bytes: tensor 'table.weight'") == 0);
  }
}

TEST_CASE("row_store: a table of a source that fits is held in memory with the same bytes") {
  const checkpoint_files files(three(), std::make_shared<counting_source>());
  row_store store(files, *files.find("table.weight"), *files.find("table.scale"),
                  {.n_reads_in_flight = 1, .cache_budget_bytes = 6600});
  CHECK(store.reads_from() == row_store::source::memory);
  std::vector<std::byte> record(66);
  store.read(std::vector<int64_t>{7}, record);
  CHECK(record[10] == counting_source::byte(1, 7 * 64 + 10));
  CHECK(record[65] == counting_source::byte(2, 15));
}

TEST_CASE("safetensors_writer: a folder reads back as its source, sizes are known before") {
  const temp_folder to;
  const counting_source source;
  const auto all = three();
  const std::vector<shard_plan> shards{{"one.safetensors", {all[0]}}, {"two.safetensors", {all[1], all[2]}}};
  for (const shard_plan& s : shards) {
    uint64_t n_wrote = 0;
    write_shard(to.path(), s, source, [&](uint64_t n) { n_wrote += n; });
    CHECK(n_wrote == size_bytes(s));
    CHECK(std::filesystem::file_size(to.path() / s.file_name) == size_bytes(s));
  }
  write_index(to.path(), shards);
  const checkpoint_files files(to.path()), made(three(), std::make_shared<counting_source>());
  CHECK(files.tensors().size() == 3);
  for (const tensor_info& t : made.tensors()) {
    const tensor_info* written = files.find(t.name);
    REQUIRE(written != nullptr);
    CHECK(written->shape == t.shape);
    CHECK(written->type == t.type);
    CHECK(files.read(*written) == made.read(t));
  }
}

TEST_CASE("safetensors_writer: a file that exists or cannot be made is an error by name") {
  const temp_folder to;
  test::write_text(to.path() / "one.safetensors", "mine");
  const counting_source source;
  for (const std::string name : {"one.safetensors", "nowhere/one.safetensors"}) {
    try {
      write_shard(to.path(), {name, {three()[0]}}, source, [](uint64_t) {});
      FAIL("written");
    } catch (const std::system_error& e) {
      CHECK(std::string(e.what()).find(name + ": cannot be made") != std::string::npos);
    }
  }
  CHECK(std::filesystem::file_size(to.path() / "one.safetensors") == 4);
}
