// Products of many rows with matrices that bf16 holds exactly (bf16, fp8, fp4), on tensor cores: the prefill class of
// these formats.
#pragma once

#include "gpu/cuda_matrix.h"

namespace troupe {

inline bool plain_gemm_serves(const matrix_view& m) {
  using format = plain_view::format;
  return !m.is_trellis && (m.plain.how == format::bf16 || m.plain.how == format::fp8 || m.plain.how == format::fp4);
}

// y = x W + bias, as linear_cuda. x is split into three bf16 that hold all its bits; order of sums: slices of 512
// inputs, in a slice 16 inputs at a time, each with the three parts, in one f32 accumulator; then the slices in order.
// The same for every row count. bf16 whose rows are multiples of 16 bytes is multiplied by warp groups where the device
// has them (plain_groups.cu), other matrices and devices by warps. Within 1e-5 of the twin: tensor cores cut where f32
// sums round.
void plain_gemm_cuda(tensor y, tensor x, const matrix_view& m, int64_t rows, int64_t x_stride, int64_t y_stride,
                     const cuda_lane&);

} // namespace troupe
