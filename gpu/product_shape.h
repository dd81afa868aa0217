// How the bands of a byte product (byte_product.cuh) are cut among blocks.
#pragma once

#include "storage/check.h"

#include <algorithm>
#include <cstdint>

namespace troupe {

constexpr int product_warps = 8; // of a block, that multiply: two a scheduler; one more copies
constexpr int blocks_a_multiprocessor = 3;

// How many blocks share a line of at most `n_items` items of `bands` bands.
struct product_shape {
  static constexpr int system_shared_bytes = 1024;          // of each block's shared memory, from sm_80 on
  static constexpr int group_ints = 4 * 32 * product_warps; // of sums of four rows: main and rest of 128 columns
  int n_groups, n_blocks, n_multiprocessors;                // n_groups: of four rows that any column has at most
  product_shape(int64_t n_items, int bands, int most_rows, int multiprocessors)
      : n_groups(most_rows <= 4 ? 1 : 2), n_blocks(blocks_for(n_items, bands, multiprocessors)),
        n_multiprocessors(multiprocessors) {
    TROUPE_CHECK(n_items * bands < int64_t{1} << 32, "the bands of a line are counted in 32 bits");
  }
  // Costs in bands of a multiprocessor (55 ns of an H200): parts of an item meet in device memory and the last one
  // finishes it, 3 us, 1 us if it was whole; a part that goes over the edge of an item ends twice. So blocks end at
  // edges where that leaves no multiprocessor long without work, else the line is cut evenly. One or two blocks hide
  // latencies worse than three.
  static int blocks_for(int64_t n_items, int bands, int n_multiprocessors) {
    constexpr int64_t whole_cost = 20, part_cost = 55, edge_cost = 30, percent[] = {0, 125, 105, 100};
    const int64_t n_bands = n_items * bands, most = int64_t{blocks_a_multiprocessor} * n_multiprocessors;
    const auto turns_of = [&](int64_t n_blocks) { return (n_blocks + n_multiprocessors - 1) / n_multiprocessors; };
    const int64_t even = std::clamp<int64_t>(n_bands / product_warps, 1, most);
    int64_t best = even;
    int64_t cost =
        n_bands / std::min<int64_t>(even, n_multiprocessors) * percent[turns_of(even)] / 100 + part_cost + edge_cost;
    for (int64_t parts = 1; n_items * parts <= most && bands / parts >= product_warps; ++parts) {
      if (bands % parts != 0) continue;
      const int64_t n_blocks = n_items * parts, turns = turns_of(n_blocks);
      const int64_t at = turns * (bands / parts) * percent[turns] / 100 + (parts == 1 ? whole_cost : part_cost);
      if (at < cost) cost = at, best = n_blocks;
    }
    return static_cast<int>(best);
  }
  // Of shared memory that a block takes at least where there are `n_lines` such lines, so that no multiprocessor gets
  // more of the blocks than its share: where a third one came to one, 4096 x 1024 eight times over took 14 us for 10
  // (H200).
  int least_shared_bytes(int n_lines, int of_multiprocessor) const {
    const int turns = (n_blocks * n_lines + n_multiprocessors - 1) / n_multiprocessors;
    return turns >= blocks_a_multiprocessor ? 0 : of_multiprocessor / (turns + 1) - system_shared_bytes + 16;
  }
  // u32 that are zero before and after: sums of cut items and a counter, for each block.
  int64_t zeros_a_line(int parts) const { return n_blocks * (int64_t{parts} * n_groups * group_ints + 1); }
};

} // namespace troupe
