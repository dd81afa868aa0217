// The 128-point Hadamard blocks of EXL3, in the bit-exact forms of the format and in f64 for decoding at load.
//                                                                                                  Spec: exl3.md 6.1
//                                                                                                  - 6.3
#pragma once

#include "gpu/tensor.h"

namespace troupe {

constexpr int hadamard_block = 128;
constexpr float hadamard_scale = 0.088388347648F; // 1 / sqrt(128) as the format fixes it

// y = x . H per block of 128, times hadamard_scale; butterflies of stride 1, 2, 4 .. 64 in f32. x, y (rows, n), n % 128
// == 0; f32 -> f32, or f16 -> f16 rounded once at the end. y may be x. `pre` (n): x * pre first (f16: rounded).
// `post` (n): the result (f16: rounded) times post. Either may be empty; both have x's type, or f16 with f32 x.
void hadamard_host(tensor y, tensor x, tensor pre, tensor post);

// H . v . H of a block (128, 128) in place, without either scale: both sides of a weight block, at load.
void hadamard_both_sides(double* block);

} // namespace troupe
