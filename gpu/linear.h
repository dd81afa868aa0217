// y[r, n] = sum_k x[r, k] W[n, k] + bias[n]: the linear of the host backend, its weights as panels of f32 columns.
//
// The sum is defined, so that an element has the same bits whatever the number of rows, the blocking, the vector width
// or the threads: k runs in blocks of 256; in a block acc = fma(x[k], W[n, k], acc) for k ascending from acc = 0; the
// blocks are added in order; then the bias. The vector forms equal the twin bit for bit.
#pragma once

#include "gpu/backend.h"
#include "gpu/host_memory.h"

#include <vector>

namespace troupe {

constexpr int64_t panel_columns = 32; // outputs of a panel, side by side: two AVX-512 or four AVX2 registers
constexpr int64_t k_block = 256;

// Panels (ceil(out / 32), in, 32) f32; outputs past `out` are zero columns. Owns its memory.
class host_matrix final : public matrix {
public:
  host_matrix(const stored_matrix& m, memory_account& account);

  const float* panel(int64_t p) const {
    return reinterpret_cast<const float*>(memory_.data()) + p * in * panel_columns;
  }
  int64_t n_panels() const { return (out + panel_columns - 1) / panel_columns; }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); } // (out) or nullptr

private:
  host_memory memory_;
  std::vector<float> bias_;
};

// Precondition: `m` was made by a host backend.
const host_matrix& as_host(const matrix& m);

// The twin. x (.., in), y (.., out) f32 of as many rows; y is not x | rows == 0 is a no-op | no allocation.
void linear_host(tensor y, tensor x, const matrix& m);
// y (R, G, out), x (R, G, in): group g with its own matrix; all G matrices of one shape.
void linear_grouped_host(tensor y, tensor x, std::span<const matrix* const> groups);

// One row of raw memory with strides: what both of them and the experts are made of.
void linear_row(float* y, const float* x, const host_matrix& m);

} // namespace troupe
