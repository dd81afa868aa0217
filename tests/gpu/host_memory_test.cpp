// Blocks of the host backend: zero-filled, aligned, counted, and free of charge until they are used.
#include "gpu/host_memory.h"
#include "tests/sanitized.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

using namespace troupe;

namespace {

int64_t resident_bytes() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  return -1;
}

} // namespace

TEST_CASE("host_memory: a large block is neither touched nor resident before it is used") {
  memory_account account{int64_t{4} << 30};
  constexpr int64_t size = int64_t{1} << 30;
  const auto before = resident_bytes();
  host_memory block(account, size, "a cache");
  if (!test::is_sanitized) CHECK(resident_bytes() < before + (16 << 20));
  CHECK(block.data()[0] == std::byte{0});
  CHECK(block.data()[size - 1] == std::byte{0});
  block.data()[size - 1] = std::byte{1};
  CHECK(account.used_bytes == size);
  block = {};
  CHECK(account.used_bytes == 0);
}

TEST_CASE("host_memory: blocks of any size are aligned, zero-filled and counted, and past the limit say so") {
  memory_account account{int64_t{8} << 20};
  for (int round = 0; round < 3; ++round) // memory that comes back is zero again
    for (const int64_t size : {0, 1, 63, 64, 1000, (1 << 20) - 64, 1 << 20, (4 << 20) + 1}) {
      CAPTURE(size);
      host_memory block(account, size, "block"), moved;
      CHECK(reinterpret_cast<uintptr_t>(block.data()) % 64 == 0);
      CHECK(std::all_of(block.data(), block.data() + size, [](std::byte b) { return b == std::byte{0}; }));
      std::fill(block.data(), block.data() + size, std::byte{0xff});
      moved = std::move(block);
      CHECK(moved.size_bytes() == size);
      CHECK(account.used_bytes == size);
    }
  CHECK(account.used_bytes == 0);
  const host_memory most(account, 8 << 20, "all");
  CHECK_THROWS_WITH_AS(host_memory(account, 1, "one more"),
                       doctest::Contains("one more: 1 bytes wanted, 8388608 of 8388608 in use"), std::system_error);
}
