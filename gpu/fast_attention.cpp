// A head's keys stay in the second-level cache between the two passes, so fused steps bound it: products of four keys
// run side by side, and the weighted sum keeps eight vectors of the output in registers.
#include "gpu/fast_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu/vector_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/fast_attention.cpp"

#include <hwy/foreach_target.h>

#include <hwy/highway.h>

#include "gpu/dot-inl.h"
#include "gpu/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace troupe::HWY_NAMESPACE {
#if TROUPE_VECTOR_TARGET

namespace hn = hwy::HWY_NAMESPACE;
using floats = HWY_FULL(float);
using vec = hn::Vec<floats>;
constexpr int64_t n_lanes = HWY_TARGET == HWY_AVX3 ? 16 : 8;

// dot[j] = q . keys[j].
template <int Keys> HWY_INLINE void dots(const float* q, const float* const* keys, int64_t dim, float* dot) {
  lanes16 sum[Keys];
#pragma GCC unroll 4
  for (int j = 0; j < Keys; ++j) sum[j] = zero16();
  int64_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    const lanes16 x = load16(q + i);
#pragma GCC unroll 4
    for (int j = 0; j < Keys; ++j) fma16(x, load16(keys[j] + i), sum[j]);
  }
  if (i < dim) {
    const lanes16 x = load16(q + i, dim - i);
#pragma GCC unroll 4
    for (int j = 0; j < Keys; ++j) fma16(x, load16(keys[j] + i, dim - i), sum[j]);
  }
  if constexpr (Keys == 4)
    sum16_of_four(sum, dot);
  else
#pragma GCC unroll 4
    for (int j = 0; j < Keys; ++j) dot[j] = sum16(sum[j]);
}

HWY_INLINE void all_dots(const float* q, const float* const* keys, int64_t n, int64_t dim, float* dot) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) dots<4>(q, keys + i, dim, dot + i);
  for (; i < n; ++i) dots<1>(q, keys + i, dim, dot + i);
}

// score[i] = e^(score[i] * scale - top); returns their sum and the top.
struct softmax_sums {
  float sum, top;
};
HWY_INLINE softmax_sums exponentials(float* score, int64_t n, float scale) {
  const floats d;
  vec most = hn::Set(d, -std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + n_lanes <= n; i += n_lanes) {
    const vec s = hn::Mul(hn::LoadU(d, score + i), hn::Set(d, scale));
    hn::StoreU(s, d, score + i);
    most = hn::Max(most, s);
  }
  float top = hn::GetLane(hn::MaxOfLanes(d, most));
  for (; i < n; ++i) {
    score[i] *= scale;
    top = std::max(top, score[i]);
  }
  const vec low = hn::Set(d, top);
  for (i = 0; i + n_lanes <= n; i += n_lanes)
    hn::StoreU(exp_vector(d, hn::Sub(hn::LoadU(d, score + i), low)), d, score + i);
  for (; i < n; ++i) score[i] = exp_f32(score[i] - top);
  lanes16 sum = zero16();
  for (i = 0; i + 16 <= n; i += 16) add16(load16(score + i), sum);
  if (i < n) add16(load16(score + i, n - i), sum);
  return {sum16(sum), top};
}

// Vectors x n_lanes channels of o = sum_i p[i] rows[i] / sum.
template <int Vectors>
HWY_INLINE void weighted_sum(float* o, const float* p, const float* const* rows, int64_t at, int64_t n, float sum) {
  const floats d;
  vec acc[Vectors];
#pragma GCC unroll 8
  for (int v = 0; v < Vectors; ++v) acc[v] = hn::Zero(d);
  for (int64_t i = 0; i < n; ++i) {
    const vec weight = hn::Set(d, p[i]);
    const float* row = rows[i] + at;
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) acc[v] = hn::MulAdd(weight, hn::LoadU(d, row + v * n_lanes), acc[v]);
  }
#pragma GCC unroll 8
  for (int v = 0; v < Vectors; ++v) hn::StoreU(hn::Div(acc[v], hn::Set(d, sum)), d, o + at + v * n_lanes);
}

void attend(float* o, const float* q, const float* const* keys, const float* const* values, int64_t n, int64_t dim,
            float scale, float sink, float* score) {
  all_dots(q, keys, n, dim, score);
  const softmax_sums s = exponentials(score, n, scale);
  const float sum = s.sum + exp_f32(sink - s.top);
  const float* const* rows = values == nullptr ? keys : values;
  int64_t at = 0;
  for (; at + 8 * n_lanes <= dim; at += 8 * n_lanes) weighted_sum<8>(o, score, rows, at, n, sum);
  for (; at + 2 * n_lanes <= dim; at += 2 * n_lanes) weighted_sum<2>(o, score, rows, at, n, sum);
  for (; at + n_lanes <= dim; at += n_lanes) weighted_sum<1>(o, score, rows, at, n, sum);
  for (; at < dim; ++at) {
    float acc = 0;
    for (int64_t i = 0; i < n; ++i) acc = std::fma(score[i], rows[i][at], acc);
    o[at] = acc / sum;
  }
}

void rotate(float* x, const float* cosine, const float* sine, int64_t n, int64_t heads, int64_t dim) {
  const floats d;
  for (int64_t h = 0; h < heads; ++h) {
    float* v = x + h * dim + dim - n;
    int64_t i = 0;
    for (; i + n_lanes <= n; i += n_lanes) {
      const vec pair = hn::LoadU(d, v + i);
      const vec turned = hn::Mul(hn::Shuffle2301(pair), hn::LoadU(d, sine + i));
      hn::StoreU(hn::Add(hn::Mul(pair, hn::LoadU(d, cosine + i)), turned), d, v + i);
    }
    for (; i < n; i += 2) {
      const float re = v[i], im = v[i + 1];
      v[i] = re * cosine[i] + im * sine[i];
      v[i + 1] = im * cosine[i + 1] + re * sine[i + 1];
    }
  }
}

void index_scores(float* score, const float* q, const float* weight, int64_t heads, int64_t dim,
                  const float* const* keys, int64_t n) {
  for (int64_t i = 0; i < n; i += 4) {
    const int64_t some = std::min<int64_t>(4, n - i);
    float sum[4] = {}, dot[4];
    for (int64_t h = 0; h < heads; ++h) {
      all_dots(q + h * dim, keys + i, some, dim, dot);
      for (int64_t j = 0; j < some; ++j) sum[j] = std::fma(weight[h], std::max(dot[j], 0.0F), sum[j]);
    }
    for (int64_t j = 0; j < some; ++j)
      score[i + j] = std::isnan(sum[j]) ? -std::numeric_limits<float>::infinity() : sum[j];
  }
}

template <class D>
HWY_INLINE void compress_at(D d, float* c, const float* u0, const float* g0, const float* u1, const float* g1) {
  const auto a = hn::LoadU(d, g0), b = hn::LoadU(d, g1);
  const auto top = hn::IfThenElse(hn::Lt(a, b), b, a);
  const auto e0 = exp_vector(d, hn::Sub(a, top)), e1 = exp_vector(d, hn::Sub(b, top));
  const auto sum = hn::Add(hn::Mul(e0, hn::LoadU(d, u0)), hn::Mul(e1, hn::LoadU(d, u1)));
  hn::StoreU(hn::Div(sum, hn::Add(e0, e1)), d, c);
}

void compress_pair(float* c, const float* u0, const float* g0, const float* u1, const float* g1, int64_t dim) {
  int64_t i = 0;
  for (; i + n_lanes <= dim; i += n_lanes) compress_at(floats(), c + i, u0 + i, g0 + i, u1 + i, g1 + i);
  for (; i < dim; ++i) compress_at(hn::CappedTag<float, 1>(), c + i, u0 + i, g0 + i, u1 + i, g1 + i);
}

const attention_kernels kernels = {attend, rotate, index_scores, compress_pair};

#endif
} // namespace troupe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace troupe {

const attention_kernels* attention_kernels_of(vector_level level) {
  switch (level) {
#if HWY_TARGETS & HWY_AVX2
  case vector_level::avx2: return &N_AVX2::kernels;
#endif
#if HWY_TARGETS & HWY_AVX3
  case vector_level::avx512: return &N_AVX3::kernels;
#endif
  default: return nullptr;
  }
}

} // namespace troupe
#endif
