// Ranks share the host's cores, or take the CUDA devices in turn.
#include "actors/system_device.h"

#include "gpu/backend.h"
#include "gpu/cuda_backend.h"

#include <algorithm>
#include <stdexcept>
#include <thread>

namespace troupe {

std::string choose_backend(const std::string& wanted) {
  if (wanted != "auto" && wanted != "cuda") return wanted;
  std::string why;
  const bool has_device = !list_cuda_devices(why).empty();
  if (wanted == "cuda" && !has_device)
    throw std::runtime_error("backend: cuda was asked for, but no CUDA device can be used: " + why);
  return has_device ? "cuda" : "host";
}

std::unique_ptr<backend> make_device(const settings& c, int32_t rank, int32_t n_ranks, collective* group) {
  if (c.backend == "cuda") {
    std::string why;
    const auto n_devices = static_cast<int32_t>(list_cuda_devices(why).size());
    return make_cuda_backend(
        {.device = rank % std::max(n_devices, 1), .scratch_bytes = scratch_of_chunk(c.chunk_tokens), .group = group});
  }
  const auto cores = static_cast<int32_t>(std::thread::hardware_concurrency());
  host_backend_config host;
  host.n_threads = std::max(1, (c.threads > 0 ? c.threads : cores) / n_ranks);
  host.group = group;
  return make_host_backend(host);
}

} // namespace troupe
