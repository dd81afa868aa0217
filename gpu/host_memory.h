// Memory of the host backend: aligned, zero-filled, counted against the pretended size of the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace troupe {

// What is left of the pretended device memory. Used by the thread of one backend only.
struct memory_account {
  int64_t limit_bytes = 0, used_bytes = 0;
};

// A block of counted memory; gives its bytes back to the account when it goes. Owns its memory.
class host_memory {
public:
  host_memory() = default;
  // Zero-filled and 64-byte aligned. Throws std::system_error (not_enough_memory) naming `what`, wanted, used, limit.
  host_memory(memory_account& account, int64_t size_bytes, const std::string& what);
  host_memory(host_memory&&) noexcept;
  host_memory& operator=(host_memory&&) noexcept;
  ~host_memory();

  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }

private:
  memory_account* account_ = nullptr;
  void* base_ = nullptr;    // what was allocated; data_ is its first aligned byte
  size_t mapped_bytes_ = 0; // of pages of its own; 0: base_ is the allocator's
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

} // namespace troupe
