// Vector forms of what works on one row at a time, as a table of functions for each vector level. They give the
// bits of the twins.
#pragma once

#include "gpu/backend.h"
#include "gpu/vector_level.h"

namespace troupe {

struct row_kernels {
  void (*gate_activation)(float* g, const float* u, int64_t n, float weight, float limit); // gpu/moe.h
  void (*silu_mul)(float* y, const float* g, const float* u, int64_t n);                   // gpu/vision_ops.h
  void (*add)(float* y, const float* x, int64_t n);
  void (*scale)(float* x, float by, int64_t n);
  float (*dot)(const float* a, const float* b, int64_t n);                               // gpu/dot.h
  void (*rms_norm)(float* y, const float* x, const float* weight, int64_t n, float eps); // gpu/norm.h
  // gpu/mix.h, one row: h (m, dim), pre and post (m), comb (m, m)
  void (*fold)(float* x, const float* h, const float* pre, int64_t m, int64_t dim);
  void (*expand)(float* h, const float* y, const float* post, const float* comb, int64_t m, int64_t dim);
  void (*mean_copies)(float* y, const float* h, int64_t m, int64_t dim);
  // Rows [first, first + n): z (rows, (2 + m) m) holds fn v and is scaled here by 1 / rms of the row of h.
  void (*mix_rows)(const mix_args& a, float* z, int64_t first, int64_t n);
  void (*quantise)(float* x, int64_t n, quantiser how); // gpu/formats.h; n a whole number of groups
  // gpu/engram_rows.h, one live row: h (m, dim), kv (m + 1, dim), gates (m) or nullptr
  void (*engram_gate)(float* h, const float* kv, const float* q_weight, const float* k_weight, float* gates, int64_t m,
                      int64_t dim, float eps);
};

// Any level of supported_vector_levels(); nullptr for scalar, where the twins serve.
const row_kernels* row_kernels_of(vector_level level);

} // namespace troupe
