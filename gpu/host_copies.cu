// Parts of pinned memory with an event each, which tells when the copies from or to it are done.
#include "gpu/host_copies.h"

#include "gpu/cuda_check.cuh"
#include "gpu/cuda_owned.cuh"

#include <algorithm>
#include <cstring>

namespace troupe {

struct host_copies::part {
  own_event done{cudaEventDisableTiming}; // recorded when the part was left; before the first time it is done
};

host_copies::host_copies(int32_t device) {
  cuda_check(cudaSetDevice(device), "cudaSetDevice");
  parts_ = std::make_unique<part[]>(n_parts + 1); // the last one: of begin_to_host
  void* memory = nullptr;
  cuda_check(cudaHostAlloc(&memory, (n_parts + 2) * part_bytes, cudaHostAllocDefault), "pinned memory for copies");
  memory_ = static_cast<std::byte*>(memory);
}

host_copies::~host_copies() { cudaFreeHost(memory_); }

void host_copies::begin_next_part(const char* what) {
  if (used_ > 0) cuda_check(cudaEventRecord(parts_[at_].done.get(), on_), what);
  at_ = (at_ + 1) % n_parts;
  used_ = 0;
  cuda_check(cudaEventSynchronize(parts_[at_].done.get()), what);
}

void host_copies::to_device(void* to, const void* from, int64_t n_bytes, cuda_stream on, const char* what) {
  constexpr int64_t alignment = 256;
  if (on != on_ && used_ > 0) begin_next_part(what);
  on_ = on;
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  while (n_bytes > 0) {
    if (used_ == part_bytes) begin_next_part(what);
    const int64_t n = std::min(n_bytes, part_bytes - used_);
    std::byte* at = memory_ + at_ * part_bytes + used_;
    std::memcpy(at, source, static_cast<size_t>(n));
    cuda_check(cudaMemcpyAsync(target, at, static_cast<size_t>(n), cudaMemcpyHostToDevice, on), what);
    used_ = std::min((used_ + n + alignment - 1) / alignment * alignment, part_bytes);
    target += n, source += n, n_bytes -= n;
  }
}

void host_copies::to_host(void* to, const void* from, int64_t n_bytes, cuda_stream on, const char* what) {
  std::byte* const landing = memory_ + n_parts * part_bytes;
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  do {
    const int64_t n = std::min(n_bytes, part_bytes);
    if (n > 0) cuda_check(cudaMemcpyAsync(landing, source, static_cast<size_t>(n), cudaMemcpyDeviceToHost, on), what);
    cuda_check(cudaStreamSynchronize(on), what);
    if (n > 0) std::memcpy(target, landing, static_cast<size_t>(n));
    target += n, source += n, n_bytes -= n;
  } while (n_bytes > 0);
}

void host_copies::begin_to_host(const void* from, int64_t n_bytes, cuda_stream on, const char* what) {
  TROUPE_CHECK(n_bytes <= part_bytes, "what is collected later fits into a part");
  std::byte* const landing = memory_ + (n_parts + 1) * part_bytes;
  cuda_check(cudaMemcpyAsync(landing, from, static_cast<size_t>(n_bytes), cudaMemcpyDeviceToHost, on), what);
  cuda_check(cudaEventRecord(parts_[n_parts].done.get(), on), what);
}

void host_copies::collect(void* to, int64_t n_bytes, const char* what) {
  cuda_check(cudaEventSynchronize(parts_[n_parts].done.get()), what);
  std::memcpy(to, memory_ + (n_parts + 1) * part_bytes, static_cast<size_t>(n_bytes));
}

} // namespace troupe
