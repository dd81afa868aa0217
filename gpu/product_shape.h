// How the bands of a byte product (byte_product.cuh) are cut among blocks.
#pragma once

#include "storage/check.h"

#include <algorithm>
#include <cstdint>

namespace troupe {

constexpr int product_warps = 8; // of a block, that multiply: two a scheduler; one more copies
constexpr int blocks_a_multiprocessor = 3;
constexpr int slot_ints = 8 * 2 * 128; // of a part's sums

// How many blocks share a line of at most `n_columns` columns, and the most columns that one of them touches.
struct product_shape {
  int n_groups, n_blocks, max_segments; // n_groups: of four rows that any column has at most
  product_shape(int64_t n_columns, int rows, int most_rows, int n_multiprocessors)
      : n_groups(most_rows <= 4 ? 1 : 2), n_blocks(blocks_for(n_columns, rows, n_multiprocessors)),
        max_segments(static_cast<int>((n_columns + n_blocks - 1) / n_blocks) + 2) {
    TROUPE_CHECK(n_columns * rows * n_blocks < int64_t{1} << 32, "the bands of a line are counted in 32 bits");
  }
  // Costs in bands of a multiprocessor: a block's start and end as much as about 40, and as much again where its part
  // goes over the edge of a column, for it hands in twice. So blocks end at edges where that leaves no multiprocessor
  // long without work, else the line is cut evenly. One or two blocks hide latencies worse than three (from 16384 x
  // 16384 on an H200).
  static int blocks_for(int64_t n_columns, int rows, int n_multiprocessors) {
    constexpr int64_t end_cost = 40, percent[] = {0, 160, 115, 100};
    const int64_t n_bands = n_columns * rows, most = int64_t{blocks_a_multiprocessor} * n_multiprocessors;
    const auto turns_of = [&](int64_t n_blocks) { return (n_blocks + n_multiprocessors - 1) / n_multiprocessors; };
    const int64_t even = std::clamp<int64_t>(
        std::max<int64_t>(n_bands / end_cost, std::min<int64_t>(n_bands / product_warps, n_multiprocessors)), 1, most);
    int64_t best = even;
    int64_t cost = n_bands / std::min<int64_t>(even, n_multiprocessors) * percent[turns_of(even)] / 100 + 2 * end_cost;
    for (int64_t parts = 1; n_columns * parts <= most && rows / parts >= product_warps; ++parts) {
      if (rows % parts != 0) continue;
      const int64_t n_blocks = n_columns * parts, turns = turns_of(n_blocks);
      const int64_t at = turns * (rows / parts) * percent[turns] / 100 + (parts == 1 ? end_cost / 2 : end_cost);
      if (at < cost) cost = at, best = n_blocks;
    }
    return static_cast<int>(best);
  }
  int64_t slot_bytes() const { return static_cast<int64_t>(n_blocks) * max_segments * slot_ints * 4; }
};

} // namespace troupe
