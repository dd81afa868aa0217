// Engram's compressed ids: golden normalisations and the whole map of two tokenizers.
#include "model/deepseek_v41/token_map.h"

#include "tests/model/golden_chat.h"

#include <algorithm>
#include <array>
#include <bit>
#include <doctest/doctest.h>
#include <set>

using namespace troupe;

namespace {

// SHA-256 (FIPS 180-4), for the one hash that pins the map. Constants: fractional parts of roots of the first primes.
std::string sha256_of(std::string bytes) {
  std::array<uint32_t, 64> k;
  std::array<uint32_t, 8> h;
  const auto fraction = [](long double x) { return static_cast<uint32_t>((x - __builtin_floorl(x)) * 4294967296.0L); };
  for (uint32_t n = 2, i = 0; i < 64; ++n) {
    bool is_prime = true;
    for (uint32_t d = 2; d * d <= n; ++d) is_prime &= n % d != 0;
    if (!is_prime) continue;
    k[i] = fraction(__builtin_cbrtl(n));
    if (i < 8) h[i] = fraction(__builtin_sqrtl(n));
    ++i;
  }
  const uint64_t n_bits = bytes.size() * 8;
  bytes += '\x80';
  while (bytes.size() % 64 != 56) bytes += '\0';
  for (int i = 7; i >= 0; --i) bytes += static_cast<char>(n_bits >> (8 * i));
  for (size_t block = 0; block < bytes.size(); block += 64) {
    std::array<uint32_t, 64> w;
    for (size_t i = 0; i < 16; ++i) {
      w[i] = 0;
      for (size_t b = 0; b < 4; ++b) w[i] = w[i] << 8 | static_cast<uint8_t>(bytes[block + 4 * i + b]);
    }
    const auto r = [](uint32_t x, int n) { return std::rotr(x, n); };
    for (size_t i = 16; i < 64; ++i)
      w[i] = w[i - 16] + (r(w[i - 15], 7) ^ r(w[i - 15], 18) ^ (w[i - 15] >> 3)) + w[i - 7] +
             (r(w[i - 2], 17) ^ r(w[i - 2], 19) ^ (w[i - 2] >> 10));
    auto s = h;
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t t1 =
          s[7] + (r(s[4], 6) ^ r(s[4], 11) ^ r(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
      const uint32_t t2 = (r(s[0], 2) ^ r(s[0], 13) ^ r(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      s = {t1 + t2, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
    }
    for (size_t i = 0; i < 8; ++i) h[i] += s[i];
  }
  std::string hex;
  for (const uint32_t x : h)
    for (int i = 28; i >= 0; i -= 4) hex += "0123456789abcdef"[x >> i & 15];
  return hex;
}

const std::string units_dir = "../model/units/";

int32_t count_distinct(const std::vector<int32_t>& map) {
  return static_cast<int32_t>(std::set<int32_t>(map.begin(), map.end()).size());
}

} // namespace

TEST_CASE("token_map: texts normalise as the golden pairs say") {
  golden_chat::document doc(units_dir + "normalize.json");
  int n = 0;
  for (const auto pair : golden_chat::list(doc.root)) {
    const auto parts = golden_chat::list(pair);
    CHECK_MESSAGE(normalise_token_text(golden_chat::text(parts[0])) == golden_chat::text(parts[1]),
                  golden_chat::text(parts[0]));
    ++n;
  }
  MESSAGE("normalisation pairs: " << n);
  CHECK(n > 50);
}

TEST_CASE("token_map: the released tokenizer has exactly the golden map") {
  golden_chat::document doc(units_dir + "engram_token_map_real.json");
  const auto map = compressed_token_map(*golden_chat::real_tokenizer());
  CHECK(static_cast<int64_t>(map.size()) == doc.root["n_ids"].get_int64().value());
  CHECK(count_distinct(map) == doc.root["n_compressed"].get_int64().value());
  CHECK(map[2] == doc.root["pad_compressed"].get_int64().value());
  const simdjson::dom::object samples = doc.root["samples"].get_object().value();
  for (const auto field : samples)
    CHECK_MESSAGE(map[std::stoul(std::string(field.key))] == field.value.get_int64().value(), field.key);
  std::string bytes;
  for (const int32_t id : map)
    for (int i = 0; i < 4; ++i) bytes += static_cast<char>(static_cast<uint32_t>(id) >> (8 * i));
  CHECK(sha256_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_of(bytes) == golden_chat::text(doc.root["sha256_of_int32_le_map"]));
}

TEST_CASE("token_map: the tiny model's map has the size its config says") {
  const auto map = compressed_token_map(*golden_chat::tiny_tokenizer());
  CHECK(map.size() == 2048);
  CHECK(count_distinct(map) == 1702);
}
