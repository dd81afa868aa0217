// The EXL3 bit stream: a (k/16, n/16, 16 K) array of words -> states, decoded weights Q, whole weights W.
//                                                                                                   Spec: exl3.md
//                                                                                                   4, 6.4
#pragma once

#include "gpu/backend.h"

#include <span>
#include <vector>

namespace troupe {

constexpr int trellis_tile = 16; // a tile is 16 inputs x 16 outputs

// The 256 states of one tile, in stream order. `words` (16 K) u16, K = 1 .. 8 or KA + 1/2.
void trellis_states(std::span<const uint16_t> words, std::span<uint16_t, 256> states);

// Row and column inside the tile of the weight at stream position t.
constexpr int trellis_row(int t) { return 2 * ((t / 8) % 4) + (t & 1) + 8 * ((t >> 1) & 1); }
constexpr int trellis_column(int t) { return t / 32 + 8 * ((t & 7) >> 2); }

// Throws std::runtime_error naming m.name and the fault: ranks, types, a rate that does not exist, widths that are no
// multiples of 128, lengths of suh and svh, a value in them that is not finite.
void check_trellis(const stored_matrix& m);

// Q (in, out) as f32, exact.                                                          Precondition: check_trellis
// passed.
std::vector<float> decode_trellis(const stored_matrix& m);

// W (in, out) = diag(suh) H Q H diag(svh), in f64, rounded to f32 once.               Precondition: check_trellis
// passed.
std::vector<float> decode_exl3(const stored_matrix& m);

} // namespace troupe
