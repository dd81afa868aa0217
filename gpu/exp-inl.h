// exp_f32 of gpu/exp.h for the vectors of the target being compiled: the same steps, the same bits. Included once for
// every target, behind hwy/highway.h, hence no #pragma once.
#if defined(TROUPE_EXP_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TROUPE_EXP_INL
#undef TROUPE_EXP_INL
#else
#define TROUPE_EXP_INL
#endif

#include "gpu/exp.h"

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace troupe::HWY_NAMESPACE {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

template <class D> HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> exp_vector(D d, hwy::HWY_NAMESPACE::Vec<D> x) {
  namespace hn = hwy::HWY_NAMESPACE;
  using c = exp_constants;
  const hn::RebindToSigned<D> di;
  const auto n = hn::Sub(hn::Add(hn::Mul(x, hn::Set(d, c::log2_e)), hn::Set(d, c::round)), hn::Set(d, c::round));
  const auto r = hn::NegMulAdd(n, hn::Set(d, c::ln2_low), hn::NegMulAdd(n, hn::Set(d, c::ln2_high), x));
  auto p = hn::Set(d, c::series[0]);
#pragma GCC unroll 6
  for (int i = 1; i < 6; ++i) p = hn::MulAdd(p, r, hn::Set(d, c::series[i]));
  p = hn::Add(hn::MulAdd(hn::Mul(p, r), r, r), hn::Set(d, 1.0F));
  const auto whole = hn::ConvertTo(di, n);
  const auto half = hn::ShiftRight<1>(whole);
  const auto power = [&](auto e) { return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(e, hn::Set(di, 127)))); };
  auto y = hn::Mul(hn::Mul(p, power(half)), power(hn::Sub(whole, half)));
  y = hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, c::lowest)), y);
  y = hn::IfThenElse(hn::Gt(x, hn::Set(d, c::highest)), hn::Set(d, std::numeric_limits<float>::infinity()), y);
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

#endif
} // namespace troupe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
