// y = x W for an EXL3 matrix and any number of rows, eight at a time.                       Spec: exl3.md 9, 13.
#pragma once

#include "gpu/cuda_matrix.h"

#include <span>

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

// The byte form: codebook mul1 and at most 16,384 inputs, if it was not parked. byte_gemv.cu
bool byte_form_serves(const trellis_view&, const cuda_lane&);
// Matrices of one stored input width and one rate, all with the rows of the first. Precondition: the form serves them.
inline constexpr int most_listed = 8;
void byte_gemv_cuda(std::span<const gemv_args>, const cuda_lane&);

// Whichever form serves the matrix, in slabs of rows that fit the lane's scratch and counters.
void trellis_gemv_cuda(gemv_args, const cuda_lane&);

// Blocks of a cluster that pack a row for the byte form on the current device: 1 before compute capability 9.0, also of
// the code that was compiled, which a newer device may run. Throws std::system_error.
int32_t byte_form_cluster();

} // namespace troupe
