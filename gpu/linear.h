// y[r, n] = sum_k x[r, k] W[n, k] + bias[n]: the linear of the host backend, its weights as panels of f32 columns.
//
// The sum is defined, so that an element has the same bits whatever the number of rows, the blocking, the vector width
// or the threads: k runs in blocks of 256; in a block acc = fma(x[k], W[n, k], acc) for k ascending from acc = 0; the
// blocks are added in order; then the bias. The vector forms equal the twin bit for bit.
#pragma once

#include "gpu/backend.h"
#include "gpu/host_memory.h"

#include <bit>
#include <vector>

namespace troupe {

constexpr int64_t panel_columns = 32; // outputs of a panel, side by side: two AVX-512 or four AVX2 registers
constexpr int64_t bf16_words = panel_columns / 2; // of a row of a panel in bf16
constexpr int64_t k_block = 256;

// Panels (ceil(out / 32), in, 32), outputs past `out` are zero columns. When bf16 holds every weight exactly, as it
// does for fp8, fp4 and bf16 sources, the panels are bf16: a linear of few rows is bound by the bytes it reads. There a
// row of a panel is 16 words, word c = column c in its upper half and column c + 16 in its lower half, which two cheap
// steps turn into two f32 vectors. Owns its memory.
class host_matrix final : public matrix {
public:
  host_matrix(const stored_matrix& m, memory_account& account);

  int64_t n_panels() const { return (out + panel_columns - 1) / panel_columns; }
  bool is_bf16() const { return is_bf16_; }
  const float* f32_panels() const { return reinterpret_cast<const float*>(memory_.data()); }
  const uint32_t* bf16_panels() const { return reinterpret_cast<const uint32_t*>(memory_.data()); }
  float weight(int64_t n, int64_t k) const {
    const int64_t row = n / panel_columns * in + k, column = n % panel_columns;
    if (!is_bf16_) return f32_panels()[row * panel_columns + column];
    const uint32_t word = bf16_panels()[row * bf16_words + column % bf16_words];
    return std::bit_cast<float>(column < bf16_words ? word & 0xFFFF0000 : word << 16);
  }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); } // (out) or nullptr

private:
  host_memory memory_;
  std::vector<float> bias_;
  bool is_bf16_ = false;
};

// Precondition: `m` was made by a host backend.
const host_matrix& as_host(const matrix& m);

// The twin. x (.., in), y (.., out) f32 of as many rows; y is not x | rows == 0 is a no-op | no allocation.
void linear_host(tensor y, tensor x, const matrix& m);
// y (R, G, out), x (R, G, in): group g with its own matrix; all G matrices of one shape.
void linear_grouped_host(tensor y, tensor x, std::span<const matrix* const> groups);

// One element and one row of the twin. x (in), y (out).
float linear_element(const float* x, const host_matrix& m, int64_t n);
void linear_row(float* y, const float* x, const host_matrix& m);

} // namespace troupe
