// What CUDA devices there are.
#include "gpu/cuda_backend.h"
#include "gpu/cuda_check.cuh"

namespace troupe {

std::vector<cuda_device_info> list_cuda_devices(std::string& why) {
  std::vector<cuda_device_info> devices;
  int n = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&n); e != cudaSuccess) {
    why = cudaGetErrorString(e);
    cudaGetLastError();
    return devices;
  }
  for (int i = 0; i < n; ++i) {
    cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) continue; // takes no memory on a card that others use
    devices.push_back({i, p.name, p.major, p.minor, p.multiProcessorCount, static_cast<int64_t>(p.totalGlobalMem)});
  }
  if (devices.empty()) why = "no device answered";
  return devices;
}

} // namespace troupe
