// How byte products are cut among blocks.
#include "gpu/product_shape.h"

#include <doctest/doctest.h>

using namespace troupe;

namespace {
constexpr int multiprocessors = 132, resident = blocks_a_multiprocessor * multiprocessors;
}

TEST_CASE("product_shape: blocks fit on the device at once, and no block is without work") {
  for (const int bands : {8, 80, 144, 256, 320, 512, 640, 1024})
    for (const int64_t items : {1, 2, 14, 40, 64, 108, 128, 256, 397, 1010}) {
      const product_shape s(items, bands, 1, multiprocessors);
      INFO("items " << items << ", bands " << bands);
      CHECK(s.n_blocks >= 1);
      CHECK(s.n_blocks <= resident);
      CHECK(s.n_blocks <= items * bands);
    }
}

TEST_CASE("product_shape: parts end at the edges of items where that costs little") {
  const auto blocks = [](int64_t items, int bands) { return product_shape(items, bands, 1, multiprocessors).n_blocks; };
  CHECK(blocks(256, 80) == 256);        // 1280 x 32768: a column each
  CHECK(blocks(64, 256) == 4 * 64);     // eight times 4096 x 1024
  CHECK(blocks(14, 320) == 16 * 14);    // 5120 x 1792
  CHECK(blocks(240, 144) == 240);       // down of six experts: a column each
  CHECK(blocks(108, 640) == resident);  // gate and up of six experts: long enough to be cut evenly
  CHECK(blocks(128, 1024) == resident); // 16384 x 16384
  CHECK(blocks(1010, 320) == resident); // the head: too many columns
}

TEST_CASE("product_shape: no multiprocessor has room for more blocks than its share") {
  constexpr int shared = 228 * 1024, of_block = product_shape::system_shared_bytes;
  const auto most_blocks = [](int64_t items, int bands, int n_lines) {
    const int bytes = product_shape(items, bands, 1, multiprocessors).least_shared_bytes(n_lines, shared);
    CHECK(bytes <= shared - of_block);
    return bytes == 0 ? blocks_a_multiprocessor : shared / (bytes + of_block);
  };
  CHECK(most_blocks(1, 512, 1) == 1);    // 64 blocks
  CHECK(most_blocks(64, 256, 1) == 2);   // 256
  CHECK(most_blocks(64, 256, 2) == 3);   // and as many again
  CHECK(most_blocks(128, 1024, 1) == 3); // all that fit
}

TEST_CASE("product_shape: runs of thousands of rows are one line, up to 2^32 bands") {
  CHECK(product_shape(int64_t{1728} * 18, 640, 4, multiprocessors).n_blocks == resident);
  CHECK(product_shape((int64_t{1} << 32) / 640 - 1, 640, 4, multiprocessors).n_blocks == resident);
}

TEST_CASE("product_shape: zeros have room for the sums of every block's cut item and its counter") {
  const product_shape few(14, 320, 4, multiprocessors), many(14, 320, 5, multiprocessors);
  CHECK(few.zeros_a_line(1) == few.n_blocks * (4 * 256 + 1)); // main and rest of four rows and 128 columns
  CHECK(many.zeros_a_line(1) == many.n_blocks * (8 * 256 + 1));
  CHECK(many.zeros_a_line(2) == many.n_blocks * (16 * 256 + 1));
}
