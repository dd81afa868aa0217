// Mixing coefficients of many rows from one reading of the streams: the prefill class of mix, of four copies and f32
// weights.
#pragma once

#include "gpu/cuda_matrix.h"

namespace troupe {

struct mix_pointers; // mix_coefficients.cuh

// Told by the matrix alone, hence so is the order of sums of a row.
bool mix_rows_serve(const matrix_view& fn);

// z = fn h and the sum of squares of h, then the coefficients. h and fn are split into three bf16 each, which hold all
// their bits; products below 2^-24 of the whole are left out. Order of sums: slices of 128-input chunks (plain_slices);
// in a slice the large products chunk by chunk, 16 inputs at a time in an f32 accumulator, then all the small ones;
// then the slices in order.
void mix_rows_cuda(mix_pointers, const matrix_view& fn, int64_t n_rows, const cuda_lane&);

} // namespace troupe
