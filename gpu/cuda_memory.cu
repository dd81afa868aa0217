// Plain cudaMalloc: everything is taken at load, so speed does not matter and a leak shows as a number.
#include "gpu/cuda_memory.h"

#include "gpu/cuda_check.cuh"

#include <algorithm>

namespace troupe {

namespace {

class cuda_errors final : public std::error_category {
public:
  const char* name() const noexcept override { return "cuda"; }
  std::string message(int e) const override { return cudaGetErrorString(static_cast<cudaError_t>(e)); }
};

[[noreturn]] void refuse(int64_t size_bytes, const std::string& what, int64_t used, int64_t limit, const char* whose) {
  throw std::system_error(std::make_error_code(std::errc::not_enough_memory),
                          "device memory for " + what + ": " + std::to_string(size_bytes) + " bytes wanted, " +
                              std::to_string(used) + " in use, " + std::to_string(limit) + " " + whose);
}

} // namespace

const std::error_category& cuda_category() {
  static const cuda_errors errors;
  return errors;
}

cuda_memory::cuda_memory(int32_t device, int64_t limit_bytes) : device_(device), limit_bytes_(limit_bytes) {}

cuda_memory::~cuda_memory() {
  cudaSetDevice(device_);
  for (const auto& [memory, size] : held_) cudaFree(memory);
}

std::byte* cuda_memory::take(int64_t size_bytes, const std::string& what, cuda_stream on) {
  if (size_bytes > limit_bytes_ - used_bytes_) refuse(size_bytes, what, used_bytes_, limit_bytes_, "allowed");
  void* memory = nullptr;
  const int64_t bytes = std::max<int64_t>(size_bytes, 1);
  const cudaError_t e = cudaMalloc(&memory, static_cast<size_t>(bytes));
  if (e == cudaErrorMemoryAllocation) {
    cudaGetLastError(); // the failed call leaves nothing behind
    size_t free_bytes = 0, total = 0;
    cudaMemGetInfo(&free_bytes, &total);
    refuse(size_bytes, what, used_bytes_, static_cast<int64_t>(free_bytes), "free on the card");
  }
  cuda_check(e, "cudaMalloc");
  auto* at = static_cast<std::byte*>(memory);
  held_[at] = size_bytes;
  used_bytes_ += size_bytes;
  cuda_check(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), on), "cudaMemsetAsync");
  return at;
}

void cuda_memory::give_back(std::byte* memory) {
  const auto at = held_.find(memory);
  if (at == held_.end()) return;
  cudaFree(memory);
  used_bytes_ -= at->second;
  held_.erase(at);
}

} // namespace troupe
