// Stored linears -> device memory, as they are.                                          Spec: exl3.md 8.4, 15.
#pragma once

#include "gpu/cuda_matrix.h"
#include "gpu/cuda_memory.h"
#include "gpu/host_copies.h"

#include <span>

namespace troupe {

// One allocation a matrix. The stored bytes are not needed any more when it returns. Throws std::runtime_error naming
// the tensor, std::system_error for memory.
std::unique_ptr<cuda_matrix> load_cuda_matrix(const stored_matrix&, cuda_memory&, host_copies&, cuda_stream);

// One allocation a set. All experts must share widths, formats, rates and codebooks of each of the three matrices: one
// launch serves them all; refused by name otherwise.
std::unique_ptr<cuda_expert_set> load_cuda_experts(std::span<const stored_expert>, int32_t first, cuda_memory&,
                                                   host_copies&, cuda_stream);

} // namespace troupe
