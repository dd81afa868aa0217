// The numbers of a synthetic checkpoint: any element of a tensor from its law, its key and its place, in integer and
// IEEE arithmetic alone, so that a seed gives the same bytes on every machine, whatever the pieces they are made in.
#pragma once

#include "storage/dtype.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace troupe::deepseek_v41 {

using shared_numbers = std::shared_ptr<const std::vector<float>>; // shared by the laws of many tensors

// How the elements of one tensor are distributed.
struct synth_law {
  enum class kind : uint8_t {
    words,     // every bit random
    normal,    // deviation `level`
    scales,    // magnitude `level` * 2^(`spread` * normal), with random signs where `has_signs`
    codes,     // e4m3 codes of a triangular distribution up to +-255, deviation 104.5; never NaN
    exponents, // e8m0: 2^-8, 2^-7 or 2^-6, so that `codes` times these have a deviation near 1
    table,     // as listed in `numbers`
    marker,    // the 32 bits of `mark`
  };
  kind what = kind::words;
  bool has_signs = false, has_zeros = false; // scales; one in 4096 is exactly 0
  double level = 1, spread = 0;
  shared_numbers channels = nullptr; // normal, scales: element i is multiplied by channels[i % size]; null: by 1
  shared_numbers numbers = nullptr;  // table
  uint32_t mark = 0;
};

// A key for each name under a seed.
uint64_t synth_key(uint64_t seed, std::string_view name);

// The random 64-bit word at `place` of the sequence of a key.
uint64_t synth_word(uint64_t key, uint64_t place);
// About normal, deviation 1, at most 3.5: the sum of the four bytes of `word`, as the mul1 codebook makes it.
double synth_normal(uint32_t word);

// Bytes [byte_offset, + out.size()) of a tensor. Precondition: `type` is one that the law can be stored in: words,
// codes, exponents and markers are bits; the others F32, BF16 or F16.
void synth_bytes(const synth_law&, dtype type, uint64_t key, uint64_t byte_offset, std::span<std::byte> out);

} // namespace troupe::deepseek_v41
