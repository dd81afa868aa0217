// Checks of CUDA calls; for .cu files only.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>
#include <system_error>

namespace troupe {

// The error category "cuda": its values are cudaError_t.
const std::error_category& cuda_category();

// Throws std::system_error naming `what` when a call failed.
inline void cuda_check(cudaError_t e, const char* what) {
  if (e != cudaSuccess) throw std::system_error(static_cast<int>(e), cuda_category(), what);
}

// After a launch: wrong launch arguments show at once, faults of the kernel itself at the end of the step.
inline void cuda_check_launch(const char* what) { cuda_check(cudaGetLastError(), what); }

} // namespace troupe
