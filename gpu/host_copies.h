// Bytes between host and device memory, through pinned memory: the caller's bytes are its own again when a copy to the
// device returns, which waits for the work before it only where all parts of that memory are under way.
//
// Copies straight from and to pageable memory promise less: they go through memory of the driver that all streams of
// the process share, and wait for the stream when they are large.
#pragma once

#include "gpu/cuda_lane.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace troupe {

// One thread uses it, the backend's. Ends before its streams do.
class host_copies {
public:
  static constexpr int n_parts = 8; // under way to the device at once
  static constexpr int64_t part_bytes = 1 << 20;

  explicit host_copies(int32_t device); // throws std::system_error (cuda_category) where pinned memory is refused
  ~host_copies();

  // In the order of `on`; another stream than before begins a new part. Throws std::system_error (cuda_category) naming
  // `what`. Precondition: `on` is not being captured.
  void to_device(void* to, const void* from, int64_t n_bytes, cuda_stream on, const char* what);
  // Waits for all work of `on` before it, also for no bytes. Throws likewise. Precondition: the same.
  void to_host(void* to, const void* from, int64_t n_bytes, cuda_stream on, const char* what);
  // The same in two steps: collect waits for the work of `on` before begin_to_host alone, so that what was called since
  // goes on. At most part_bytes; one at a time; other copies may lie between the two.
  void begin_to_host(const void* from, int64_t n_bytes, cuda_stream on, const char* what);
  void collect(void* to, int64_t n_bytes, const char* what);

private:
  void begin_next_part(const char* what);

  struct part;
  std::unique_ptr<part[]> parts_;
  std::byte* memory_ = nullptr; // n_parts to the device, two to the host: of to_host, of begin_to_host
  cuda_stream on_ = nullptr;    // of the copies of the part in hand
  int at_ = 0;
  int64_t used_ = 0; // of the part in hand
};

} // namespace troupe
