// A batch of positional reads, many in flight at once through io_uring; or one after another where the kernel refuses
// it. A read that hangs is given up, and what it would write to is nobody else's until it comes back.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace troupe {

class patient_reader;

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
  int error = 0;       // errno value; 0: the file ended; ETIMEDOUT: it hangs
  uint32_t n_read = 0; // bytes that did arrive
};

// For one thread. Nothing writes to a buffer of the caller's between calls.
class read_ring {
public:
  // Of pread: pieces of batches that hang at once at most, each with a thread; where that many do, none is begun.
  static constexpr size_t most_hanging = 8;
  static constexpr std::chrono::milliseconds forever = std::chrono::milliseconds::max();

  // `depth`: reads in flight at once, 1 or more. Falls back to pread when the kernel has no io_uring, forbids it
  // (seccomp, sysctl) or cannot read through it.
  explicit read_ring(unsigned depth);
  ~read_ring();
  read_ring(read_ring&&) noexcept;
  read_ring& operator=(read_ring&&) noexcept;

  bool uses_io_uring() const { return ring_ != nullptr; }

  // True: every buffer is full. False: `failure` tells which was not. `patience`: when nothing arrives for so long, the
  // batch fails with ETIMEDOUT, and later ones are read beside what hangs.
  bool read_all(std::span<const positional_read> batch, read_failure& failure,
                std::chrono::milliseconds patience = forever);
  // Reads that were given up and had not come back when the last batch was read. With pread: batches.
  size_t n_hanging() const;

private:
  struct ring;
  std::unique_ptr<ring> ring_;             // null: pread
  std::unique_ptr<patient_reader> reader_; // else null
};

} // namespace troupe
