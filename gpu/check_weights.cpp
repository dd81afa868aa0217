// Random bits are a legal trellis and legal codes; scales are near those of real packs, with both signs.
#include "gpu/check_weights.h"

#include "gpu/formats.h"
#include "gpu/self_check.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace troupe {

float known_float(std::mt19937& random, float spread) {
  return (static_cast<float>(random() >> 8) * 0x1p-24F - 0.5F) * 4 * spread;
}

std::vector<float> known_floats(std::mt19937& random, int64_t n, float spread) {
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = known_float(random, spread);
  return v;
}

double error_of(const std::vector<float>& a, const std::vector<float>& b, bool rms) {
  double worst = 0, largest = 0, difference = 0, total = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double d = std::fabs(static_cast<double>(a[i]) - b[i]);
    if (!std::isfinite(d)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, d);
    difference += d * d;
  }
  for (const float x : b) {
    if (!std::isfinite(x)) continue;
    largest = std::max(largest, static_cast<double>(std::fabs(x)));
    total += static_cast<double>(x) * x;
  }
  if (worst == 0) return 0;
  return rms ? std::sqrt(difference / total) : worst / largest;
}

known_matrix::known_matrix(const weight_variant& v, int64_t in, int64_t out, int32_t rate, std::mt19937& random) {
  using format = stored_matrix::format;
  stored.how = v.how;
  stored.book = v.book;
  stored.in = in;
  stored.out = out;
  stored.name = "self-check " + name(v);
  if (v.how == format::exl3) {
    words_.resize(static_cast<size_t>(in / 16 * (out / 16) * 8 * rate));
    for (uint16_t& w : words_) w = static_cast<uint16_t>(random());
    const auto scale = [&] {
      return f32_to_f16((random() % 2 == 0 ? 1.0F : -1.0F) * (0.5F + known_float(random, 0.1F)));
    };
    for (int64_t i = 0; i < in; ++i) suh_.push_back(scale());
    for (int64_t i = 0; i < out; ++i) svh_.push_back(scale());
    stored.trellis = tensor(words_.data(), dtype::i16, {in / 16, out / 16, 8 * rate});
    stored.suh = tensor(suh_.data(), dtype::f16, {in});
    stored.svh = tensor(svh_.data(), dtype::f16, {out});
    return;
  }
  if (v.how == format::dense) {
    floats_ = known_floats(random, in * out, 0.3F);
    for (const float x : floats_) words_.push_back(v.type == dtype::bf16 ? f32_to_bf16(x) : f32_to_f16(x));
    void* at = v.type == dtype::f32 ? static_cast<void*>(floats_.data()) : words_.data();
    stored.weight = tensor(at, v.type, {out, in});
    return;
  }
  const bool fp4 = v.how == format::fp4;
  for (int64_t i = 0; i < (fp4 ? in / 2 : in) * out; ++i) {
    const auto code = static_cast<uint8_t>(random());
    bytes_.push_back(!fp4 && (code & 0x7F) == 0x7F ? 0x30 : code); // no NaN
  }
  const int64_t scale_rows = v.how == format::fp8_block ? (out + 31) / 32 : out, scale_columns = (in + 31) / 32;
  for (int64_t i = 0; i < scale_rows * scale_columns; ++i) scales_.push_back(static_cast<uint8_t>(118 + random() % 6));
  stored.weight =
      fp4 ? tensor(bytes_.data(), dtype::i8, {out, in / 2}) : tensor(bytes_.data(), dtype::f8_e4m3, {out, in});
  stored.scale = tensor(scales_.data(), dtype::f8_e8m0, {scale_rows, scale_columns});
}

} // namespace troupe
