// The EXL3 bit stream on the device: a tile's words -> the eight 16-bit states of a lane.       Spec: exl3.md 4, 13.5.
#pragma once

#include "gpu/backend.h"

#include <cstdint>

namespace troupe {

// A rate of 2 K = `Rate` half bits: which bits of a tile a lane needs. Lane l owns weights 8 l .. 8 l + 7; weight e of
// them ends end(e) bits after the lane's first own bit.
template <int Rate> struct trellis_rate {
  static constexpr int tile_words = 4 * Rate;
  static constexpr int lane_bits = 4 * Rate; // a lane's own bits
  static constexpr int n_bits = 128 * Rate;
  static __host__ __device__ constexpr int end(int e) {
    return (e + 1) * (Rate / 2) + (Rate % 2 != 0 ? (e + 1) / 2 : 0);
  }
  static __host__ __device__ constexpr int offset(int e) {
    return end(e) - end(0);
  }                                           // of window e in the lane's chunk of bits
  static constexpr int span = offset(7) + 16; // bits of that chunk
  static __host__ __device__ constexpr int first_bit(int lane) {
    return (lane_bits * lane + end(0) - 16 + n_bits) % n_bits;
  }
  // The words that any lane's chunk lies in.
  static __host__ __device__ constexpr int most_words() {
    int most = 2;
    for (int lane = 0; lane < 32; ++lane)
      while (first_bit(lane) % 32 + span > 32 * most) ++most;
    return most;
  }

  // Windows are cut from 32-bit pieces of the chunk; a piece serves those that begin in its first 17 bits. Which piece
  // window e is cut from, and where each begins: the first at 0, a later one so that its last window ends it.
  static __host__ __device__ constexpr int piece(int e) {
    int at = 0, begin = 0; // `begin`: of the first window of the piece
    for (int i = 1; i <= e; ++i)
      if (offset(i) - begin > 16) {
        ++at;
        begin = offset(i);
      }
    return at;
  }
  static constexpr int n_pieces = piece(7) + 1;
  static __host__ __device__ constexpr int piece_begin(int at) {
    if (at == 0) return 0;
    int last = 0;
    for (int e = 0; e < 8; ++e)
      if (piece(e) == at) last = offset(e);
    return last - 16;
  }
};

// Where a lane's chunk lies in every tile of a rate.
template <int Rate> struct lane_windows {
  using rate = trellis_rate<Rate>;
  static constexpr int n_words = rate::most_words(); // of a lane
  static_assert(rate::n_pieces <= 3);
  static_assert(n_words <= 3, "K = 7.5, which no codebook has, would need a fourth");
  int word[n_words];
  int shift; // of the chunk in the first of them

  __device__ explicit lane_windows(int lane) {
    const int first = rate::first_bit(lane);
    shift = first % 32;
#pragma unroll
    for (int i = 0; i < n_words; ++i) word[i] = (first / 32 + i) % rate::tile_words;
  }

  // Window e from its piece: a left shift to the next byte, which may go to the multiplier's pipe, and a byte pick, so
  // that few instructions fall to the pipe that bounds the loop (exl3.md 13.5).
  // Spread: every second shift goes to the other pipe by its name.
  template <int E, bool Spread>
  static __device__ __forceinline__ uint32_t window(const uint32_t (&piece)[rate::n_pieces]) {
    constexpr int at = rate::offset(E) - rate::piece_begin(rate::piece(E));
    static_assert(at >= 0 && at <= 16, "a window lies in its piece");
    constexpr uint32_t pick = at / 8 == 0 ? 0x4432 : at / 8 == 1 ? 0x4421 : 0x4410;
    uint32_t moved = piece[rate::piece(E)] << (at % 8);
    if constexpr (Spread && E % 2 == 1 && at % 8 != 0)
      asm("shf.l.clamp.b32 %0, %1, %2, %3;" : "=r"(moved) : "r"(0), "r"(piece[rate::piece(E)]), "n"(at % 8));
    return __byte_perm(moved, 0, pick);
  }

  template <int I> static __device__ __forceinline__ uint32_t later_piece(const uint32_t (&chunk)[3]) {
    constexpr int begin = rate::piece_begin(I); // a number here: as an argument it was worked out in every tile
    return __funnelshift_l(chunk[begin / 32 + 1], chunk[begin / 32], begin % 32);
  }

  // The words of this lane. tile: the words of one tile in shared memory.
  __device__ __forceinline__ void load(const uint32_t* tile, uint32_t (&w)[n_words]) const {
#pragma unroll
    for (int i = 0; i < n_words; ++i) w[i] = tile[word[i]];
  }
  __device__ __forceinline__ void states(const uint32_t* tile, uint32_t (&s)[8]) const {
    uint32_t w[n_words];
    load(tile, w);
    cut(w, s);
  }
  template <bool Spread = false>
  __device__ __forceinline__ void cut(const uint32_t (&w)[n_words], uint32_t (&s)[8]) const {
    uint32_t piece[rate::n_pieces];
    piece[0] = __funnelshift_l(w[1], w[0], shift);
    if constexpr (n_words == 2) {
      constexpr int begin = rate::piece_begin(1);
      // At most 32, for which the clamping form gives the second word.
      if constexpr (rate::n_pieces == 2) piece[1] = __funnelshift_lc(w[1], w[0], shift + begin);
    } else { // from the chunk as words of its own: a shift costs less than another word of the tile
      const uint32_t chunk[3] = {piece[0], __funnelshift_l(w[2], w[1], shift), w[2] << shift};
      if constexpr (rate::n_pieces > 1) piece[1] = later_piece<1>(chunk);
      if constexpr (rate::n_pieces > 2) piece[2] = later_piece<2>(chunk);
    }
    s[0] = window<0, Spread>(piece);
    s[1] = window<1, Spread>(piece);
    s[2] = window<2, Spread>(piece);
    s[3] = window<3, Spread>(piece);
    s[4] = window<4, Spread>(piece);
    s[5] = window<5, Spread>(piece);
    s[6] = window<6, Spread>(piece);
    s[7] = window<7, Spread>(piece);
  }
};

// Calls f.template operator()<Rate>() for a rate that passed check_trellis.
template <stored_matrix::codebook Book, class F> void with_rate(int32_t rate, const F& f) {
  switch (rate) {
  case 2: return f.template operator()<2>();
  case 4: return f.template operator()<4>();
  case 6: return f.template operator()<6>();
  case 8: return f.template operator()<8>();
  case 10: return f.template operator()<10>();
  case 12: return f.template operator()<12>();
  case 14: return f.template operator()<14>();
  case 16: return f.template operator()<16>();
  default: break;
  }
  if constexpr (Book == stored_matrix::codebook::mul1) { // half rates exist in this codebook only
    switch (rate) {
    case 3: return f.template operator()<3>();
    case 5: return f.template operator()<5>();
    case 7: return f.template operator()<7>();
    default: break;
    }
  }
  TROUPE_CHECK(false, "a matrix whose rate passed check_trellis has a kernel");
}

} // namespace troupe
