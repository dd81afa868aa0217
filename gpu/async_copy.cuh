// Copies of whole bands of packed weights from device to shared memory that run while the block does something else.
// On sm_90 and later the bulk copy engine; before that the warp copies itself.
#pragma once

#include "gpu/early_launch.cuh"

#include <cstdint>
#include <cuda_runtime.h>

namespace troupe {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Barriers in shared memory. Before sm_90 copies are the warp's own and a barrier counts its arrivals.
__device__ __forceinline__ void init_barrier(uint64_t* barrier, int n_arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(n_arrivals) : "memory");
}
__device__ __forceinline__ void fence_barriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
__device__ __forceinline__ void arrive_at(uint32_t barrier) { // its shared_address
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive(uint64_t* barrier) { arrive_at(shared_address(barrier)); }
// try_wait lets the thread sleep; sm_80 has test_wait alone.
#if __CUDA_ARCH__ >= 900
#define TROUPE_MBARRIER_WAIT "mbarrier.try_wait"
#else
#define TROUPE_MBARRIER_WAIT "mbarrier.test_wait"
#endif
__device__ __forceinline__ void wait_at(uint32_t barrier, uint32_t parity) { // its shared_address
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again:\n" TROUPE_MBARRIER_WAIT ".parity.shared.b64 done, [%0], %1;\n"
               "@done bra ready;\n"
               "bra again;\n"
               "ready:\n"
               "}\n" ::"r"(barrier),
               "r"(parity)
               : "memory");
}
#undef TROUPE_MBARRIER_WAIT
__device__ __forceinline__ void wait(const uint64_t* barrier, uint32_t parity) {
  wait_at(shared_address(barrier), parity);
}

// One thread: announces n_bytes of copies, then starts each. 16-byte aligned, a multiple of 16 bytes. sm_90 and later.
__device__ __forceinline__ void expect(uint64_t* barrier, uint32_t n_bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(n_bytes)
               : "memory");
#endif
}
__device__ __forceinline__ void bulk_copy(void* to, const void* from, uint32_t n_bytes, uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(n_bytes), "r"(shared_address(barrier))
               : "memory");
#endif
}

// One barrier in shared memory for what one warp waits for, once. All lanes of the warp call all functions.
struct warp_copies {
  uint64_t* barrier;

  // Before the first copy; `n_bytes` of all copies together.
  __device__ __forceinline__ void begin(int lane, uint32_t n_bytes) const {
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
      const uint32_t at = shared_address(barrier);
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(n_bytes) : "memory");
    }
    __syncwarp();
#endif
  }

  // 16-byte aligned on both sides, a multiple of 16 bytes.
  __device__ __forceinline__ void copy(int lane, void* to, const void* from, uint32_t n_bytes) const {
#if __CUDA_ARCH__ >= 900
    if (lane == 0)
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                       shared_address(to)),
                   "l"(from), "r"(n_bytes), "r"(shared_address(barrier))
                   : "memory");
#else
    for (uint32_t i = lane * 16; i < n_bytes; i += 512)
      *reinterpret_cast<uint4*>(static_cast<char*>(to) + i) =
          __ldcs(reinterpret_cast<const uint4*>(static_cast<const char*>(from) + i));
#endif
  }

  __device__ __forceinline__ void wait() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
                 "@done bra ready;\n"
                 "bra again;\n"
                 "ready:\n"
                 "}\n" ::"r"(shared_address(barrier))
                 : "memory");
#else
    __syncwarp();
#endif
  }
};

} // namespace troupe
