// Elementwise work and short sums: bound by the latency of a few operations a row, so plain vector loops do. The
// Sinkhorn steps of mix are long chains of divisions, so there a lane is a row.
#include "gpu/fast_rows.h"

#include <algorithm>
#include <cmath>

#include "gpu/vector_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/fast_rows.cpp"

#include <hwy/foreach_target.h>

#include <hwy/highway.h>

#include "gpu/dot-inl.h"
#include "gpu/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace troupe::HWY_NAMESPACE {
#if TROUPE_VECTOR_TARGET

namespace hn = hwy::HWY_NAMESPACE;
using floats = HWY_FULL(float);
using words = hn::RebindToUnsigned<floats>;
using vec = hn::Vec<floats>;
constexpr int64_t n_lanes = HWY_TARGET == HWY_AVX3 ? 16 : 8;
constexpr int64_t max_copies = 8;

// Calls step(d, i) for whole vectors, then for single lanes: the operations of an element are the same in both.
template <class Step> HWY_INLINE void each(int64_t n, Step step) {
  int64_t i = 0;
  for (; i + n_lanes <= n; i += n_lanes) step(floats(), i);
  for (; i < n; ++i) step(hn::CappedTag<float, 1>(), i);
}

template <class D> HWY_INLINE hn::Vec<D> silu(D d, hn::Vec<D> x) {
  return hn::Div(x, hn::Add(hn::Set(d, 1.0F), exp_vector(d, hn::Neg(x))));
}

void gate_activation(float* g, const float* u, int64_t n, float weight, float limit) {
  each(n, [=](auto d, int64_t i) {
    auto a = hn::LoadU(d, g + i), b = hn::LoadU(d, u + i);
    if (limit > 0) {
      const auto high = hn::Set(d, limit), low = hn::Set(d, -limit);
      a = hn::IfThenElse(hn::Lt(high, a), high, a);
      b = hn::IfThenElse(hn::Lt(b, low), low, hn::IfThenElse(hn::Lt(high, b), high, b));
    }
    hn::StoreU(hn::Mul(hn::Mul(silu(d, a), b), hn::Set(d, weight)), d, g + i);
  });
}

void silu_mul(float* y, const float* g, const float* u, int64_t n) {
  each(n, [=](auto d, int64_t i) { hn::StoreU(hn::Mul(silu(d, hn::LoadU(d, g + i)), hn::LoadU(d, u + i)), d, y + i); });
}

void add(float* y, const float* x, int64_t n) {
  each(n, [=](auto d, int64_t i) { hn::StoreU(hn::Add(hn::LoadU(d, y + i), hn::LoadU(d, x + i)), d, y + i); });
}

void scale(float* x, float by, int64_t n) {
  each(n, [=](auto d, int64_t i) { hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, by)), d, x + i); });
}

void rms_norm(float* y, const float* x, const float* weight, int64_t n, float eps) {
  const float by = 1.0F / std::sqrt(dot16(x, x, n) / static_cast<float>(n) + eps);
  each(n, [=](auto d, int64_t i) {
    hn::StoreU(hn::Mul(hn::LoadU(d, weight + i), hn::Mul(hn::LoadU(d, x + i), hn::Set(d, by))), d, y + i);
  });
}

void fold(float* x, const float* h, const float* pre, int64_t m, int64_t dim) {
  each(dim, [=](auto d, int64_t i) {
    auto sum = hn::Mul(hn::Set(d, pre[0]), hn::LoadU(d, h + i));
    for (int64_t k = 1; k < m; ++k) sum = hn::MulAdd(hn::Set(d, pre[k]), hn::LoadU(d, h + k * dim + i), sum);
    hn::StoreU(sum, d, x + i);
  });
}

void expand(float* h, const float* y, const float* post, const float* comb, int64_t m, int64_t dim) {
  each(dim, [=](auto d, int64_t i) {
    hn::Vec<decltype(d)> old[max_copies];
    for (int64_t j = 0; j < m; ++j) old[j] = hn::LoadU(d, h + j * dim + i);
    const auto in = hn::LoadU(d, y + i);
    for (int64_t k = 0; k < m; ++k) {
      auto sum = hn::Mul(hn::Set(d, post[k]), in);
      for (int64_t j = 0; j < m; ++j) sum = hn::MulAdd(hn::Set(d, comb[j * m + k]), old[j], sum);
      hn::StoreU(sum, d, h + k * dim + i);
    }
  });
}

void mean_copies(float* y, const float* h, int64_t m, int64_t dim) {
  each(dim, [=](auto d, int64_t i) {
    auto sum = hn::Zero(d);
    for (int64_t k = 0; k < m; ++k) sum = hn::Add(sum, hn::LoadU(d, h + k * dim + i));
    hn::StoreU(hn::Div(sum, hn::Set(d, static_cast<float>(m))), d, y + i);
  });
}

HWY_INLINE vec sigmoid(vec x) {
  const floats d;
  const vec one = hn::Set(d, 1.0F);
  return hn::Div(one, hn::Add(one, exp_vector(d, hn::Neg(x))));
}

// Divides each of `n` groups of `of` values by its sum plus eps: value i of group g is c[g * group + i * step].
HWY_INLINE void normalise(vec* c, int64_t n, int64_t of, int64_t group, int64_t step, float eps) {
  for (int64_t g = 0; g < n; ++g) {
    vec sum = hn::Zero(floats());
    for (int64_t i = 0; i < of; ++i) sum = hn::Add(sum, c[g * group + i * step]);
    sum = hn::Add(sum, hn::Set(floats(), eps));
    for (int64_t i = 0; i < of; ++i) c[g * group + i * step] = hn::Div(c[g * group + i * step], sum);
  }
}

void sinkhorn(vec* c, int64_t m, int iterations, float eps) {
  const floats d;
  for (int64_t j = 0; j < m; ++j) {
    vec* row = c + j * m;
    vec top = row[0], sum = hn::Zero(d);
    for (int64_t k = 1; k < m; ++k) top = hn::IfThenElse(hn::Lt(top, row[k]), row[k], top);
    for (int64_t k = 0; k < m; ++k) {
      row[k] = exp_vector(d, hn::Sub(row[k], top));
      sum = hn::Add(sum, row[k]);
    }
    for (int64_t k = 0; k < m; ++k) row[k] = hn::Add(hn::Div(row[k], sum), hn::Set(d, eps));
  }
  normalise(c, m, m, 1, m, eps);
  for (int i = 1; i < iterations; ++i) {
    normalise(c, m, m, m, 1, eps);
    normalise(c, m, m, 1, m, eps);
  }
}

// One lane a row; lanes past the last row repeat it.
void mix_lanes(const mix_args& a, const float* z, int64_t first, int64_t n) {
  const floats d;
  const int64_t m = a.pre.shape[1], n_out = (2 + m) * m, width = a.h.row_elements();
  HWY_ALIGN float by[n_lanes], lane[n_lanes];
  for (int64_t l = 0; l < n_lanes; ++l) {
    const float* v = a.h.f32() + (first + std::min(l, n - 1)) * width;
    by[l] = l < n ? 1.0F / std::sqrt(dot16(v, v, width) / static_cast<float>(width) + a.eps) : by[n - 1];
  }
  vec c[(2 + max_copies) * max_copies];
  for (int64_t i = 0; i < n_out; ++i) {
    for (int64_t l = 0; l < n_lanes; ++l) lane[l] = z[(first + std::min(l, n - 1)) * n_out + i];
    const int64_t part = i < m ? 0 : i < 2 * m ? 1 : 2;
    const vec scaled = hn::Mul(hn::Load(d, lane), hn::Load(d, by));
    c[i] = hn::Add(hn::Mul(scaled, hn::Set(d, a.scale.f32()[part])), hn::Set(d, a.base.f32()[i]));
    if (part == 0) c[i] = hn::Add(sigmoid(c[i]), hn::Set(d, a.hc_eps));
    if (part == 1) c[i] = hn::Mul(hn::Set(d, 2.0F), sigmoid(c[i]));
  }
  sinkhorn(c + 2 * m, m, a.iterations, a.hc_eps);
  for (int64_t i = 0; i < n_out; ++i) {
    hn::Store(c[i], d, lane);
    for (int64_t l = 0; l < n; ++l) {
      if (i < m)
        a.pre.f32()[(first + l) * m + i] = lane[l];
      else if (i < 2 * m)
        a.post.f32()[(first + l) * m + i - m] = lane[l];
      else
        a.comb.f32()[(first + l) * m * m + i - 2 * m] = lane[l];
    }
  }
}

using four = hn::CappedTag<float, 4>;

HWY_INLINE void transpose(hn::Vec<four>* v) {
  const four d;
  const auto low01 = hn::InterleaveLower(d, v[0], v[1]), low23 = hn::InterleaveLower(d, v[2], v[3]);
  const auto high01 = hn::InterleaveUpper(d, v[0], v[1]), high23 = hn::InterleaveUpper(d, v[2], v[3]);
  v[0] = hn::ConcatLowerLower(d, low23, low01);
  v[1] = hn::ConcatUpperUpper(d, low23, low01);
  v[2] = hn::ConcatLowerLower(d, high23, high01);
  v[3] = hn::ConcatUpperUpper(d, high23, high01);
}

// Divides every lane of the four vectors by their sum plus eps.
HWY_INLINE void normalise_four(hn::Vec<four>* v, float eps) {
  const four d;
  const auto sum = hn::Add(hn::Add(hn::Add(v[0], v[1]), v[2]), v[3]);
  const auto by = hn::Add(sum, hn::Set(d, eps));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) v[i] = hn::Div(v[i], by);
}

// One row of a 4 x 4 mix: the matrix in four vectors, turned between rows and columns.
void mix_four(const mix_args& a, const float* z, int64_t row) {
  const four d;
  const float* v = a.h.f32() + row * a.h.row_elements();
  const auto width = a.h.row_elements();
  const float by = 1.0F / std::sqrt(dot16(v, v, width) / static_cast<float>(width) + a.eps);
  hn::Vec<four> c[6];
#pragma GCC unroll 6
  for (int i = 0; i < 6; ++i) {
    const auto scaled = hn::Mul(hn::LoadU(d, z + row * 24 + 4 * i), hn::Set(d, by));
    c[i] = hn::Add(hn::Mul(scaled, hn::Set(d, a.scale.f32()[std::min(i, 2)])), hn::LoadU(d, a.base.f32() + 4 * i));
  }
  const auto one = hn::Set(d, 1.0F);
  for (int i = 0; i < 2; ++i) c[i] = hn::Div(one, hn::Add(one, exp_vector(d, hn::Neg(c[i]))));
  hn::StoreU(hn::Add(c[0], hn::Set(d, a.hc_eps)), d, a.pre.f32() + row * 4);
  hn::StoreU(hn::Mul(hn::Set(d, 2.0F), c[1]), d, a.post.f32() + row * 4);

  auto* m = c + 2;
  transpose(m); // vector k, lane j
  auto top = m[0];
  for (int k = 1; k < 4; ++k) top = hn::IfThenElse(hn::Lt(top, m[k]), m[k], top);
  for (int k = 0; k < 4; ++k) m[k] = exp_vector(d, hn::Sub(m[k], top));
  const auto sum = hn::Add(hn::Add(hn::Add(m[0], m[1]), m[2]), m[3]);
  for (int k = 0; k < 4; ++k) m[k] = hn::Add(hn::Div(m[k], sum), hn::Set(d, a.hc_eps));
  transpose(m);
  normalise_four(m, a.hc_eps);
  for (int i = 1; i < a.iterations; ++i) {
    transpose(m);
    normalise_four(m, a.hc_eps);
    transpose(m);
    normalise_four(m, a.hc_eps);
  }
  for (int j = 0; j < 4; ++j) hn::StoreU(m[j], d, a.comb.f32() + row * 16 + 4 * j);
}

void mix_rows(const mix_args& a, float* z, int64_t first, int64_t n) {
  if (a.pre.shape[1] == 4 && n <= n_lanes / 4) {
    for (int64_t r = first; r < first + n; ++r) mix_four(a, z, r);
    return;
  }
  for (int64_t r = 0; r < n; r += n_lanes) mix_lanes(a, z, first + r, std::min(n_lanes, n - r));
}

// |x| to the nearest of a format with `mantissa` bits and no exponent below `lowest`, ties to even; the sign is kept.
HWY_INLINE vec round_to_grid(vec x, float most, int mantissa, int lowest) {
  const floats d;
  const words u;
  const vec m = hn::Min(hn::Abs(x), hn::Set(d, most));
  auto exponent = hn::And(hn::BitCast(u, m), hn::Set(u, 0x7F800000));
  exponent = hn::Max(exponent, hn::Set(u, static_cast<uint32_t>(lowest + 127) << 23));
  // 1.5 * 2^23 steps: adding it rounds to a whole number of steps.
  const auto shift = hn::Set(u, (static_cast<uint32_t>(23 - mantissa) << 23) + 0x400000);
  const vec big = hn::BitCast(d, hn::Add(exponent, shift));
  return hn::CopySign(hn::Sub(hn::Add(m, big), big), x);
}
HWY_INLINE vec to_e4m3(vec x) { return round_to_grid(x, 448.0F, 3, -6); }
HWY_INLINE vec to_e2m1(vec x) { return round_to_grid(x, 6.0F, 1, 0); }

HWY_INLINE vec power_of_two_above(vec v) {
  const words u;
  return hn::BitCast(floats(), hn::And(hn::Add(hn::BitCast(u, v), hn::Set(u, 0x7FFFFF)), hn::Set(u, 0x7F800000)));
}

void quantise(float* x, int64_t n, quantiser how) {
  const floats d;
  const int64_t group = how == quantiser::fp4_e4m3_16 ? 16 : 32;
  for (int64_t first = 0; first < n; first += group) {
    float* g = x + first;
    vec top = hn::Zero(d), poison = hn::Zero(d);
    for (int64_t i = 0; i < group; i += n_lanes) {
      const vec v = hn::LoadU(d, g + i);
      top = hn::Max(top, hn::Abs(v));
      poison = hn::MulAdd(v, hn::Zero(d), poison); // NaN as soon as a value is not finite
    }
    if (!hn::AllFalse(d, hn::IsNaN(poison))) {
      std::fill(g, g + group, std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    const vec amax = hn::MaxOfLanes(d, top);
    vec s;
    switch (how) {
    case quantiser::fp8_32:
      s = power_of_two_above(hn::Mul(hn::Max(amax, hn::Set(d, 1e-4F)), hn::Set(d, 1.0F / 448.0F)));
      break;
    case quantiser::fp4_e8m0_32:
      s = power_of_two_above(hn::Mul(hn::Max(amax, hn::Set(d, 6 * 0x1p-126F)), hn::Set(d, 1.0F / 6.0F)));
      break;
    case quantiser::fp4_e4m3_16:
      s = to_e4m3(hn::Min(hn::Div(hn::Max(amax, hn::Set(d, 6 * 0x1p-9F)), hn::Set(d, 6.0F)), hn::Set(d, 448.0F)));
      break;
    }
    for (int64_t i = 0; i < group; i += n_lanes) {
      const vec v = hn::Div(hn::LoadU(d, g + i), s);
      hn::StoreU(hn::Mul(how == quantiser::fp8_32 ? to_e4m3(v) : to_e2m1(v), s), d, g + i);
    }
  }
}

void engram_gate(float* h, const float* kv, const float* q_weight, const float* k_weight, float* gates, int64_t m,
                 int64_t dim, float eps) {
  const float norm = 1.0F / std::sqrt(static_cast<float>(dim));
  const float* value = kv + m * dim;
  for (int64_t k = 0; k < m; ++k) {
    float* x = h + k * dim;
    const float *key = kv + k * dim, *qw = q_weight + k * dim, *kw = k_weight + k * dim;
    lanes16 sum = zero16();
    int64_t i = 0;
    for (; i + 16 <= dim; i += 16)
      fma16(mul16(load16(x + i), load16(qw + i)), mul16(load16(kw + i), load16(key + i)), sum);
    if (const int64_t rest = dim - i; rest > 0)
      fma16(mul16(load16(x + i, rest), load16(qw + i, rest)), mul16(load16(kw + i, rest), load16(key + i, rest)), sum);
    const float mean_h = dot16(x, x, dim) / static_cast<float>(dim);
    const float mean_key = dot16(key, key, dim) / static_cast<float>(dim);
    const float dot = sum16(sum) / std::sqrt(mean_h + eps) / std::sqrt(mean_key + eps) * norm;
    const float root = std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6F)), dot);
    const float gate = hn::GetLane(sigmoid(hn::Set(floats(), root)));
    if (gates != nullptr) gates[k] = gate;
    each(dim, [=](auto d, int64_t j) {
      hn::StoreU(hn::MulAdd(hn::Set(d, gate), hn::LoadU(d, value + j), hn::LoadU(d, x + j)), d, x + j);
    });
  }
}

const row_kernels kernels = {gate_activation, silu_mul,    add,      scale,    dot16,      rms_norm, fold,
                             expand,          mean_copies, mix_rows, quantise, engram_gate};

#endif
} // namespace troupe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace troupe {

const row_kernels* row_kernels_of(vector_level level) {
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
