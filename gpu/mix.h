// The hyper-connection streams: mixing coefficients, fold, expand.                       Spec: model.md section 2.1.
#pragma once

#include "gpu/backend.h"

namespace troupe {

// See mix_args. h (R, M, D) f32, fn a matrix of the host backend, M <= 8 | scratch on the stack only.
void mix_host(const mix_args&);
// The part of mix after the matrix: z ((2 + M) * M), already normed, of one row -> pre, post and comb of that row.
void mix_coefficients(const mix_args&, const float* z, int64_t row);
// x (R, D) = sum_m pre[r][m] h[r][m], m ascending with fused steps; h (R, M, D), pre (R, M).
void fold_host(tensor x, tensor h, tensor pre);
// h[k] = post[k] y + sum_j comb[j][k] h[j], j ascending with fused steps, in place; y (R, D), post (R, M), comb (R, M,
// M).
void expand_host(tensor h, tensor y, tensor post, tensor comb);
// h (R, M, D) = x (R, D) copied M times.
void spread_host(tensor h, tensor x);
// y (R, D) = mean over the M copies of h (R, M, D).
void mean_copies_host(tensor y, tensor h);

} // namespace troupe
