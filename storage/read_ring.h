// A batch of positional reads, many in flight at once through io_uring; or one after another where the kernel refuses
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace troupe {

// One read of a batch: `size` bytes at `offset` of the open file `descriptor` go to `to`.
struct positional_read {
  int descriptor = -1;
  uint64_t offset = 0;
  std::byte* to = nullptr;
  uint32_t size = 0;
};

// What went wrong first in a batch.
struct read_failure {
  size_t index = 0;    // into the batch
  int error = 0;       // errno value; 0: the file ended
  uint32_t n_read = 0; // bytes that did arrive
};

// For one thread. Nothing is in flight between calls.
class read_ring {
public:
  // `depth`: reads in flight at once, 1 or more. Falls back to pread when the kernel has no io_uring, forbids it
  // (seccomp, sysctl) or cannot read through it.
  explicit read_ring(unsigned depth);
  ~read_ring();
  read_ring(read_ring&&) noexcept;
  read_ring& operator=(read_ring&&) noexcept;

  bool uses_io_uring() const { return ring_ != nullptr; }

  // True: every buffer is full. False: `failure` tells which was not and no buffer is written any more.
  bool read_all(std::span<const positional_read> batch, read_failure& failure);

private:
  struct ring;
  std::unique_ptr<ring> ring_; // null: pread
};

} // namespace troupe
