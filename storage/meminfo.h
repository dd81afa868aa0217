// What the kernel says about memory: the host's, from /proc/meminfo, and our own, from /proc/self/statm.
#pragma once

#include <cstdint>
#include <filesystem>

namespace troupe {

struct host_memory {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t available_bytes = 0; // what can be had without swapping; the page cache counts, unlike in free_bytes
};

// Both throw std::system_error naming the file when it cannot be read or lacks what is asked. The paths are for tests.
host_memory read_host_memory(const std::filesystem::path& meminfo = "/proc/meminfo");
uint64_t read_resident_bytes(const std::filesystem::path& statm = "/proc/self/statm"); // of this process

} // namespace troupe
