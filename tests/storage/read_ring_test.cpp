// Reads that hang: given up at once, beside them others are read, and what comes back late lands nowhere. Nothing here
// waits for a time: a fault point says that it is over.
#include "storage/check.h"
#include "storage/read_ring.h"
#include "storage/row_store.h"
#include "tests/safetensors_writer.h"
#include "tests/says.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <fstream>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace troupe;
using namespace std::chrono_literals;
using test::temp_folder;

namespace {

constexpr auto long_time = std::chrono::hours(1);
constexpr std::byte untouched{0xEE};

// A file whose byte i is i, and a pipe, of which a read hangs until something is written.
struct two_files : temp_folder {
  two_files() {
    const auto file = path() / "bytes";
    std::ofstream out(file, std::ios::binary);
    for (int i = 0; i < 256; ++i) out.put(static_cast<char>(i));
    out.close();
    data = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(::mkfifo((path() / "pipe").c_str(), 0600) == 0);
    pipe = ::open((path() / "pipe").c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(std::min(data, pipe) >= 0);
  }
  ~two_files() {
    ::close(data);
    ::close(pipe);
  }
  void let_go(size_t n) const {
    const std::vector<char> bytes(n, 'x');
    CHECK(::write(pipe, bytes.data(), n) == static_cast<ssize_t>(n));
  }
  void check_reads(read_ring& ring) const {
    std::array<std::byte, 16> to{};
    const positional_read one[] = {{data, 32, to.data(), 8}, {data, 200, to.data() + 8, 8}};
    read_failure failure;
    REQUIRE(ring.read_all(one, failure, long_time));
    for (size_t i = 0; i < 8; ++i) {
      CHECK(to[i] == static_cast<std::byte>(32 + i));
      CHECK(to[i + 8] == static_cast<std::byte>(200 + i));
    }
  }
  void come_back(read_ring& ring) const {
    while (ring.n_hanging() > 0) {
      std::this_thread::yield();
      check_reads(ring);
    }
  }
  int data = -1, pipe = -1;
};

read_failure give_up(read_ring& ring, std::span<const positional_read> batch) {
  fault::arm("row_store.late");
  read_failure failure;
  CHECK_FALSE(ring.read_all(batch, failure, long_time));
  fault::disarm_all();
  return failure;
}

bool is_untouched(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == untouched; });
}

} // namespace

TEST_CASE("read_ring: a read that hangs in the kernel is given up, others go on, and it never lands") {
  const two_files files;
  read_ring ring(4);
  if (!ring.uses_io_uring()) return; // pread does not read pipes
  std::array<std::byte, 16> to;
  to.fill(untouched);
  const positional_read hung[] = {{files.pipe, 0, to.data(), 16}};
  const auto failure = give_up(ring, hung);
  CHECK(failure.error == ETIMEDOUT);
  CHECK(failure.index == 0);
  CHECK(failure.n_read == 0);
  CHECK(ring.n_hanging() == 1);
  for (int i = 0; i < 20; ++i) files.check_reads(ring);
  CHECK(ring.n_hanging() == 1);
  files.let_go(16);
  files.come_back(ring);
  CHECK(is_untouched(to));
  files.check_reads(ring);
}

TEST_CASE("read_ring: where all of its reads hang the next one waits for room, and is given up as well") {
  const two_files files;
  read_ring ring(2);
  if (!ring.uses_io_uring()) return;
  std::array<std::byte, 24> to;
  to.fill(untouched);
  const positional_read hung[] = {
      {files.pipe, 0, to.data(), 8}, {files.pipe, 0, to.data() + 8, 8}, {files.pipe, 0, to.data() + 16, 8}};
  CHECK(give_up(ring, hung).index == 0);
  CHECK(ring.n_hanging() == 2);
  std::array<std::byte, 8> other;
  other.fill(untouched);
  const positional_read good[] = {{files.data, 0, other.data(), 8}};
  CHECK(give_up(ring, good).error == ETIMEDOUT);
  CHECK(is_untouched(other));
  files.let_go(16);
  files.come_back(ring);
  CHECK(is_untouched(to));
}

TEST_CASE("read_ring: a ring with reads that hang can go") {
  const two_files files;
  std::array<std::byte, 8> to;
  to.fill(untouched);
  {
    read_ring ring(2);
    if (!ring.uses_io_uring()) return;
    const positional_read hung[] = {{files.pipe, 0, to.data(), 8}};
    give_up(ring, hung);
    files.let_go(8);
    files.come_back(ring); // or its memory would be left to the kernel, as it is where a disk is dead
    give_up(ring, hung);
  }
  CHECK(is_untouched(to));
}

TEST_CASE("read_ring: without io_uring a thread that hangs is left, with its memory, and another reads on") {
  const two_files files;
  fault::arm("row_store.no_io_uring");
  read_ring ring(4);
  fault::disarm_all();
  REQUIRE(!ring.uses_io_uring());
  std::array<std::byte, 16> to;
  to.fill(untouched);
  const positional_read batch[] = {{files.data, 0, to.data(), 8}, {files.data, 8, to.data() + 8, 8}};
  for (size_t n = 1; n <= read_ring::most_hanging; ++n) {
    fault::arm("row_store.hang");
    fault::arm("row_store.late");
    read_failure failure;
    CHECK_FALSE(ring.read_all(batch, failure, long_time));
    CHECK(failure.error == ETIMEDOUT);
    CHECK(ring.n_hanging() == n);
    if (n < read_ring::most_hanging) files.check_reads(ring);
  }
  read_failure failure;
  CHECK_FALSE(ring.read_all(batch, failure, long_time)); // no more threads than that
  CHECK(failure.error == ETIMEDOUT);
  while (ring.n_hanging() > 0) {
    fault::let_go();
    std::this_thread::yield();
  }
  CHECK(is_untouched(to));
  files.check_reads(ring);
  fault::disarm_all();
}

TEST_CASE("read_ring: without io_uring a thread that does not start fails its batch, and the next one tries again") {
  const two_files files;
  fault::arm("row_store.no_io_uring");
  read_ring ring(4);
  fault::disarm_all();
  std::array<std::byte, 8> to;
  const positional_read batch[] = {{files.data, 0, to.data(), 8}};
  for (int i = 0; i < 10; ++i) { // more often than threads may hang
    fault::arm("row_store.no_thread");
    read_failure failure;
    CHECK_FALSE(ring.read_all(batch, failure, long_time));
    CHECK(failure.error == EAGAIN);
    CHECK(ring.n_hanging() == 0);
    fault::disarm_all();
  }
  files.check_reads(ring);
}

TEST_CASE("read_ring: batches larger than a thread is given at once arrive whole, and failures keep their places") {
  const two_files files;
  fault::arm("row_store.no_io_uring");
  read_ring ring(4);
  fault::disarm_all();
  std::vector<std::byte> to(size_t{256} * 20'000);
  std::vector<positional_read> batch;
  for (size_t i = 0; i < 20'000; ++i) batch.push_back({files.data, 0, to.data() + 256 * i, 256});
  read_failure failure;
  REQUIRE(ring.read_all(batch, failure, long_time));
  size_t n_wrong = 0;
  for (size_t i = 0; i < to.size(); ++i) n_wrong += to[i] != static_cast<std::byte>(i % 256);
  CHECK(n_wrong == 0);
  batch[15'000].offset = 300; // behind the end
  CHECK_FALSE(ring.read_all(batch, failure, long_time));
  CHECK(failure.index == 15'000);
  CHECK(failure.error == 0);
}

TEST_CASE("row_store: a read that hangs is told by file, tensor and row, and the next one is served") {
  const temp_folder folder;
  const std::vector<std::byte> weight(64 * 8, std::byte{3}), scale(64, std::byte{4});
  test::write_safetensors(folder.path() / "model.safetensors",
                          {{"t.scale", dtype::f8_e8m0, {64, 1}, scale}, {"t.weight", dtype::f8_e4m3, {64, 8}, weight}});
  const checkpoint_files checkpoint(folder.path());
  fault::arm("row_store.no_io_uring");
  row_store store(checkpoint, *checkpoint.find("t.weight"), *checkpoint.find("t.scale"),
                  {.n_reads_in_flight = 4, .cache_budget_bytes = 0, .patience = long_time});
  fault::disarm_all();
  std::vector<std::byte> records(2 * store.record_bytes(), untouched);
  const std::vector<int64_t> ids{7, 9};
  fault::arm("row_store.hang");
  fault::arm("row_store.late");
  try {
    store.read(ids, records);
    FAIL("expected a failure");
  } catch (const std::system_error& e) {
    CHECK(e.code() == std::errc::timed_out);
    CHECK(says(e.what(), "model.safetensors: tensor 't.weight': unanswered read of row 7 at offset "));
  }
  CHECK(is_untouched(records));
  store.read(ids, records);
  CHECK(records[0] == std::byte{3});
  CHECK(records[8] == std::byte{4});
  fault::let_go();
  fault::disarm_all();
}
