// Device memory of one backend: plain allocations under one limit, each under a name.
#pragma once

#include "gpu/cuda_lane.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace troupe {

// One thread uses it, the backend's. Everything not given back is freed with it.
class cuda_memory {
public:
  cuda_memory(int32_t device, int64_t limit_bytes);
  ~cuda_memory();
  cuda_memory(const cuda_memory&) = delete;
  cuda_memory& operator=(const cuda_memory&) = delete;

  // Zero-filled on `on`. Throws std::system_error (not_enough_memory) naming `what`, the size, what is in use and the
  // limit; nothing is lost by it.
  std::byte* take(int64_t size_bytes, const std::string& what, cuda_stream on);
  void give_back(std::byte*);
  int64_t used_bytes() const { return used_bytes_; }

private:
  int32_t device_;
  int64_t limit_bytes_, used_bytes_ = 0;
  std::map<std::byte*, int64_t> held_;
};

} // namespace troupe
