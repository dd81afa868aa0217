// A ring of stages in shared memory that one thread fills with bulk copies and many warps read (sm_90 and later only).
#pragma once

#include "gpu/async_copy.cuh"

namespace troupe {

__device__ __forceinline__ void wait_barrier(const uint64_t* barrier, uint32_t parity) {
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@done bra ready;\n"
               "bra again;\n"
               "ready:\n"
               "}\n" ::"r"(shared_address(barrier)),
               "r"(parity)
               : "memory");
}
__device__ __forceinline__ void arrive(const uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Place in a ring of Stages: every thread counts for itself.
template <int Stages> struct ring_place {
  int stage = 0;
  uint32_t round = 0; // parity
  __device__ __forceinline__ void next() {
    if (++stage == Stages) {
      stage = 0;
      round ^= 1;
    }
  }
};

template <int Stages> struct ring_barriers {
  uint64_t full[Stages], empty[Stages];

  // One thread, before a block barrier. A stage is empty again after n_readers arrivals.
  __device__ void begin(uint32_t n_readers) {
    for (int i = 0; i < Stages; ++i) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full[i])) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&empty[i])), "r"(n_readers)
                   : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  // The filling thread: wait for an empty stage and announce the bytes of all copies into it.
  __device__ __forceinline__ void open(ring_place<Stages> at, uint32_t n_bytes) {
    wait_barrier(&empty[at.stage], at.round ^ 1);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&full[at.stage])),
                 "r"(n_bytes)
                 : "memory");
  }
  // 16-byte aligned on both sides, a multiple of 16 bytes.
  __device__ __forceinline__ void copy(ring_place<Stages> at, void* to, const void* from, uint32_t n_bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(n_bytes), "r"(shared_address(&full[at.stage]))
                 : "memory");
  }
  __device__ __forceinline__ void wait_full(ring_place<Stages> at) const { wait_barrier(&full[at.stage], at.round); }
  __device__ __forceinline__ void release(int stage) { arrive(&empty[stage]); }
};

} // namespace troupe
