// Decoding EXL3 weights into registers and multiplying them with rows in shared memory: what the readers of
// trellis_gemm.cuh do.                                                                    Spec: exl3.md 13.6.
#pragma once

#include "gpu/copy_ring.cuh"
#include "gpu/trellis_block.cuh"
#include "gpu/wgmma.cuh"

#include <utility>

namespace troupe {

#if defined(TROUPE_WGMMA)

// Two weights as a pair of f16, the first in the low half.
template <stored_matrix::codebook Book> __device__ __forceinline__ uint32_t decode_pair(uint32_t s0, uint32_t s1) {
  const auto bits = [](__half2 v) { return *reinterpret_cast<const uint32_t*>(&v); };
  const auto pair = [](uint32_t v) { return *reinterpret_cast<const __half2*>(&v); };
  if constexpr (Book == stored_matrix::codebook::mul1) {
    const uint32_t a = __dp4a(s0 * 0x83DCD12DU, 0x01010101U, 0x6400U),
                   b = __dp4a(s1 * 0x83DCD12DU, 0x01010101U, 0x6400U);
    return bits(__hfma2(pair(__byte_perm(a, b, 0x5410)), pair(0x1EEE1EEEU), pair(0xC931C931U)));
  } else {
    const auto masked = [](uint32_t s) {
      const uint32_t x = Book == stored_matrix::codebook::mcg ? s * 0xCBAC1FEDU : s * 89226354U + 64248484U;
      return (x & 0x8FFF8FFFU) ^ 0x3B603B60U;
    };
    const uint32_t a = masked(s0), b = masked(s1);
    return bits(__hadd2(pair(__byte_perm(a, b, 0x5410)), pair(__byte_perm(a, b, 0x7632))));
  }
}

// Where a warp of readers is in the ring (gemm_shared), as addresses in shared memory. A step is 223 instructions at
// K = 3, 168 of them windows, codebook and loads; with generic pointers it was 229.
template <int Rate, class Shared> class stage_reader {
public:
  static constexpr int n_words = lane_windows<Rate>::n_words;
  using words = uint32_t[4][n_words]; // of a lane, in the four tiles of 64 inputs

  // warp: 0 .. 7, a tile column each.
  __device__ stage_reader(const Shared& s, int warp, const lane_windows<Rate>& windows)
      : rows_(wgmma::descriptor(s.x[0])), full_(shared_address(s.ring.full)) {
#pragma unroll
    for (int i = 0; i < n_words; ++i)
      word_[i] = shared_address(s.w[0]) + static_cast<uint32_t>(warp * 16 * Rate + windows.word[i] * 4);
  }
  __device__ __forceinline__ void wait_full() const { wait_at(full_ + 8 * stage_, parity_); }
  // The lane's words of the tile of inputs 16 t .. 16 t + 15.
  template <int T> __device__ __forceinline__ void load(uint32_t (&w)[n_words]) const {
#pragma unroll
    for (int i = 0; i < n_words; ++i)
      asm volatile("ld.shared.u32 %0, [%1 + %2];"
                   : "=r"(w[i])
                   : "r"(word_[i] + stage_ * Shared::w_bytes), "n"(T * 128 * Rate)
                   : "memory");
  }
  // Descriptor of the rows' first 16 inputs; the next 16: + 2.
  __device__ __forceinline__ uint32_t rows() const { return rows_ + stage_ * (Shared::x_bytes >> 4); }
  __device__ __forceinline__ void next() {
    const bool wraps = stage_ == Shared::stages - 1;
    stage_ = wraps ? 0 : stage_ + 1;
    parity_ ^= wraps ? 1 : 0;
  }
  // The whole warp: it has read the stage before this one.
  __device__ __forceinline__ void release_last() const {
    __syncwarp(); // what the other lanes loaded comes before the arrival of one
    if (threadIdx.x % 32 == 0) arrive_at(full_ + 8 * (Shared::stages - 1 + (stage_ == 0 ? Shared::stages : stage_)));
  }

private:
  uint32_t word_[n_words], rows_, full_; // of stage 0
  uint32_t stage_ = 0, parity_ = 0;
};

// Adds all 64-input steps of an item of up to N rows to d. Rows of x past the item's are what was in shared memory:
// they reach only their own columns of d, which nobody stores. Two products make a group; while it runs, the next two
// tiles are decoded.
template <int Rate, stored_matrix::codebook Book, int N, class Reader>
__device__ __forceinline__ void multiply_item(float* d, Reader& at, const lane_windows<Rate>& windows, int k_steps) {
  // 236 clocks a step for 249 at 160 rows, 213 for 217 at 128; 324 for 319 at 256, and slower for few (K = 3, H200).
  constexpr bool spread = N > 64 && N < 256;
  for (int k = 0; k < k_steps; ++k) {
    at.wait_full();
    typename Reader::words words;
    at.template load<0>(words[0]);
    at.template load<1>(words[1]);
    at.template load<2>(words[2]);
    at.template load<3>(words[3]);
    const uint32_t x = at.rows();
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      uint32_t a[2][4];
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        uint32_t states[8];
        windows.template cut<spread>(words[2 * pair + t], states);
        a[t][0] = decode_pair<Book>(states[0], states[1]);
        a[t][1] = decode_pair<Book>(states[4], states[5]);
        a[t][2] = decode_pair<Book>(states[2], states[3]);
        a[t][3] = decode_pair<Book>(states[6], states[7]);
      }
      wgmma::fence();
#pragma unroll
      for (int t = 0; t < 2; ++t) wgmma::multiply(wgmma::rows<N>(), d, a[t], x + 4 * pair + 2 * t);
      wgmma::commit();
      wgmma::wait<1>();
      if (pair == 0 && k > 0) at.release_last();
    }
    at.next();
  }
  wgmma::wait<0>();
  at.release_last();
}

// With as few columns of products as the item has rows for, of N and More; the least first.
template <int Rate, stored_matrix::codebook Book, class Reader, int N, int... More>
__device__ __forceinline__ void multiply_least(float* d, Reader& at, const lane_windows<Rate>& windows, int k_steps,
                                               int n_rows, std::integer_sequence<int, N, More...>) {
  if constexpr (sizeof...(More) > 0)
    if (n_rows > N)
      return multiply_least<Rate, Book>(d, at, windows, k_steps, n_rows, std::integer_sequence<int, More...>());
  multiply_item<Rate, Book, N>(d, at, windows, k_steps);
}

template <int Rate, stored_matrix::codebook Book, int Rows, class Reader>
__device__ __forceinline__ void multiply_any(float* d, Reader& at, const lane_windows<Rate>& windows, int k_steps,
                                             int n_rows) {
  constexpr bool of_experts =
      Rate == 4 || Rate == 6; // their segments have any number of rows; with 152 too, registers do not last
  if constexpr (Rows < 256)
    multiply_item<Rate, Book, Rows>(d, at, windows, k_steps);
  else if constexpr (of_experts)
    multiply_least<Rate, Book>(d, at, windows, k_steps, n_rows,
                               std::integer_sequence<int, 96, 112, 120, 128, 136, 144, 160, 192, 256>());
  else
    multiply_least<Rate, Book>(d, at, windows, k_steps, n_rows, std::integer_sequence<int, 96, 128, 160, 192, 256>());
}

#endif

} // namespace troupe
