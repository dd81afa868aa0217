// Integer arithmetic modulo 2^32 and one f16 rounding per value.
#include "gpu/codebook.h"

#include "gpu/formats.h"

#include <fmt/format.h>
#include <stdexcept>
#include <vector>

namespace troupe {
namespace {

// The product's two halves, masked into f16 numbers around 1, added. An f32 sum of two f16 numbers rounds to f16 as the
// exact sum does (24 >= 2 * 11 + 2 bits).
uint16_t sum_of_halves(uint32_t x) {
  x = (x & 0x8FFF8FFF) ^ 0x3B603B60;
  return f32_to_f16(f16_to_f32(static_cast<uint16_t>(x)) + f16_to_f32(static_cast<uint16_t>(x >> 16)));
}

// 0x1EEE and 0xC931 as f16. Product and sum fit in 22 bits, so f32 holds them exactly and only the last step rounds.
uint16_t byte_sum(uint32_t x) {
  const uint32_t sum = (x & 255) + ((x >> 8) & 255) + ((x >> 16) & 255) + (x >> 24);
  return f32_to_f16(static_cast<float>(1024 + sum) * 0.00676727294921875F - 10.3828125F);
}

std::vector<float> make_table(stored_matrix::codebook book) {
  std::vector<float> t(65536);
  for (uint32_t s = 0; s < 65536; ++s) t[s] = f16_to_f32(codebook_value(book, static_cast<uint16_t>(s)));
  return t;
}

} // namespace

uint16_t codebook_value(stored_matrix::codebook book, uint16_t state) {
  const uint32_t s = state;
  switch (book) {
  case stored_matrix::codebook::inst3: return sum_of_halves(s * 89226354U + 64248484U);
  case stored_matrix::codebook::mcg: return sum_of_halves(s * mcg_multiplier);
  case stored_matrix::codebook::mul1: return byte_sum(s * mul1_multiplier);
  }
  TROUPE_CHECK(false, "every codebook has a rule");
}

std::span<const float> codebook_table(stored_matrix::codebook book) {
  switch (book) {
  case stored_matrix::codebook::inst3: {
    static const std::vector<float> t = make_table(book);
    return t;
  }
  case stored_matrix::codebook::mcg: {
    static const std::vector<float> t = make_table(book);
    return t;
  }
  case stored_matrix::codebook::mul1: {
    static const std::vector<float> t = make_table(book);
    return t;
  }
  }
  TROUPE_CHECK(false, "every codebook has a table");
}

const char* name(stored_matrix::codebook book) {
  switch (book) {
  case stored_matrix::codebook::inst3: return "3inst";
  case stored_matrix::codebook::mcg: return "mcg";
  case stored_matrix::codebook::mul1: return "mul1";
  }
  return "unknown";
}

void check_codebook_marker(stored_matrix::codebook book, int32_t value, const std::string& module) {
  const uint32_t found = static_cast<uint32_t>(value);
  if (book == stored_matrix::codebook::inst3)
    throw std::runtime_error(module + ": codebook 3inst has no marker tensor, found one");
  const uint32_t expected = book == stored_matrix::codebook::mul1 ? mul1_multiplier : mcg_multiplier;
  if (found != expected)
    throw std::runtime_error(
        fmt::format("{}.{}: codebook multiplier is {:#010x}, expected {:#010x}", module, name(book), found, expected));
}

} // namespace troupe
