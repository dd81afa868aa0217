// One linear out of its files into host memory, whole or cut. Spec: exl3.md sections 3, 7 and 8.1, model.md section 6.
#pragma once

#include "gpu/backend.h"
#include "model/deepseek_v41/checkpoint.h"

#include <vector>

namespace troupe::deepseek_v41 {

// A part of a linear: outputs [out_first, + out_count), inputs [in_first, + in_count); -1: all.
struct matrix_cut {
  int64_t out_first = 0, out_count = -1, in_first = 0, in_count = -1;
};

// A linear in host memory, cut; the tensors of `matrix` point into `bytes`.
struct stored_part {
  stored_matrix matrix;
  std::vector<std::vector<std::byte>> bytes;
};

// Throws checkpoint_error naming the tensor: a cut that is no multiple of its blocks, side vectors that are not finite,
// padding that is not zero; std::system_error when a file cannot be read.
stored_part read_part(const checkpoint_files&, const found_matrix&, matrix_cut);

// All of an F32, BF16 or F16 tensor.
std::vector<float> read_floats(const checkpoint_files&, const tensor_info&);

} // namespace troupe::deepseek_v41
