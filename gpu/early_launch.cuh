// Programmatic dependent launch: a kernel may start before the one before it in the stream has ended, so that its
// launch and start cost nothing; what that one writes, and whatever it writes itself, waits for that end. Before sm_90
// it starts after it.
#pragma once

#include "gpu/cuda_check.cuh"

namespace troupe {

// The kernel before this one in the stream has ended and its writes are seen.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The kernel after this one may start when every block has said so; it still waits above for this one's end.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Of a kernel that overlaps with its neighbours by launch and start. In this order: what starts early behind it may
// rely on everything before it. Before it a kernel touches only what the kernel directly before does not write:
// weights, inputs of the step, what an earlier kernel than that one has made.
__device__ __forceinline__ void begin_in_turn() {
  wait_for_kernel_before();
  let_next_kernel_start();
}

// Asks the L2 cache for the line of 128 bytes at `at`. Weights depend on no kernel, so one asks for them before it
// waits for the one before it: memory answers after 0.8 us, the cache after 0.3 (H200).
__device__ __forceinline__ void fetch_line(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }
// Of `size_bytes` from `from`, by threads `thread` of `n_threads`.
__device__ __forceinline__ void fetch_lines(const void* from, int64_t size_bytes, int thread, int n_threads) {
  const auto* bytes = static_cast<const uint8_t*>(from);
  for (int64_t at = thread * int64_t{128}; at < size_bytes; at += n_threads * int64_t{128}) fetch_line(bytes + at);
}

// Launches a kernel all of whose threads call wait_for_kernel_before, in clusters of so many blocks along x, and checks
// the launch. Early only in captured graphs: decode is replayed from them, and what is launched one by one need not
// rely on it. There every kernel leaves as much of a multiprocessor's memory as possible to be shared, for the products
// in between take all of that, and a multiprocessor changes the split only when it is empty.
template <class Kernel, class... Args>
void launch_clusters(const Kernel& kernel, unsigned cluster, dim3 grid, dim3 block, size_t shared_bytes,
                     cudaStream_t on, const char* what, const Args&... args) {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  cuda_check(cudaStreamIsCapturing(on, &capturing), what);
  cudaLaunchAttribute how[3] = {};
  unsigned n = 0;
  if (cluster > 1) {
    how[n].id = cudaLaunchAttributeClusterDimension;
    how[n].val.clusterDim.x = cluster, how[n].val.clusterDim.y = 1, how[n].val.clusterDim.z = 1;
    ++n;
  }
  if (capturing == cudaStreamCaptureStatusActive) {
    how[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    how[n].val.programmaticStreamSerializationAllowed = 1;
    ++n;
    how[n].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    how[n].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
    ++n;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = on;
  config.attrs = how, config.numAttrs = n;
  cuda_check(cudaLaunchKernelEx(&config, kernel, args...), what);
}
template <class Kernel, class... Args>
void launch_early(const Kernel& kernel, dim3 grid, dim3 block, int shared_bytes, cudaStream_t on, const char* what,
                  const Args&... args) {
  launch_clusters(kernel, 1, grid, block, static_cast<size_t>(shared_bytes), on, what, args...);
}

} // namespace troupe
