// Bytes of the host in the middle of a graph: pinned memory, a flag, and a kernel that waits for it.
#include "gpu/cuda_check.cuh"
#include "gpu/cuda_ops.h"
#include "gpu/early_launch.cuh"

#include <algorithm>

namespace troupe {
namespace {

constexpr int64_t flag_bytes = 256; // the flag has its lines for itself
constexpr int threads = 256;
// Enough 16-byte loads under way to fill a PCIe 5 link (50 GB/s, 1.5 us: 75 KB), few enough to wait beside other work.
constexpr int64_t max_blocks = 32;
constexpr size_t max_parts = 4; // of one launch

class cuda_mailbox final : public mailbox {
public:
  cuda_mailbox(std::byte* memory, const std::byte* seen, int64_t n_bytes, cuda_stream on)
      : mailbox(reinterpret_cast<uint32_t*>(memory), {memory + flag_bytes, static_cast<size_t>(n_bytes)}),
        memory_(memory), seen_(seen), on_(on) {}
  ~cuda_mailbox() override {
    post(); // whatever still waits for it ends
    cudaStreamSynchronize(on_);
    cudaFreeHost(memory_);
  }
  const std::byte* seen() const { return seen_; }

private:
  std::byte* memory_;
  const std::byte* seen_; // by the device: the flag, then the bytes
  cuda_stream on_;
};

struct parts {
  std::byte* to[max_parts];
  int64_t at[max_parts], n_bytes[max_parts]; // in the mailbox
  int n;
};

__device__ uint32_t load_flag(const uint32_t* flag) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

// Bound by the link to the host's memory. A thread of each block waits; what it has seen, all of the block have. The
// bytes are other ones in every replay, so no cache may answer for the host's memory (ld.cv).
__global__ void __launch_bounds__(threads) receive_kernel(const uint32_t* flag, const std::byte* bytes, parts p) {
  begin_in_turn();
  if (threadIdx.x == 0)
    while (load_flag(flag) == 0) {}
  __syncthreads();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x,
                step = static_cast<int64_t>(gridDim.x) * threads;
  for (int i = 0; i < p.n; ++i) {
    const auto* from = reinterpret_cast<const int4*>(bytes + p.at[i]);
    auto* to = reinterpret_cast<int4*>(p.to[i]);
    const int64_t n = p.n_bytes[i] / 16;
    for (int64_t k = first; k < n; k += step) to[k] = __ldcv(from + k);
    const int64_t rest = n * 16 + first; // bytes behind the last whole sixteen
    if (rest < p.n_bytes[i])
      p.to[i][rest] = static_cast<std::byte>(__ldcv(reinterpret_cast<const uint8_t*>(bytes) + p.at[i] + rest));
  }
}

} // namespace

std::unique_ptr<mailbox> make_cuda_mailbox(int64_t n_bytes, const std::string& what, const cuda_lane& lane) {
  void *memory = nullptr, *seen = nullptr;
  const auto size = static_cast<size_t>(flag_bytes + n_bytes);
  const cudaError_t e = cudaHostAlloc(&memory, size, cudaHostAllocMapped);
  if (e == cudaErrorMemoryAllocation) {
    cudaGetLastError(); // the failed call leaves nothing behind
    throw std::system_error(std::make_error_code(std::errc::not_enough_memory),
                            "pinned memory for " + what + ": " + std::to_string(n_bytes) + " bytes wanted");
  }
  cuda_check(e, "cudaHostAlloc");
  std::fill_n(static_cast<std::byte*>(memory), size, std::byte{0});
  if (const cudaError_t mapped = cudaHostGetDevicePointer(&seen, memory, 0); mapped != cudaSuccess) {
    cudaFreeHost(memory);
    cuda_check(mapped, "cudaHostGetDevicePointer");
  }
  return std::make_unique<cuda_mailbox>(static_cast<std::byte*>(memory), static_cast<const std::byte*>(seen), n_bytes,
                                        lane.on);
}

void receive_cuda(std::span<const tensor> to, const mailbox& from, const cuda_lane& lane) {
  const std::byte* seen = static_cast<const cuda_mailbox&>(from).seen();
  int64_t at = 0;
  for (size_t first = 0; first < to.size(); first += max_parts) {
    parts p{};
    int64_t most = 0;
    for (const tensor& t : to.subspan(first, std::min(max_parts, to.size() - first))) {
      const int64_t n_bytes = t.size_bytes();
      TROUPE_CHECK(at + n_bytes <= static_cast<int64_t>(from.bytes().size()), "a mailbox holds all that is received");
      TROUPE_CHECK(reinterpret_cast<uintptr_t>(t.data) % 16 == 0,
                   "what is received begins where sixteen bytes may lie");
      p.to[p.n] = t.data;
      p.at[p.n] = at;
      p.n_bytes[p.n++] = n_bytes;
      most = std::max(most, n_bytes);
      at = mailbox::behind(at, n_bytes);
    }
    const int64_t blocks = std::clamp<int64_t>((most / 16 + threads - 1) / threads, 1, max_blocks);
    launch_early(receive_kernel, static_cast<unsigned>(blocks), threads, 0, lane.on, "receive",
                 reinterpret_cast<const uint32_t*>(seen), seen + flag_bytes, p);
  }
}

} // namespace troupe
