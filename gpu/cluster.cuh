// Blocks of a cluster, which run at the same time and may write into each other's shared memory. sm_90 and later only:
// elsewhere kernels with clusters compile and are never launched.
#pragma once

#include "gpu/async_copy.cuh"

namespace troupe {

// All threads of all blocks of the cluster call each arrive and each wait, in turn. What was written before the arrive
// is seen after the wait.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Writes to where `to` is in the block of that rank, which must have begun.
__device__ __forceinline__ void store_in_block(int rank, float2* to, float2 x) {
#if __CUDA_ARCH__ >= 900
  uint32_t at;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(to)), "r"(rank));
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x.x), "f"(x.y) : "memory");
#endif
}
__device__ __forceinline__ void store_in_block(int rank, uint32_t* to, uint32_t x) {
#if __CUDA_ARCH__ >= 900
  uint32_t at;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(to)), "r"(rank));
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
#endif
}

} // namespace troupe
