// A counter-based generator under each law. A tensor of one dtype is cut into units (a word, or an element) that follow
// from their number alone; the ends of a range may lie inside a unit.
#include "model/deepseek_v41/synth_numbers.h"

#include "gpu/formats.h"
#include "storage/check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace troupe::deepseek_v41 {
namespace {

constexpr uint64_t golden = 0x9E3779B97F4A7C15;
constexpr double byte_sum_mean = 510, byte_sum_deviation = 147.8; // of four uniform bytes

// The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return z ^ z >> 31;
}

// 2^x to within 1e-7, by sums and products only: std::exp2 may differ in the last bit between libraries.
double power_of_two(double x) {
  const double whole = std::floor(x + 0.5), y = (x - whole) * 0.6931471805599453;
  const double fraction = 1 + y * (1 + y / 2 * (1 + y / 3 * (1 + y / 4 * (1 + y / 5 * (1 + y / 6 * (1 + y / 7))))));
  return std::ldexp(fraction, static_cast<int>(whole));
}

// Calls unit(i) for the units of `Unit`'s size that the range touches and copies the part that lies in it.
template <class Unit, class Make> void fill(uint64_t byte_offset, std::span<std::byte> out, Make make) {
  uint64_t i = byte_offset / sizeof(Unit);
  size_t done = 0;
  const auto part = [&](size_t begin, size_t n) { // of unit i
    const Unit u = make(i++);
    std::memcpy(out.data() + done, reinterpret_cast<const std::byte*>(&u) + begin, n);
    done += n;
  };
  if (const size_t begin = byte_offset % sizeof(Unit); begin != 0)
    part(begin, std::min(sizeof(Unit) - begin, out.size()));
  for (; out.size() - done >= sizeof(Unit); done += sizeof(Unit)) {
    const Unit u = make(i++);
    std::memcpy(out.data() + done, &u, sizeof(Unit));
  }
  if (done < out.size()) part(0, out.size() - done);
}

// Elements of a number law as stored; `value(i)` is element i.
template <class Value> void fill_numbers(dtype type, uint64_t byte_offset, std::span<std::byte> out, Value value) {
  switch (type) {
  case dtype::f32: return fill<float>(byte_offset, out, [&](uint64_t i) { return static_cast<float>(value(i)); });
  case dtype::bf16:
    return fill<uint16_t>(byte_offset, out, [&](uint64_t i) { return f32_to_bf16(static_cast<float>(value(i))); });
  case dtype::f16:
    return fill<uint16_t>(byte_offset, out, [&](uint64_t i) { return f32_to_f16(static_cast<float>(value(i))); });
  default: TROUPE_CHECK(false, "numbers are stored as F32, BF16 or F16");
  }
}

double channel_factor(const synth_law& law, uint64_t i) {
  return law.channels ? double{(*law.channels)[i % law.channels->size()]} : 1;
}

// Low half of the word: magnitude. High half: sign and zeros.
double scale_number(const synth_law& law, uint64_t key, uint64_t i) {
  const uint64_t word = synth_word(key, i);
  const auto flags = static_cast<uint32_t>(word >> 32);
  if (law.has_zeros && flags >> 20 == 0) return 0;
  const double size = law.level * power_of_two(law.spread * synth_normal(static_cast<uint32_t>(word)));
  return (law.has_signs && (flags & 1) != 0 ? -size : size) * channel_factor(law, i);
}

// The e4m3 code of every whole number from -255 to 255.
const std::array<uint8_t, 511>& code_table() {
  static const std::array<uint8_t, 511> table = [] {
    std::array<uint8_t, 511> t{};
    for (int n = -255; n <= 255; ++n) t[static_cast<size_t>(n + 255)] = f32_to_e4m3(static_cast<float>(n));
    return t;
  }();
  return table;
}

} // namespace

uint64_t synth_key(uint64_t seed, std::string_view name) {
  uint64_t h = mix(seed + golden);
  for (const char c : name) h = mix(h ^ static_cast<uint8_t>(c)) + golden;
  return h;
}

uint64_t synth_word(uint64_t key, uint64_t place) { return mix(key + place * golden); }

double synth_normal(uint32_t word) {
  const uint32_t pairs = (word & 0x00FF00FF) + (word >> 8 & 0x00FF00FF);
  return (static_cast<double>((pairs & 0xFFFF) + (pairs >> 16)) - byte_sum_mean) / byte_sum_deviation;
}

void synth_bytes(const synth_law& law, dtype type, uint64_t key, uint64_t byte_offset, std::span<std::byte> out) {
  using kind = synth_law::kind;
  switch (law.what) {
  case kind::words: return fill<uint64_t>(byte_offset, out, [key](uint64_t i) { return synth_word(key, i); });
  case kind::normal:
    return fill_numbers(type, byte_offset, out, [&](uint64_t i) {
      return law.level * synth_normal(static_cast<uint32_t>(synth_word(key, i))) * channel_factor(law, i);
    });
  case kind::scales: return fill_numbers(type, byte_offset, out, [&](uint64_t i) { return scale_number(law, key, i); });
  case kind::codes: // sixteen bits of a word each
    return fill<uint32_t>(byte_offset, out, [key, &t = code_table()](uint64_t i) {
      const uint64_t word = synth_word(key, i);
      uint32_t four = 0;
      for (int c = 0; c < 4; ++c) four |= uint32_t{t[(word >> 16 * c & 0xFF) + (word >> (16 * c + 8) & 0xFF)]} << 8 * c;
      return four;
    });
  case kind::exponents:
    return fill<uint8_t>(byte_offset, out,
                         [key](uint64_t i) { return static_cast<uint8_t>(119 + synth_word(key, i) % 3); });
  case kind::table: return fill_numbers(type, byte_offset, out, [&](uint64_t i) { return double{(*law.numbers)[i]}; });
  case kind::marker: return fill<uint32_t>(byte_offset, out, [&](uint64_t) { return law.mark; });
  }
}

} // namespace troupe::deepseek_v41
