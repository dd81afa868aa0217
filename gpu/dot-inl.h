// Sums of gpu/dot.h for the vectors of the target being compiled: 16 lanes, the same tree, the same bits. Included once
// for every target, hence no #pragma once.
#if defined(TROUPE_DOT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TROUPE_DOT_INL
#undef TROUPE_DOT_INL
#else
#define TROUPE_DOT_INL
#endif

#include <cstdint>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace troupe::HWY_NAMESPACE {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

// 16 lanes: one vector of AVX-512, two of AVX2.
struct lanes16 {
  using tag = hwy::HWY_NAMESPACE::CappedTag<float, 16>;
  using vec = hwy::HWY_NAMESPACE::Vec<tag>;
  static constexpr int n = HWY_TARGET == HWY_AVX3 ? 1 : 2;
  static constexpr int64_t width = 16 / n;
  vec part[n];
};

HWY_INLINE lanes16 zero16() {
  lanes16 v;
#pragma GCC unroll 2
  for (int i = 0; i < lanes16::n; ++i) v.part[i] = hwy::HWY_NAMESPACE::Zero(lanes16::tag());
  return v;
}
HWY_INLINE lanes16 load16(const float* p) {
  lanes16 v;
#pragma GCC unroll 2
  for (int i = 0; i < lanes16::n; ++i) v.part[i] = hwy::HWY_NAMESPACE::LoadU(lanes16::tag(), p + i * lanes16::width);
  return v;
}
// The first `count` < 16 elements, zeros behind: a zero product leaves a lane as it is.
HWY_INLINE lanes16 load16(const float* p, int64_t count) {
  HWY_ALIGN float padded[16] = {};
  for (int64_t i = 0; i < count; ++i) padded[i] = p[i];
  return load16(padded);
}
HWY_INLINE lanes16 mul16(lanes16 a, const lanes16& b) {
#pragma GCC unroll 2
  for (int i = 0; i < lanes16::n; ++i) a.part[i] = hwy::HWY_NAMESPACE::Mul(a.part[i], b.part[i]);
  return a;
}
HWY_INLINE void fma16(const lanes16& a, const lanes16& b, lanes16& sum) {
#pragma GCC unroll 2
  for (int i = 0; i < lanes16::n; ++i) sum.part[i] = hwy::HWY_NAMESPACE::MulAdd(a.part[i], b.part[i], sum.part[i]);
}
HWY_INLINE void add16(const lanes16& a, lanes16& sum) {
#pragma GCC unroll 2
  for (int i = 0; i < lanes16::n; ++i) sum.part[i] = hwy::HWY_NAMESPACE::Add(sum.part[i], a.part[i]);
}

// sum_lanes of gpu/dot.h: lane i + lane i + 8, then + 4, + 2, + 1.
HWY_INLINE float sum16(const lanes16& v) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<float, 8> d8;
  const hn::Half<decltype(d8)> d4;
#if HWY_TARGET == HWY_AVX3
  const auto eight = hn::Add(hn::LowerHalf(d8, v.part[0]), hn::UpperHalf(d8, v.part[0]));
#else
  const auto eight = hn::Add(v.part[0], v.part[1]);
#endif
  const auto four = hn::Add(hn::LowerHalf(d4, eight), hn::UpperHalf(d4, eight));
  const auto two = hn::Add(four, hn::Shuffle1032(four));
  return hn::GetLane(hn::Add(two, hn::Shuffle2301(two)));
}

// sum16 of four sums at once: halves of two are added side by side, so a step costs less than four times one.
HWY_INLINE void sum16_of_four(const lanes16* v, float* out) {
  namespace hn = hwy::HWY_NAMESPACE;
  const lanes16::tag d;
  HWY_ALIGN float lane[16];
#if HWY_TARGET == HWY_AVX3
  auto a =
      hn::Add(hn::ConcatLowerLower(d, v[1].part[0], v[0].part[0]), hn::ConcatUpperUpper(d, v[1].part[0], v[0].part[0]));
  auto b =
      hn::Add(hn::ConcatLowerLower(d, v[3].part[0], v[2].part[0]), hn::ConcatUpperUpper(d, v[3].part[0], v[2].part[0]));
  a = hn::Add(a, hn::SwapAdjacentBlocks(a));
  b = hn::Add(b, hn::SwapAdjacentBlocks(b));
  auto four = hn::OddEvenBlocks(b, a); // blocks: sum 0, sum 2, sum 1, sum 3
  four = hn::Add(four, hn::Shuffle1032(four));
  hn::Store(hn::Add(four, hn::Shuffle2301(four)), d, lane);
  out[0] = lane[0], out[1] = lane[8], out[2] = lane[4], out[3] = lane[12];
#else
  for (int i = 0; i < 4; i += 2) {
    const auto x = hn::Add(v[i].part[0], v[i].part[1]), y = hn::Add(v[i + 1].part[0], v[i + 1].part[1]);
    auto two = hn::Add(hn::ConcatLowerLower(d, y, x), hn::ConcatUpperUpper(d, y, x));
    two = hn::Add(two, hn::Shuffle1032(two));
    hn::Store(hn::Add(two, hn::Shuffle2301(two)), d, lane);
    out[i] = lane[0], out[i + 1] = lane[4];
  }
#endif
}

HWY_INLINE float dot16(const float* a, const float* b, int64_t n) {
  lanes16 sum = zero16();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) fma16(load16(a + i), load16(b + i), sum);
  if (i < n) fma16(load16(a + i, n - i), load16(b + i, n - i), sum);
  return sum16(sum);
}

#endif
} // namespace troupe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
