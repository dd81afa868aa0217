// y = x W for an EXL3 matrix and any number of rows, eight at a time.                       Spec: exl3.md 9, 13.
#pragma once

#include "gpu/cuda_matrix.h"

namespace troupe {

struct gemv_args {
  trellis_view w;
  const float* x = nullptr; // (rows, w.in real) f32, x_stride apart
  float* y = nullptr;       // (rows, out)
  const float* bias = nullptr;
  int64_t x_stride = 0, y_stride = 0;
  int32_t n_rows = 0, in = 0, out = 0; // real widths
  float* partial = nullptr;            // (rows, chunks, slices, 128) f32
  uint32_t* counters = nullptr;        // (groups, chunks), zero
};

// One launch for as many rows as `partial` and `counters` were sized for. One function a codebook.
void trellis_gemv_mul1(const gemv_args&, cuda_stream on);
void trellis_gemv_mcg(const gemv_args&, cuda_stream on);
void trellis_gemv_inst3(const gemv_args&, cuda_stream on);

// The byte form: codebook mul1 and at most 16,384 inputs; false for others, which nothing was done for. byte_gemv.cu
bool byte_gemv_cuda(gemv_args, const cuda_lane&);

// Whichever form serves the matrix, in slabs of rows that fit the lane's scratch and counters.
void trellis_gemv_cuda(gemv_args, const cuda_lane&);

} // namespace troupe
