// Any stored linear -> its weight as f32 (out, in), exactly.                 Spec: model-tensors.md 1, exl3.md 3
// and 6.4
#pragma once

#include "gpu/backend.h"

#include <vector>

namespace troupe {

// Throws std::runtime_error naming m.name, the tensor, expected and found, when shapes and types do not fit together or
// the bias is not (out) f32. Returns m with the stored widths: EXL3 may be padded to whole Hadamard blocks (exl3.md 7).
stored_matrix check_stored(const stored_matrix& m);

// Row-major (out, in). fp8, fp4, bf16 and f16 values are exact in f32; EXL3 is decoded in f64 and rounded once.
// Throws as check_stored does.
std::vector<float> dequantise(const stored_matrix& m);

} // namespace troupe
