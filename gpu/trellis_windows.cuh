// The EXL3 bit stream on the device: a tile's words -> the eight 16-bit states of a lane.       Spec: exl3.md 4, 13.5.
#pragma once

#include "gpu/backend.h"

#include <cstdint>

namespace troupe {

// A rate of 2 K = `Rate` half bits: which bits of a tile a lane needs. Lane l owns weights 8 l .. 8 l + 7; weight e of
// them ends end(e) bits after the lane's first own bit.
template <int Rate> struct trellis_rate {
  static constexpr int n_words = 4 * Rate;   // u32 of a tile
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
  static __host__ __device__ constexpr bool three_words() {
    for (int lane = 0; lane < 32; ++lane)
      if (first_bit(lane) % 32 + span > 64) return true;
    return false;
  }
};

// Where a lane's chunk lies in every tile of a rate.
template <int Rate> struct lane_windows {
  using rate = trellis_rate<Rate>;
  int word[3];
  int shift;

  __device__ explicit lane_windows(int lane) {
    const int first = (rate::lane_bits * lane + rate::end(0) - 16 + rate::n_bits) % rate::n_bits;
    shift = first % 32;
    for (int i = 0; i < 3; ++i) word[i] = (first / 32 + i) % rate::n_words;
  }

  // Bits [first, first + 16) of the chunk r[0], r[1], r[2], most significant first.
  template <int First> static __device__ __forceinline__ uint32_t window(const uint32_t (&r)[3]) {
    constexpr int of = First / 32, at = First % 32;
    if constexpr (at + 16 <= 32) {
      constexpr uint32_t pick = at / 8 == 0 ? 0x4432 : at / 8 == 1 ? 0x4421 : 0x4410;
      return __byte_perm(r[of] << (at % 8), 0, pick);
    } else {
      return __funnelshift_l(r[of + 1], r[of], at) >> 16;
    }
  }

  // tile: the words of one tile in shared memory.
  __device__ __forceinline__ void states(const uint32_t* tile, uint32_t (&s)[8]) const {
    const uint32_t w0 = tile[word[0]], w1 = tile[word[1]];
    uint32_t r[3];
    r[0] = __funnelshift_l(w1, w0, shift);
    if constexpr (rate::three_words()) {
      const uint32_t w2 = tile[word[2]];
      r[1] = __funnelshift_l(w2, w1, shift);
      r[2] = w2 << shift;
    } else {
      r[1] = w1 << shift;
      r[2] = 0;
    }
    s[0] = window<rate::offset(0)>(r);
    s[1] = window<rate::offset(1)>(r);
    s[2] = window<rate::offset(2)>(r);
    s[3] = window<rate::offset(3)>(r);
    s[4] = window<rate::offset(4)>(r);
    s[5] = window<rate::offset(5)>(r);
    s[6] = window<rate::offset(6)>(r);
    s[7] = window<rate::offset(7)>(r);
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
