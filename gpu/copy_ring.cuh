// A ring of stages in shared memory that one thread fills with bulk copies and many warps read (sm_90 and later only).
#pragma once

#include "gpu/async_copy.cuh"

namespace troupe {

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
  __device__ void begin(int n_readers) {
    for (int i = 0; i < Stages; ++i) {
      init_barrier(&full[i], 1);
      init_barrier(&empty[i], n_readers);
    }
    fence_barriers();
  }
  // The filling thread: wait for an empty stage and announce the bytes of all copies into it.
  __device__ __forceinline__ void open(ring_place<Stages> at, uint32_t n_bytes) {
    wait(&empty[at.stage], at.round ^ 1);
    expect(&full[at.stage], n_bytes);
  }
  // 16-byte aligned on both sides, a multiple of 16 bytes.
  __device__ __forceinline__ void copy(ring_place<Stages> at, void* to, const void* from, uint32_t n_bytes) {
    bulk_copy(to, from, n_bytes, &full[at.stage]);
  }
  __device__ __forceinline__ void wait_full(ring_place<Stages> at) const { wait(&full[at.stage], at.round); }
  __device__ __forceinline__ void release(int stage) { arrive(&empty[stage]); }
};

} // namespace troupe
