// A build without nvcc has no CUDA backend and says so.
#ifndef TROUPE_CUDA

#include "gpu/cuda_backend.h"

#include <stdexcept>

namespace troupe {

std::vector<cuda_device_info> list_cuda_devices(std::string& why) {
  why = "this build has no CUDA (nvcc was not found when it was built)";
  return {};
}

std::unique_ptr<backend> make_cuda_backend(const cuda_backend_config&) {
  std::string why;
  list_cuda_devices(why);
  throw std::runtime_error("cuda backend: " + why);
}

double replayed_us(backend&) { return 0; }
int32_t device_of(backend&) { return 0; }
std::vector<weight_variant> loaded_variants(backend&) { return {}; }
bool park(backend&, const parkable&) { return false; }

} // namespace troupe

#endif
