// How byte products are cut among blocks.
#include "gpu/product_shape.h"

#include <doctest/doctest.h>

using namespace troupe;

namespace {
constexpr int multiprocessors = 132, resident = blocks_a_multiprocessor * multiprocessors;
}

TEST_CASE("product_shape: blocks fit on the device at once, and no block is without work") {
  for (const int rows : {8, 80, 144, 256, 320, 512, 1024})
    for (const int64_t columns : {1, 2, 14, 40, 64, 128, 216, 256, 397, 1010}) {
      const product_shape s(columns, rows, 1, multiprocessors);
      INFO("columns " << columns << ", bands " << rows);
      CHECK(s.n_blocks >= 1);
      CHECK(s.n_blocks <= resident);
      CHECK(s.n_blocks <= columns * rows);
      const int64_t most_bands = (columns * rows + s.n_blocks - 1) / s.n_blocks;
      CHECK(s.max_segments >= (most_bands + rows - 2) / rows + 1); // columns that a part of so many bands touches
    }
}

TEST_CASE("product_shape: parts end at the edges of columns where that costs little") {
  const auto blocks = [](int64_t columns, int rows) {
    return product_shape(columns, rows, 1, multiprocessors).n_blocks;
  };
  CHECK(blocks(256, 80) == 256);        // 1280 x 32768: a column each
  CHECK(blocks(64, 256) == 4 * 64);     // eight times 4096 x 1024
  CHECK(blocks(14, 320) == 16 * 14);    // 5120 x 1792
  CHECK(blocks(40, 512) == 8 * 40);     // 8192 x 5120
  CHECK(blocks(128, 1024) == resident); // 16384 x 16384: long enough to be cut evenly
  CHECK(blocks(1010, 320) == resident); // the head: too many columns
}
