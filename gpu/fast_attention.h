// Vector forms of attention, rotation, index scores and pair compression, one row or head at a time. They give the bits
// of the twins in gpu/attention.h, gpu/topk.h and gpu/vision_ops.h.
#pragma once

#include "gpu/vector_level.h"

#include <cstdint>

namespace troupe {

struct attention_kernels {
  // Heads over the same n >= 1 keys: o (heads, dim) = softmax of q k * scale and of sinks (heads), which have no value,
  // times the keys, or `values` where given. sinks nullptr: none. score (heads, n) is scratch.
  void (*attend)(float* o, const float* q, const float* const* keys, const float* const* values, int64_t n,
                 int64_t heads, int64_t dim, float scale, const float* sinks, float* score);
  // x (heads, dim): the last n elements of a head as pairs; cosine and sine (n), each value twice, the sine of the even
  // element negated.
  void (*rotate)(float* x, const float* cosine, const float* sine, int64_t n, int64_t heads, int64_t dim);
  // score[i] = sum_n weight[n] * relu(q_n . keys[i]), q (heads, dim); not a number: minus infinity.
  void (*index_scores)(float* score, const float* q, const float* weight, int64_t heads, int64_t dim,
                       const float* const* keys, int64_t n);
  // c = softmax-gated mean of two rows, per channel.
  void (*compress_pair)(float* c, const float* u0, const float* g0, const float* u1, const float* g1, int64_t dim);
};

// Any level of supported_vector_levels(); nullptr for scalar, where the twins serve.
const attention_kernels* attention_kernels_of(vector_level level);

} // namespace troupe
