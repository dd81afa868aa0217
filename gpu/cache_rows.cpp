// A group's scale is the smallest one that reaches its largest magnitude. It may be half of what the quantiser took
// (its largest value fell to the lower half of the format's range); the codes are then one exponent higher and the
// values the same.
#include "gpu/cache_rows.h"

#include "gpu/formats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace troupe {
namespace {

constexpr uint8_t e8m0_nan = 255, e4m3_nan = 0x7F;

struct group_scale {
  uint8_t code;
  float value;
};

// As quantise_host, except that a small e4m3 scale is rounded up: 6 * 2^-9 < amax <= 9 * 2^-9 leaves a value of 8 *
// 2^-9 behind, which is above six times the nearest scale.
group_scale scale_of(float amax, quantiser how) {
  if (how == quantiser::fp4_e4m3_16) {
    if (!std::isfinite(amax)) return {e4m3_nan, e4m3_to_f32(e4m3_nan)};
    uint8_t code = f32_to_e4m3(std::min(std::max(amax, std::ldexp(6.0F, -9)) / 6.0F, 448.0F));
    if (6.0F * e4m3_to_f32(code) < amax && code < e4m3_nan - 1) ++code;
    return {code, e4m3_to_f32(code)};
  }
  if (!std::isfinite(amax)) return {e8m0_nan, e8m0_to_f32(e8m0_nan)};
  const float least = how == quantiser::fp8_32 ? 1e-4F : std::ldexp(6.0F, -126);
  const float inverse = how == quantiser::fp8_32 ? 1.0F / 448.0F : 1.0F / 6.0F;
  const float s = round_up_to_power_of_two(std::max(amax, least) * inverse);
  return {static_cast<uint8_t>(std::bit_cast<uint32_t>(s) >> 23), s};
}

// The largest magnitude; infinity or NaN if there is one.
float top_of(const float* x, int64_t n) {
  uint32_t top = 0; // magnitudes order as their bits do
  for (int64_t i = 0; i < n; ++i) top = std::max(top, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFU);
  return std::bit_cast<float>(top);
}

// Both values of a byte of e2m1 codes.
using pair = std::array<float, 2>;
const std::array<pair, 256>& e2m1_pairs() {
  static const std::array<pair, 256> all = [] {
    std::array<pair, 256> made;
    for (int i = 0; i < 256; ++i)
      made[static_cast<size_t>(i)] = {e2m1_to_f32(static_cast<uint8_t>(i & 15)),
                                      e2m1_to_f32(static_cast<uint8_t>(i >> 4))};
    return made;
  }();
  return all;
}
const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> all = [] {
    std::array<float, 256> made;
    for (int i = 0; i < 256; ++i) made[static_cast<size_t>(i)] = e4m3_to_f32(static_cast<uint8_t>(i));
    return made;
  }();
  return all;
}

} // namespace

bool holds_records(const tensor& cache, quantiser how, int64_t dim) {
  const int64_t width = cache.shape[cache.rank - 1];
  if (cache.type == dtype::f32) {
    TROUPE_CHECK(width == dim, "a cache has the width of its rows");
    return false;
  }
  TROUPE_CHECK(cache.type == dtype::u8 && dim % group_of(how) == 0 && width == record_bytes(how, dim),
               "a cache holds floats, or records of whole groups");
  return true;
}

void encode_record(std::byte* to, const float* x, int64_t dim, quantiser how) {
  const int64_t group = group_of(how), n_codes = record_code_bytes(how, dim), n_groups = dim / group;
  auto* code = reinterpret_cast<uint8_t*>(to);
  for (int64_t g = 0; g < n_groups; ++g) {
    const float* v = x + g * group;
    const float top = top_of(v, group);
    const group_scale s = scale_of(top, how);
    code[n_codes + g] = s.code;
    const bool is_finite = std::isfinite(top); // codes of a poisoned group are zeros: its scale is NaN
    for (int64_t i = 0; i < group; ++i) {
      const float in_steps = is_finite ? v[i] / s.value : 0.0F;
      const int64_t at = g * group + i;
      if (how == quantiser::fp8_32)
        code[at] = f32_to_e4m3(in_steps);
      else if (i % 2 == 0)
        code[at / 2] = f32_to_e2m1(in_steps);
      else
        code[at / 2] = static_cast<uint8_t>(code[at / 2] | f32_to_e2m1(in_steps) << 4);
    }
  }
  const int64_t used = n_codes + n_groups;
  std::memset(to + used, 0, static_cast<size_t>(record_bytes(how, dim) - used));
}

void decode_record(float* to, const std::byte* from, int64_t dim, quantiser how) {
  const int64_t group = group_of(how), n_groups = dim / group;
  const auto* code = reinterpret_cast<const uint8_t*>(from);
  const uint8_t* scale = code + record_code_bytes(how, dim);
  const auto& pairs = e2m1_pairs();
  const auto& values = e4m3_values();
  for (int64_t g = 0; g < n_groups; ++g, to += group) {
    if (how == quantiser::fp8_32) {
      for (int64_t i = 0; i < group; ++i) to[i] = values[code[g * group + i]];
    } else {
      for (int64_t i = 0; i < group; i += 2) std::memcpy(to + i, pairs[code[(g * group + i) / 2]].data(), sizeof(pair));
    }
    const float by = how == quantiser::fp4_e4m3_16 ? values[scale[g]] : e8m0_to_f32(scale[g]);
    for (int64_t i = 0; i < group; ++i) to[i] *= by;
  }
}

} // namespace troupe
