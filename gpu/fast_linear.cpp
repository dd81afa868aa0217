// Decode reads every weight once, so bytes bound it: weights that are exact in bf16 are kept so, and one row runs over
// four panels at once, which gives eight independent sums to hide the latency of a fused step. Prefill is bound by
// fused steps: blocks of rows x one panel in registers, 8 x 32 (AVX-512) or 3 x 32 (AVX2).
#include "gpu/fast_linear.h"

#include <algorithm>
#include <cstring>

#include "gpu/vector_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/fast_linear.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace troupe::HWY_NAMESPACE {
#if TROUPE_VECTOR_TARGET

namespace hn = hwy::HWY_NAMESPACE;

using floats = HWY_FULL(float);
constexpr int n_lanes = HWY_TARGET == HWY_AVX3 ? 16 : 8;
constexpr int n_vectors = static_cast<int>(panel_columns) / n_lanes; // of a panel
using vec = hn::Vec<floats>;

// One row of a panel as f32 vectors: columns 0 .. n_lanes - 1, and so on.
HWY_INLINE void load_row(const float* w, vec* column) {
#pragma GCC unroll 4
  for (int v = 0; v < n_vectors; ++v) column[v] = hn::LoadU(floats(), w + v * n_lanes);
}
HWY_INLINE void load_row(const uint32_t* w, vec* column) {
  const hn::Repartition<uint32_t, floats> words;
#pragma GCC unroll 4
  for (int v = 0; v < n_vectors / 2; ++v) {
    const auto both = hn::LoadU(words, w + v * n_lanes);
    column[v] = hn::BitCast(floats(), hn::And(both, hn::Set(words, 0xFFFF0000)));
    column[v + n_vectors / 2] = hn::BitCast(floats(), hn::ShiftLeft<16>(both));
  }
}
constexpr int64_t row_elements(const float*) { return panel_columns; }
constexpr int64_t row_elements(const uint32_t*) { return bf16_words; }

struct block {
  float* y;
  const float* x;
  int64_t y_stride, x_stride;
  int64_t n_k;        // of this block of k
  int64_t panel_step; // elements from one panel of weights to the next
  bool first;         // the first block of k starts the sum, the others add to it
};

HWY_INLINE void put(vec sum, bool first, float* y) {
  hn::StoreU(first ? sum : hn::Add(hn::LoadU(floats(), y), sum), floats(), y);
}

// Rows x Panels of one block of k.
template <int Rows, int Panels, class Weight> HWY_INLINE void multiply(const block& b, const Weight* w) {
  constexpr int width = Panels * n_vectors;
  vec acc[Rows][width];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < width; ++v) acc[r][v] = hn::Zero(floats());
  for (int64_t k = 0; k < b.n_k; ++k) {
    vec column[width];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) load_row(w + p * b.panel_step + k * row_elements(w), column + p * n_vectors);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const vec x = hn::Set(floats(), b.x[r * b.x_stride + k]);
#pragma GCC unroll 16
      for (int v = 0; v < width; ++v) acc[r][v] = hn::MulAdd(x, column[v], acc[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < width; ++v) put(acc[r][v], b.first, b.y + r * b.y_stride + v * n_lanes);
}

// One row, one panel, Blocks whole blocks of k side by side: a long and narrow matrix has no other independent sums.
template <int Blocks, class Weight> HWY_INLINE void multiply_deep(const block& b, const Weight* w) {
  vec acc[Blocks][n_vectors];
#pragma GCC unroll 16
  for (int i = 0; i < Blocks; ++i)
#pragma GCC unroll 16
    for (int v = 0; v < n_vectors; ++v) acc[i][v] = hn::Zero(floats());
  for (int64_t k = 0; k < k_block; ++k) {
#pragma GCC unroll 16
    for (int i = 0; i < Blocks; ++i) {
      vec column[n_vectors];
      load_row(w + (i * k_block + k) * row_elements(w), column);
      const vec x = hn::Set(floats(), b.x[i * k_block + k]);
#pragma GCC unroll 16
      for (int v = 0; v < n_vectors; ++v) acc[i][v] = hn::MulAdd(x, column[v], acc[i][v]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < Blocks; ++i)
#pragma GCC unroll 16
    for (int v = 0; v < n_vectors; ++v) put(acc[i][v], b.first && i == 0, b.y + v * n_lanes);
}

// As many rows as fit, Rows at a time.
template <int Rows, int Panels, class Weight> HWY_INLINE void rows_of(block& b, int64_t& n_rows, const Weight* w) {
  for (; n_rows >= Rows; n_rows -= Rows) {
    multiply<Rows, Panels>(b, w);
    b.y += Rows * b.y_stride;
    b.x += Rows * b.x_stride;
  }
}

template <int Panels, class Weight> void multiply_rows(block b, int64_t n_rows, const Weight* w) {
  if constexpr (n_lanes == 16) {
    if constexpr (Panels == 1) {
      rows_of<8, 1>(b, n_rows, w);
      rows_of<6, 1>(b, n_rows, w);
      rows_of<5, 1>(b, n_rows, w);
    }
    if constexpr (Panels <= 2) {
      rows_of<4, Panels>(b, n_rows, w);
      rows_of<3, Panels>(b, n_rows, w);
    }
  } else if constexpr (Panels == 1 && row_elements(static_cast<const Weight*>(nullptr)) == panel_columns) {
    rows_of<3, 1>(b, n_rows, w); // with bf16 weights the registers that widen them leave room for two rows
  }
  if constexpr (Panels * n_lanes <= 32) rows_of<2, Panels>(b, n_rows, w);
  rows_of<1, Panels>(b, n_rows, w);
}

// Panels p .. p + n - 1 (n = 1, 2, 4), all rows, all blocks of k.
template <class Weight>
void multiply_panels(const host_matrix& m, const Weight* weights, int64_t p, int64_t n, block b, int64_t n_rows) {
  constexpr int deep = n_lanes == 16 ? 4 : 2;
  b.panel_step = m.in * row_elements(weights);
  weights += p * b.panel_step;
  const float* x = b.x;
  for (int64_t k = 0; k < m.in;) {
    b.x = x + k;
    b.n_k = std::min(k_block, m.in - k);
    b.first = k == 0;
    const Weight* w = weights + k * row_elements(weights);
    if (n_rows == 1 && n == 1 && k + deep * k_block <= m.in) {
      multiply_deep<deep>(b, w);
      k += deep * k_block;
      continue;
    }
    if (n == 4)
      multiply_rows<4>(b, n_rows, w);
    else if (n == 2)
      multiply_rows<2>(b, n_rows, w);
    else
      multiply_rows<1>(b, n_rows, w);
    k += k_block;
  }
}

// The last panel of a matrix whose outputs are no whole number of panels: through a tile, so that nothing behind a row
// of y is touched.
template <class Weight>
void multiply_part(const host_matrix& m, const Weight* weights, int64_t p, block b, int64_t n_rows) {
  constexpr int64_t tile_rows = 24;
  const auto n_columns = static_cast<size_t>(m.out - p * panel_columns);
  HWY_ALIGN float tile[tile_rows * panel_columns];
  for (int64_t r = 0; r < n_rows; r += tile_rows) {
    const int64_t n = std::min(tile_rows, n_rows - r);
    multiply_panels(m, weights, p, 1, {tile, b.x + r * b.x_stride, panel_columns, b.x_stride, 0, 0, true}, n);
    for (int64_t i = 0; i < n; ++i)
      std::memcpy(b.y + (r + i) * b.y_stride, tile + i * panel_columns, n_columns * sizeof(float));
  }
}

template <class Weight>
void multiply_range(const host_matrix& m, const Weight* weights, int64_t first, int64_t last, block b, int64_t n_rows) {
  // Panels that one pass covers: enough sums in flight for few rows, one panel for many.
  const int64_t widest = n_rows == 1 ? (n_lanes == 16 ? 4 : 2) : n_rows <= 4 && n_lanes == 16 ? 2 : 1;
  const int64_t whole = m.out / panel_columns;
  float* y = b.y;
  for (int64_t p = first; p < last;) {
    int64_t n = widest;
    while (n > 1 && p + n > std::min(last, whole)) n /= 2;
    b.y = y + p * panel_columns;
    if (p == whole)
      multiply_part(m, weights, p, b, n_rows);
    else
      multiply_panels(m, weights, p, n, b, n_rows);
    p += n;
  }
}

void linear_panels(const host_matrix& m, int64_t first, int64_t last, float* y, int64_t y_stride, const float* x,
                   int64_t x_stride, int64_t n_rows) {
  const block b = {y, x, y_stride, x_stride, 0, 0, true};
  if (m.is_bf16())
    multiply_range(m, m.bf16_panels(), first, last, b, n_rows);
  else
    multiply_range(m, m.f32_panels(), first, last, b, n_rows);
  if (m.bias() == nullptr) return;
  const int64_t end = std::min(last * panel_columns, m.out);
  for (int64_t r = 0; r < n_rows; ++r)
    for (int64_t n = first * panel_columns; n < end; ++n) y[r * y_stride + n] += m.bias()[n];
}

#endif
} // namespace troupe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace troupe {
namespace {

void scalar_panels(const host_matrix& m, int64_t first, int64_t last, float* y, int64_t y_stride, const float* x,
                   int64_t x_stride, int64_t n_rows) {
  for (int64_t r = 0; r < n_rows; ++r)
    for (int64_t n = first * panel_columns; n < std::min(last * panel_columns, m.out); ++n)
      y[r * y_stride + n] = linear_element(x + r * x_stride, m, n);
}

} // namespace

void linear_panels(vector_level level, const host_matrix& m, int64_t first, int64_t last, float* y, int64_t y_stride,
                   const float* x, int64_t x_stride, int64_t n_rows) {
  switch (level) {
#if HWY_TARGETS & HWY_AVX2
  case vector_level::avx2: return N_AVX2::linear_panels(m, first, last, y, y_stride, x, x_stride, n_rows);
#endif
#if HWY_TARGETS & HWY_AVX3
  case vector_level::avx512: return N_AVX3::linear_panels(m, first, last, y, y_stride, x, x_stride, n_rows);
#endif
  default: return scalar_panels(m, first, last, y, y_stride, x, x_stride, n_rows);
  }
}

} // namespace troupe
#endif
