// Products with matrices that are not EXL3: dense, fp8, fp4. Few rows and many give a row the same bits: f32 and f16
// have one numeric class, the others have plain_gemm.h for prefill.
#pragma once

#include "gpu/cuda_matrix.h"

namespace troupe {

// y = x W + bias, as linear_cuda. Order of sums: slices of 128-input chunks (plain_slices), in a slice lane l takes
// inputs 4 l .. 4 l + 3 of each chunk, then the lanes by halves, then the slices in order.
void plain_linear_cuda(tensor y, tensor x, const matrix_view& m, int64_t rows, int64_t x_stride, int64_t y_stride,
                       const cuda_lane&);

// How the inputs of a matrix are cut, told by their number alone.
struct plain_slices {
  static constexpr int most = 8, chunk = 128;
  int n = 1;          // 1 .. most, none is empty
  int inputs = chunk; // of a slice, the last may have less
  explicit plain_slices(int in) {
    const int chunks = (in + chunk - 1) / chunk, wanted = chunks / 4 < 1 ? 1 : chunks / 4 < most ? chunks / 4 : most;
    const int each = (chunks + wanted - 1) / wanted;
    n = (chunks + each - 1) / each;
    inputs = each * chunk;
  }
};

} // namespace troupe
