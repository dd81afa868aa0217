// Philox4x32-10, a random function of a counter: the same key and counter give the same numbers on every machine and in
// any order. Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, sections 3.3
// and 4.
#pragma once

#include <array>
#include <cstdint>

namespace troupe {

// 128 random bits for a counter of 128 bits and a key of 64.
constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9; // the golden ratio and sqrt(3) - 1, the paper's Weyl constants
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// A number in [0, 1) with 53 bits, of (seed, choice, position) alone (api.md 2.1, `seed`).
constexpr double random_unit(uint64_t seed, int32_t choice, int64_t position) {
  const auto at = static_cast<uint64_t>(position);
  const auto bits =
      philox({static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), static_cast<uint32_t>(choice), 0},
             {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<double>(uint64_t{bits[0]} << 21 | bits[1] >> 11) * 0x1p-53;
}

} // namespace troupe
