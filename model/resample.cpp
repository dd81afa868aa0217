// Two passes, rows first, in fixed point with 8-bit rounding between them; that rounding is part of PIL's result.
#include "model/resample.h"

#include "storage/check.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace troupe {
namespace {

// 32-bit sums of 8-bit values, with 2 bits for sign and for overshoot of the negative lobes, leave 22 for a weight.
constexpr int precision_bits = 32 - 8 - 2;
constexpr int32_t half = 1 << (precision_bits - 1);
constexpr double bicubic_support = 2.0;

// Keys' cubic with a = -0.5.
double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
  if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
  return 0.0;
}

// What one axis needs: output i is the sum over k of weights[i * width + k] * input[first[i] + k], k < count[i].
struct axis_plan {
  size_t width = 0;
  std::vector<int32_t> first, count;
  std::vector<int32_t> weights; // fixed point
};

axis_plan plan_axis(int32_t n_in, int32_t n_out) {
  const double scale = static_cast<double>(n_in) / n_out;
  const double stretch = std::max(scale, 1.0); // shrinking widens the filter: that is the antialiasing
  const double support = bicubic_support * stretch, inverse = 1.0 / stretch;
  axis_plan plan;
  plan.width = static_cast<size_t>(std::ceil(support)) * 2 + 1;
  plan.first.resize(static_cast<size_t>(n_out));
  plan.count.resize(static_cast<size_t>(n_out));
  plan.weights.resize(plan.width * static_cast<size_t>(n_out));
  std::vector<double> exact(plan.width);
  for (size_t i = 0; i < plan.first.size(); ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const int32_t begin = std::max(static_cast<int32_t>(centre - support + 0.5), 0);
    const int32_t end = std::min(static_cast<int32_t>(centre + support + 0.5), n_in);
    const auto n = static_cast<size_t>(end - begin);
    double sum = 0;
    for (size_t k = 0; k < n; ++k) {
      exact[k] = bicubic((static_cast<double>(k) + begin - centre + 0.5) * inverse);
      sum += exact[k];
    }
    for (size_t k = 0; k < n; ++k) {
      const double w = (sum != 0.0 ? exact[k] / sum : exact[k]) * (1 << precision_bits);
      plan.weights[i * plan.width + k] = static_cast<int32_t>(w < 0 ? w - 0.5 : w + 0.5); // halves away from zero
    }
    plan.first[i] = begin;
    plan.count[i] = end - begin;
  }
  return plan;
}

uint8_t to_byte(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> precision_bits, 0, 255)); }

rgb_image resize_rows(const rgb_image& in, int32_t width) {
  const axis_plan plan = plan_axis(in.width, width);
  rgb_image out{.width = width, .height = in.height, .rgb = {}};
  out.rgb.resize(static_cast<size_t>(width) * static_cast<size_t>(in.height) * 3);
  uint8_t* to = out.rgb.data();
  for (size_t y = 0; y < static_cast<size_t>(in.height); ++y) {
    const uint8_t* row = in.rgb.data() + y * static_cast<size_t>(in.width) * 3;
    for (size_t x = 0; x < static_cast<size_t>(width); ++x, to += 3) {
      const int32_t* weights = plan.weights.data() + x * plan.width;
      const uint8_t* from = row + static_cast<size_t>(plan.first[x]) * 3;
      int32_t r = half, g = half, b = half;
      for (int32_t k = 0; k < plan.count[x]; ++k, from += 3) {
        r += from[0] * weights[k];
        g += from[1] * weights[k];
        b += from[2] * weights[k];
      }
      to[0] = to_byte(r);
      to[1] = to_byte(g);
      to[2] = to_byte(b);
    }
  }
  return out;
}

rgb_image resize_columns(const rgb_image& in, int32_t height) {
  const axis_plan plan = plan_axis(in.height, height);
  const size_t row_bytes = static_cast<size_t>(in.width) * 3;
  rgb_image out{.width = in.width, .height = height, .rgb = {}};
  out.rgb.resize(row_bytes * static_cast<size_t>(height));
  std::vector<int32_t> sums(row_bytes);
  for (size_t y = 0; y < static_cast<size_t>(height); ++y) {
    std::fill(sums.begin(), sums.end(), half);
    for (int32_t k = 0; k < plan.count[y]; ++k) {
      const int32_t weight = plan.weights[y * plan.width + static_cast<size_t>(k)];
      const uint8_t* row = in.rgb.data() + static_cast<size_t>(plan.first[y] + k) * row_bytes;
      for (size_t i = 0; i < row_bytes; ++i) sums[i] += row[i] * weight;
    }
    std::transform(sums.begin(), sums.end(), out.rgb.begin() + static_cast<std::ptrdiff_t>(y * row_bytes), to_byte);
  }
  return out;
}

// Python's round(): halves to even, whatever the rounding mode of the thread.
int32_t round_half_even(double x) {
  const double below = std::floor(x), part = x - below;
  const bool up = part > 0.5 || (part == 0.5 && std::fmod(below, 2.0) != 0.0);
  return static_cast<int32_t>(up ? below + 1 : below);
}

} // namespace

rgb_image resize_bicubic(const rgb_image& in, int32_t width, int32_t height) {
  TROUPE_CHECK(in.width > 0 && in.height > 0 && width > 0 && height > 0, "an image has pixels");
  TROUPE_CHECK(in.rgb.size() == static_cast<size_t>(in.width) * static_cast<size_t>(in.height) * 3,
               "an image holds three bytes for each pixel");
  if (in.width == width && in.height == height) return in;
  if (in.height == height) return resize_rows(in, width);
  if (in.width == width) return resize_columns(in, height);
  return resize_columns(resize_rows(in, width), height);
}

rgb_image pad_bicubic(const rgb_image& in, int32_t width, int32_t height, std::array<uint8_t, 3> colour) {
  const double have = static_cast<double>(in.width) / in.height, want = static_cast<double>(width) / height;
  int32_t inner_width = width, inner_height = height; // never more than the target: the shapes differ that way
  // The order of the operations is PIL's: the last bit decides which way a half rounds.
  if (have > want)
    inner_height = std::max(1, round_half_even(static_cast<double>(in.height) / in.width * width));
  else if (have < want)
    inner_width = std::max(1, round_half_even(static_cast<double>(in.width) / in.height * height));
  rgb_image inner = resize_bicubic(in, inner_width, inner_height);
  if (inner_width == width && inner_height == height) return inner;

  const int32_t left = inner_width == width ? 0 : round_half_even((width - inner_width) * 0.5);
  const int32_t top = inner_width != width ? 0 : round_half_even((height - inner_height) * 0.5);
  rgb_image out{.width = width, .height = height, .rgb = {}};
  out.rgb.resize(static_cast<size_t>(width) * static_cast<size_t>(height) * 3);
  for (size_t i = 0; i < out.rgb.size(); ++i) out.rgb[i] = colour[i % 3];
  for (int32_t y = 0; y < inner_height; ++y)
    std::copy_n(inner.rgb.begin() + static_cast<std::ptrdiff_t>(y) * inner_width * 3, inner_width * 3,
                out.rgb.begin() + (static_cast<std::ptrdiff_t>(top + y) * width + left) * 3);
  return out;
}

} // namespace troupe
