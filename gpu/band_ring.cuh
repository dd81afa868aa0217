// What a block of a byte product (byte_product.cuh) reads: its part of the line of bands, and the ring in shared memory
// that they come through.
#pragma once

#include "gpu/product_shape.h"

namespace troupe {

// Groups: of four rows, 1 or 2. A warp holds the sums of a whole band where registers allow (one group, K <= 5), else
// of half of it: three blocks a multiprocessor hide latencies that two do not (90 us against 80 for 16384 x 16384 at
// K = 5 by half bands, H200); a fourth brings nothing.
template <int Rate, int Groups> struct band_ring {
  static constexpr int band_bytes = 128 * Rate, code_bytes = 128 * Groups;
  static constexpr int warp_tiles = Groups == 1 && Rate <= 10 ? 8 : 4; // of a band's eight
  static constexpr int registers = 72;                                 // what three blocks of nine warps leave
  static constexpr int room = 56 * 1024;
  // Two bands a warp where two stages fit: 3 to 6 % faster than one.
  static constexpr int stage_bands = (4 * product_warps * (band_bytes + code_bytes) <= room ? 2 : 1) * product_warps;
  static constexpr int stage_bytes = stage_bands * (band_bytes + code_bytes); // packed weights, then codes
  static constexpr int n_stages = room / stage_bytes > 8 ? 8 : room / stage_bytes > 1 ? room / stage_bytes : 2;
};

// A line of items of `bands` bands each; block b has [begin(b), begin(b + 1)). total stays below 2^32.
struct band_line {
  uint32_t total, bands, base, extra; // base, extra: total / n_blocks and what is left over
  __device__ band_line(uint32_t items, uint32_t an_item, uint32_t n_blocks)
      : total(items * an_item), bands(an_item), base(total / n_blocks), extra(total % n_blocks) {}
  __device__ uint32_t begin(uint32_t block) const { return block * base + min(block, extra); }
  // The block whose part holds band x.
  __device__ uint32_t block_of(uint32_t x) const {
    const uint32_t longer = extra * (base + 1);
    return x < longer ? x / (base + 1) : extra + (x - longer) / base;
  }
};

} // namespace troupe
