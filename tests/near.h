// How near two float tensors are, and how near sums of floats can be expected to be: tolerances come from the inputs.
// Definitions of relative error: tests/golden/model/README.md, "How to compare".
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>

namespace troupe::test {

// |a - b|, 0 for two NaN or equal infinities, infinity when only one of them is not finite.
inline double distance(float a, float b) {
  if (std::isnan(a) && std::isnan(b)) return 0;
  if (a == b) return 0;
  const double d = std::fabs(static_cast<double>(a) - static_cast<double>(b));
  return std::isfinite(d) ? d : std::numeric_limits<double>::infinity();
}

inline void need_equal_sizes(std::span<const float> a, std::span<const float> reference) {
  if (a.size() != reference.size()) throw std::logic_error("compared tensors have different sizes");
}

// max |reference|, infinities left out.
inline double largest(std::span<const float> reference) {
  double m = 0;
  for (float v : reference)
    if (std::isfinite(v)) m = std::max(m, static_cast<double>(std::fabs(v)));
  return m;
}

// max |a - reference| / max |reference|. Two all-zero tensors: 0.
inline double relative_error(std::span<const float> a, std::span<const float> reference) {
  need_equal_sizes(a, reference);
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, distance(a[i], reference[i]));
  return worst == 0 ? 0 : worst / largest(reference);
}

// sqrt(sum (a - reference)^2 / sum reference^2).
inline double rms_error(std::span<const float> a, std::span<const float> reference) {
  need_equal_sizes(a, reference);
  double difference = 0, total = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = distance(a[i], reference[i]);
    difference += d * d;
    if (std::isfinite(reference[i])) total += static_cast<double>(reference[i]) * reference[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / total);
}

// The share of rows whose max |a - reference| over the row is at most `tolerance` times max |reference| of the tensor.
inline double rows_within(std::span<const float> a, std::span<const float> reference, size_t row_elements,
                          double tolerance) {
  need_equal_sizes(a, reference);
  if (row_elements == 0 || a.size() % row_elements != 0) throw std::logic_error("a tensor is a whole number of rows");
  const double bound = tolerance * largest(reference);
  size_t good = 0;
  for (size_t row = 0; row < a.size(); row += row_elements) {
    double worst = 0;
    for (size_t i = row; i < row + row_elements; ++i) worst = std::max(worst, distance(a[i], reference[i]));
    good += worst <= bound ? 1 : 0;
  }
  return a.empty() ? 1 : static_cast<double>(good) / static_cast<double>(a.size() / row_elements);
}

// What an f32 sum of n fused products can be off from the exact one, in any order: n * 2^-24 * sum |a b|, doubled for
// higher orders. `sum_abs`: sum |a b|.
inline double sum_bound(int64_t n, double sum_abs) {
  return 2.0 * static_cast<double>(n) * 0x1p-24 * sum_abs + std::numeric_limits<float>::min();
}

// sum_i a[i * a_step] * b[i * b_step] in f64, and the sum of magnitudes for sum_bound.
struct exact_dot {
  double sum = 0, sum_abs = 0;
};
inline exact_dot dot_exact(const float* a, int64_t a_step, const float* b, int64_t b_step, int64_t n) {
  exact_dot d;
  for (int64_t i = 0; i < n; ++i) {
    const double p = static_cast<double>(a[i * a_step]) * b[i * b_step];
    d.sum += p;
    d.sum_abs += std::fabs(p);
  }
  return d;
}

} // namespace troupe::test
