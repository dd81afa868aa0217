// Engram rows as their tables store them -> numbers, and the gated addition to the streams.      Spec: engram.md 5,
// exl3.md 14.1, 14.3, 14.4.
#pragma once

#include "gpu/backend.h"

namespace troupe {

// Bytes of one record: codes, then scales. MXINT scales are one per `block` columns (32 or 16).
int64_t engram_record_bytes(engram_format format, int64_t width, int64_t block);

// y (R, cols, width) f32; records (R, cols, bytes) u8 with bytes = engram_record_bytes(format, width, 32 or 16), the
// block is told by the size. Exact. A NaN code or scale makes its values NaN.
void dequant_rows_host(tensor y, tensor records, engram_format format, int64_t width);

// Per copy m: dot = sum h q_weight k_weight key * rsqrt(mean h^2 + eps) * rsqrt(mean key^2 + eps) / sqrt(D),
// gate = sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot)), h += gate * value; a dead row has gate 0.
// h (R, M, D) in place, kv (R, M + 1, D): keys of the copies, then the value. q_weight, k_weight (M, D) f32.
// gates (R, M) out or empty. The three sums run in the order of gpu/dot.h.
void engram_gate_host(tensor h, tensor kv, tensor q_weight, tensor k_weight, tensor dead, tensor gates, float eps);

} // namespace troupe
