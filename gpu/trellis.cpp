// Twin of every EXL3 decoder: windows by position, codebook by table, Hadamards in f64.
#include "gpu/trellis.h"

#include "gpu/codebook.h"
#include "gpu/formats.h"
#include "gpu/hadamard.h"

#include <cmath>
#include <fmt/format.h>
#include <stdexcept>

namespace troupe {
namespace {

// Bits of a tile: 16 K words of u16 give 256 K bits. Half rates have a word count of 24, 40 or 56.
bool is_rate(int64_t n_words, stored_matrix::codebook book) {
  if (n_words % 16 == 0) return n_words >= 16 && n_words <= 128;
  return book == stored_matrix::codebook::mul1 && (n_words == 24 || n_words == 40 || n_words == 56);
}

[[noreturn]] void refuse(const stored_matrix& m, const std::string& what) {
  throw std::runtime_error(fmt::format("{}: {}", m.name, what));
}

void check_vector(const stored_matrix& m, const tensor& v, const char* which, int64_t n) {
  if (!v || v.rank != 1 || v.shape[0] != n || v.type != dtype::f16)
    refuse(m, fmt::format("{} is expected as ({}) F16, found ({}) {}", which, n, v ? v.n_elements() : 0, name(v.type)));
  for (int64_t i = 0; i < n; ++i)
    if (!std::isfinite(f16_to_f32(v.as<uint16_t>()[i])))
      refuse(m, fmt::format("{}[{}] is not a finite number", which, i));
}

} // namespace

void trellis_states(std::span<const uint16_t> words, std::span<uint16_t, 256> states) {
  const uint32_t n_bits = static_cast<uint32_t>(words.size()) * 16; // 256 K
  const uint32_t whole = n_bits / 256;
  const bool half = n_bits % 256 != 0;
  // 32-bit words are read most significant bit first: u16 number q of that order is the other one of its pair.
  const auto word = [&](uint32_t q) -> uint32_t { return words[q ^ 1U]; };
  uint32_t end = 0;
  for (uint32_t t = 0; t < 256; ++t) {
    end += whole + (half ? t & 1U : 0U); // odd weights of a half rate own one bit more
    const uint32_t first = (end + n_bits - 16) % n_bits;
    const uint32_t q = first / 16, next = (q + 1) * 16 == n_bits ? 0 : q + 1;
    const uint32_t pair = (word(q) << 16) | word(next);
    states[t] = static_cast<uint16_t>(pair >> (16 - first % 16));
  }
}

void check_trellis(const stored_matrix& m) {
  const tensor& t = m.trellis;
  if (!t || t.rank != 3 || t.type != dtype::i16)
    refuse(m, fmt::format("trellis is expected with 3 dimensions of I16, found {} of {}", t.rank, name(t.type)));
  const int64_t k = t.shape[0] * trellis_tile, n = t.shape[1] * trellis_tile;
  if (!is_rate(t.shape[2], m.book))
    refuse(m, fmt::format("trellis has {} words a tile with codebook {}, expected 16 K for K = 1 to 8, or 24, 40, 56 "
                          "with mul1",
                          t.shape[2], name(m.book)));
  if (k == 0 || n == 0 || k % hadamard_block != 0 || n % hadamard_block != 0)
    refuse(m, fmt::format("trellis is {} x {}, expected multiples of {}", k, n, hadamard_block));
  if (m.in != k || m.out != n)
    refuse(m, fmt::format("trellis is {} x {} (in x out), expected {} x {}", k, n, m.in, m.out));
  check_vector(m, m.suh, "suh", k);
  check_vector(m, m.svh, "svh", n);
}

std::vector<float> decode_trellis(const stored_matrix& m) {
  const int64_t n_bands = m.trellis.shape[0], n_tiles = m.trellis.shape[1], n_words = m.trellis.shape[2];
  const int64_t n = n_tiles * trellis_tile;
  const std::span<const float> values = codebook_table(m.book);
  std::vector<float> q(static_cast<size_t>(n_bands * trellis_tile * n));
  uint16_t states[256];
  for (int64_t i = 0; i < n_bands; ++i)
    for (int64_t j = 0; j < n_tiles; ++j) {
      const uint16_t* words = m.trellis.as<uint16_t>() + (i * n_tiles + j) * n_words;
      trellis_states({words, static_cast<size_t>(n_words)}, states);
      float* tile = q.data() + i * trellis_tile * n + j * trellis_tile;
      for (int t = 0; t < 256; ++t) tile[trellis_row(t) * n + trellis_column(t)] = values[states[t]];
    }
  return q;
}

std::vector<float> decode_exl3(const stored_matrix& m) {
  std::vector<float> w = decode_trellis(m);
  const int64_t k = m.in, n = m.out;
  const double norm = 1.0 / hadamard_block; // two transforms of 1 / sqrt(128) each
  std::vector<double> block(static_cast<size_t>(hadamard_block * hadamard_block));
  for (int64_t i = 0; i < k; i += hadamard_block)
    for (int64_t j = 0; j < n; j += hadamard_block) {
      for (int r = 0; r < hadamard_block; ++r)
        for (int c = 0; c < hadamard_block; ++c) block[r * hadamard_block + c] = w[(i + r) * n + j + c];
      hadamard_both_sides(block.data());
      for (int r = 0; r < hadamard_block; ++r) {
        const double row_scale = norm * f16_to_f32(m.suh.as<uint16_t>()[i + r]);
        for (int c = 0; c < hadamard_block; ++c)
          w[(i + r) * n + j + c] =
              static_cast<float>(block[r * hadamard_block + c] * row_scale * f16_to_f32(m.svh.as<uint16_t>()[j + c]));
      }
    }
  return w;
}

} // namespace troupe
