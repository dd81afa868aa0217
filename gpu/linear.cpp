// The twin: plain loops over panels.
#include "gpu/linear.h"

#include "gpu/dequantise.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace troupe {

host_matrix::host_matrix(const stored_matrix& m, memory_account& account) {
  const std::vector<float> w = dequantise(m);
  out = m.out;
  in = m.in;
  is_bf16_ = std::all_of(w.begin(), w.end(), [](float v) { return (std::bit_cast<uint32_t>(v) & 0xFFFF) == 0; });
  const int64_t element_bytes = is_bf16_ ? 2 : 4;
  memory_ = host_memory(account, n_panels() * in * panel_columns * element_bytes, m.name);
  size_bytes = memory_.size_bytes();
  auto* words = reinterpret_cast<uint32_t*>(memory_.data());
  auto* floats = reinterpret_cast<float*>(memory_.data());
  for (int64_t n = 0; n < out; ++n)
    for (int64_t k = 0; k < in; ++k) {
      const int64_t row = n / panel_columns * in + k, column = n % panel_columns;
      const uint32_t bits = std::bit_cast<uint32_t>(w[n * in + k]);
      if (!is_bf16_)
        floats[row * panel_columns + column] = w[n * in + k];
      else
        words[row * bf16_words + column % bf16_words] |= column < bf16_words ? bits : bits >> 16;
    }
  if (m.bias) bias_.assign(m.bias.f32(), m.bias.f32() + out);
}

const host_matrix& as_host(const matrix& m) { return static_cast<const host_matrix&>(m); }

float linear_element(const float* x, const host_matrix& m, int64_t n) {
  float sum = 0;
  for (int64_t first = 0; first < m.in; first += k_block) {
    float acc = 0;
    const int64_t end = std::min(first + k_block, m.in);
    for (int64_t k = first; k < end; ++k) acc = std::fma(x[k], m.weight(n, k), acc);
    sum = first == 0 ? acc : sum + acc;
  }
  return m.bias() == nullptr ? sum : sum + m.bias()[n];
}

void linear_row(float* y, const float* x, const host_matrix& m) {
  for (int64_t n = 0; n < m.out; ++n) y[n] = linear_element(x, m, n);
}

void linear_host(tensor y, tensor x, const matrix& any) {
  const host_matrix& m = as_host(any);
  TROUPE_CHECK(x.n_elements() / m.in == y.n_elements() / m.out && x.n_elements() % m.in == 0 &&
                   y.n_elements() % m.out == 0,
               "a linear's input and output have as many rows");
  const int64_t n_rows = x.n_elements() / m.in;
  for (int64_t r = 0; r < n_rows; ++r) linear_row(y.f32() + r * m.out, x.f32() + r * m.in, m);
}

void linear_grouped_host(tensor y, tensor x, std::span<const matrix* const> groups) {
  const auto n_groups = static_cast<int64_t>(groups.size());
  TROUPE_CHECK(n_groups > 0 && x.n_elements() % (n_groups * groups[0]->in) == 0, "x holds one part for every group");
  const int64_t n_rows = x.n_elements() / (n_groups * groups[0]->in);
  TROUPE_CHECK(y.n_elements() == n_rows * n_groups * groups[0]->out, "y holds one part for every group");
  for (int64_t r = 0; r < n_rows; ++r)
    for (int64_t g = 0; g < n_groups; ++g) {
      const host_matrix& m = as_host(*groups[static_cast<size_t>(g)]);
      linear_row(y.f32() + (r * n_groups + g) * m.out, x.f32() + (r * n_groups + g) * m.in, m);
    }
}

} // namespace troupe
