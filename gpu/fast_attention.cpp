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

constexpr int tile = HWY_TARGET == HWY_AVX3 ? 4 : 2; // heads and keys of a tile of products

// dot[h * stride + j] = q_h . keys[j] of Heads x Keys, q (.., dim).
template <int Heads, int Keys>
HWY_INLINE void products(const float* q, const float* const* keys, int64_t dim, float* dot, int64_t stride) {
  lanes16 sum[Heads * Keys];
#pragma GCC unroll 16
  for (int i = 0; i < Heads * Keys; ++i) sum[i] = zero16();
  int64_t d = 0;
  for (; d + 16 <= dim; d += 16) {
    lanes16 key[Keys];
#pragma GCC unroll 4
    for (int j = 0; j < Keys; ++j) key[j] = load16(keys[j] + d);
#pragma GCC unroll 4
    for (int h = 0; h < Heads; ++h) {
      const lanes16 x = load16(q + h * dim + d);
#pragma GCC unroll 4
      for (int j = 0; j < Keys; ++j) fma16(x, key[j], sum[h * Keys + j]);
    }
  }
  if (d < dim) {
#pragma GCC unroll 16
    for (int i = 0; i < Heads * Keys; ++i)
      fma16(load16(q + i / Keys * dim + d, dim - d), load16(keys[i % Keys] + d, dim - d), sum[i]);
  }
  if constexpr (Heads * Keys % 4 == 0) {
    float four[4];
#pragma GCC unroll 4
    for (int i = 0; i < Heads * Keys; i += 4) {
      sum16_of_four(sum + i, four);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) dot[(i + j) / Keys * stride + (i + j) % Keys] = four[j];
    }
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < Heads * Keys; ++i) dot[i / Keys * stride + i % Keys] = sum16(sum[i]);
  }
}

template <int Heads>
HWY_INLINE void products_of(const float* q, const float* const* keys, int64_t n, int64_t dim, float* dot,
                            int64_t stride) {
  int64_t i = 0;
  for (; i + tile <= n; i += tile) products<Heads, tile>(q, keys + i, dim, dot + i, stride);
  for (; i < n; ++i) products<Heads, 1>(q, keys + i, dim, dot + i, stride);
}

// dot[h * stride + i] of all heads and n keys.
HWY_INLINE void all_products(const float* q, int64_t heads, const float* const* keys, int64_t n, int64_t dim,
                             float* dot, int64_t stride) {
  int64_t h = 0;
  for (; h + tile <= heads; h += tile) products_of<tile>(q + h * dim, keys, n, dim, dot + h * stride, stride);
  for (; h < heads; ++h) products_of<1>(q + h * dim, keys, n, dim, dot + h * stride, stride);
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

// Vectors x n_lanes channels of o_h = sum_i p_h[i] rows[i] / sum_h; o (Heads, dim), p (Heads, n).
template <int Heads, int Vectors>
HWY_INLINE void weighted_sum(float* o, const float* p, const float* const* rows, int64_t at, int64_t n, int64_t dim,
                             const float* sum) {
  const floats d;
  vec acc[Heads * Vectors];
#pragma GCC unroll 16
  for (int i = 0; i < Heads * Vectors; ++i) acc[i] = hn::Zero(d);
  for (int64_t i = 0; i < n; ++i) {
    const float* row = rows[i] + at;
    vec value[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) value[v] = hn::LoadU(d, row + v * n_lanes);
#pragma GCC unroll 2
    for (int h = 0; h < Heads; ++h) {
      const vec weight = hn::Set(d, p[h * n + i]);
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) acc[h * Vectors + v] = hn::MulAdd(weight, value[v], acc[h * Vectors + v]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < Heads * Vectors; ++i)
    hn::StoreU(hn::Div(acc[i], hn::Set(d, sum[i / Vectors])), d, o + i / Vectors * dim + at + i % Vectors * n_lanes);
}

template <int Heads>
HWY_INLINE void weighted_sums(float* o, const float* p, const float* const* rows, int64_t n, int64_t dim,
                              const float* sum) {
  constexpr int most = HWY_TARGET == HWY_AVX3 || Heads == 1 ? 8 : 4;
  int64_t at = 0;
  for (; at + most * n_lanes <= dim; at += most * n_lanes) weighted_sum<Heads, most>(o, p, rows, at, n, dim, sum);
  for (; at + 2 * n_lanes <= dim; at += 2 * n_lanes) weighted_sum<Heads, 2>(o, p, rows, at, n, dim, sum);
  for (; at + n_lanes <= dim; at += n_lanes) weighted_sum<Heads, 1>(o, p, rows, at, n, dim, sum);
  for (; at < dim; ++at)
    for (int h = 0; h < Heads; ++h) {
      float acc = 0;
      for (int64_t i = 0; i < n; ++i) acc = std::fma(p[h * n + i], rows[i][at], acc);
      o[h * dim + at] = acc / sum[h];
    }
}

void attend(float* o, const float* q, const float* const* keys, const float* const* values, int64_t n, int64_t heads,
            int64_t dim, float scale, const float* sinks, float* score) {
  const float* const* rows = values == nullptr ? keys : values;
  all_products(q, heads, keys, n, dim, score, n);
  for (int64_t h = 0; h < heads; h += 2) {
    const int64_t pair = std::min<int64_t>(2, heads - h);
    float sum[2];
    for (int64_t i = 0; i < pair; ++i) {
      const softmax_sums s = exponentials(score + (h + i) * n, n, scale);
      sum[i] = s.sum + (sinks == nullptr ? 0.0F : exp_f32(sinks[h + i] - s.top));
    }
    if (pair == 2)
      weighted_sums<2>(o + h * dim, score + h * n, rows, n, dim, sum);
    else
      weighted_sums<1>(o + h * dim, score + h * n, rows, n, dim, sum);
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
  constexpr int64_t block = 64; // keys at a time, for which the products of all heads of a tile are kept
  float dot[tile * block];
  for (int64_t first = 0; first < n; first += block) {
    const int64_t some = std::min(block, n - first);
    float* sum = score + first;
    std::fill_n(sum, some, 0.0F);
    for (int64_t h = 0; h < heads; h += tile) {
      const int64_t some_heads = std::min<int64_t>(tile, heads - h);
      all_products(q + h * dim, some_heads, keys + first, some, dim, dot, block);
      for (int64_t i = 0; i < some_heads; ++i) {
        const vec by = hn::Set(floats(), weight[h + i]);
        int64_t j = 0;
        for (; j + n_lanes <= some; j += n_lanes) {
          const vec positive = hn::LoadU(floats(), dot + i * block + j);
          const vec relu = hn::IfThenElse(hn::Lt(positive, hn::Zero(floats())), hn::Zero(floats()), positive);
          hn::StoreU(hn::MulAdd(by, relu, hn::LoadU(floats(), sum + j)), floats(), sum + j);
        }
        for (; j < some; ++j) sum[j] = std::fma(weight[h + i], std::max(dot[i * block + j], 0.0F), sum[j]);
      }
    }
    for (int64_t j = 0; j < some; ++j)
      if (std::isnan(sum[j])) sum[j] = -std::numeric_limits<float>::infinity();
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
