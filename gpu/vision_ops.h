// What only the vision tower needs.                                                  Spec: vision.md sections 2 and 3.
#pragma once

#include "gpu/tensor.h"

#include <cstdint>

namespace troupe {

// x (n, heads, d) or (n, heads * d) f32, angles (n, d / 2) f32: (x1, x2) halves of a head -> (x1 c - x2 s, x2 c + x1
// s).
void rope_half_host(tensor x, tensor angles, int64_t heads);
// o, q, k, v (n, heads, d) f32: softmax(q k^T * scale) v, all see all. d <= 1024.
void attention_full_host(tensor o, tensor q, tensor k, tensor v, float scale);
// x * Phi(x), the erf form, in place.
void gelu_host(tensor x);
// y (n, w) = silu(g) * u, gate_up (n, 2 w): g first.
void silu_mul_host(tensor y, tensor gate_up);

} // namespace troupe
