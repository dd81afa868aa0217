// What the cases of a model run on: the host backend, or the CUDA one in the program that is built for it.
#pragma once

#include "gpu/backend.h"
#include "gpu/cuda_backend.h"

#include <memory>

namespace troupe::test {

// `scalar`: the host's twins alone, which a device has no form of.
inline std::unique_ptr<backend> make_device(int n_threads, [[maybe_unused]] bool scalar = false,
                                            collective* group = nullptr) {
#ifdef TROUPE_TEST_CUDA
  static_cast<void>(n_threads);
  return make_cuda_backend({.group = group});
#else
  return make_host_backend({.n_threads = n_threads, .scalar_only = scalar, .group = group});
#endif
}

} // namespace troupe::test
