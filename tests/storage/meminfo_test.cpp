// /proc/meminfo and statm, from made-up files and from the real ones.
#include "storage/meminfo.h"
#include "tests/safetensors_writer.h"

#include <doctest/doctest.h>

#include <string>
#include <system_error>
#include <unistd.h>

using namespace troupe;
using test::temp_folder;

namespace {

std::string error_text(const std::string& meminfo) {
  temp_folder folder;
  test::write_text(folder.path() / "meminfo", meminfo);
  try {
    read_host_memory(folder.path() / "meminfo");
  } catch (const std::system_error& e) { return e.what(); }
  return "no error";
}

} // namespace

TEST_CASE("meminfo: totals are kB in the file and bytes here") {
  temp_folder folder;
  test::write_text(folder.path() / "meminfo", "MemTotal:       24616252 kB\nMemFree:         1000000 kB\n"
                                              "MemAvailable:   20000000 kB\nSwapTotal:             0 kB\n");
  const host_memory m = read_host_memory(folder.path() / "meminfo");
  CHECK(m.total_bytes == 24616252ull * 1024);
  CHECK(m.free_bytes == 1000000ull * 1024);
  CHECK(m.available_bytes == 20000000ull * 1024);
}

TEST_CASE("meminfo: a missing or broken line is refused by name") {
  CHECK(error_text("MemTotal: 5 kB\nMemFree: 1 kB\n").find("MemAvailable") != std::string::npos);
  CHECK(error_text("MemTotal: 5 kB\nMemFree: 1 kB\nMemAvailableX: 3 kB\n").find("MemAvailable") != std::string::npos);
  CHECK(error_text("MemTotal: x kB\n").find("found 'MemTotal: x kB'") != std::string::npos);
  CHECK(error_text("MemTotal: 5 MB\n").find("MemTotal") != std::string::npos);
  CHECK(error_text("MemTotal: 99999999999999999999 kB\n").find("MemTotal") != std::string::npos);
  CHECK(error_text("MemTotal: 18446744073709551615 kB\n").find("MemTotal") != std::string::npos);
  CHECK(error_text("").find("MemTotal") != std::string::npos);
}

TEST_CASE("meminfo: an absent file is refused with its path") {
  CHECK_THROWS_AS(read_host_memory("/absent/meminfo"), std::system_error);
  CHECK_THROWS_AS(read_resident_bytes("/absent/statm"), std::system_error);
}

TEST_CASE("meminfo: the resident size is the second number of statm, in pages") {
  temp_folder folder;
  test::write_text(folder.path() / "statm", "1000 250 30 1 0 100 0\n");
  CHECK(read_resident_bytes(folder.path() / "statm") == 250u * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)));
  test::write_text(folder.path() / "statm", "1000");
  CHECK_THROWS_AS(read_resident_bytes(folder.path() / "statm"), std::system_error);
}

TEST_CASE("meminfo: this host and this process make sense") {
  const host_memory m = read_host_memory();
  CHECK(m.total_bytes >= m.available_bytes);
  CHECK(m.total_bytes >= m.free_bytes);
  CHECK(read_resident_bytes() > 100000);
  CHECK(read_resident_bytes() < m.total_bytes);
}
