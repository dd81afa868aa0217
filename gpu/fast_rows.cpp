// Elementwise work and short sums: bound by the latency of a few operations a row, so plain vector loops do.
#include "gpu/fast_rows.h"

#include "gpu/moe.h"

#include "gpu/vector_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/fast_rows.cpp"

#include <hwy/foreach_target.h>

#include <hwy/highway.h>

#include "gpu/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace troupe::HWY_NAMESPACE {
#if TROUPE_VECTOR_TARGET

namespace hn = hwy::HWY_NAMESPACE;
using floats = HWY_FULL(float);
using vec = hn::Vec<floats>;
constexpr int64_t n_lanes = HWY_TARGET == HWY_AVX3 ? 16 : 8;

// Calls step(d, i) for whole vectors, then for single lanes: the operations of an element are the same in both.
template <class Step> HWY_INLINE void each(int64_t n, Step step) {
  int64_t i = 0;
  for (; i + n_lanes <= n; i += n_lanes) step(floats(), i);
  for (; i < n; ++i) step(hn::CappedTag<float, 1>(), i);
}

void gate_activation(float* g, const float* u, int64_t n, float weight, float limit) {
  each(n, [=](auto d, int64_t i) {
    auto a = hn::LoadU(d, g + i), b = hn::LoadU(d, u + i);
    if (limit > 0) {
      const auto high = hn::Set(d, limit), low = hn::Set(d, -limit);
      a = hn::IfThenElse(hn::Lt(high, a), high, a);
      b = hn::IfThenElse(hn::Lt(b, low), low, hn::IfThenElse(hn::Lt(high, b), high, b));
    }
    const auto silu = hn::Div(a, hn::Add(hn::Set(d, 1.0F), exp_vector(d, hn::Neg(a))));
    hn::StoreU(hn::Mul(hn::Mul(silu, b), hn::Set(d, weight)), d, g + i);
  });
}

const row_kernels kernels = {gate_activation};

#endif
} // namespace troupe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace troupe {
namespace {

const row_kernels scalar_kernels = {troupe::gate_activation};

} // namespace

const row_kernels& row_kernels_of(vector_level level) {
  switch (level) {
#if HWY_TARGETS & HWY_AVX2
  case vector_level::avx2: return N_AVX2::kernels;
#endif
#if HWY_TARGETS & HWY_AVX3
  case vector_level::avx512: return N_AVX3::kernels;
#endif
  default: return scalar_kernels;
  }
}

} // namespace troupe
#endif
