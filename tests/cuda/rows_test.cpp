// Tables and rows on the device against the host twins.
#include "gpu/formats.h"
#include "tests/cuda/alone.h"

namespace troupe::test {
namespace {

std::vector<uint16_t> half_words(dtype type, const std::vector<float>& v) {
  std::vector<uint16_t> words;
  for (float x : v) words.push_back(type == dtype::bf16 ? f32_to_bf16(x) : f32_to_f16(x));
  return words;
}

TEST_CASE("cuda rows: embedding gathers table rows of every type, and zeros for ids outside") {
  twins t;
  for (int64_t dim : {1, 37, 96, 5120})
    for (dtype type : {dtype::f32, dtype::bf16, dtype::f16}) {
      const int64_t n_table = 11, first = 100;
      const auto values = random_floats(n_table * dim, 7, 100);
      const auto table = type == dtype::f32 ? t.make(type, {n_table, dim}, values)
                                            : t.make(type, {n_table, dim}, half_words(type, values));
      std::vector<int32_t> ids{100, 110, 99, 111, 105, 0, 105};
      while (ids.size() < 33) ids.push_back(100 + static_cast<int32_t>(ids.size() % 12));
      for (int64_t n : {1, 3, 33}) {
        const auto which = t.ints({n}, std::vector<int32_t>(ids.begin(), ids.begin() + n));
        const auto y = t.output({n, dim});
        t.run([&](backend& b) { b.embed(t.of(b, y), t.of(b, table), first, t.of(b, which)); });
        t.equal("embed", y);
      }
    }
}

TEST_CASE("cuda rows: half floats of every bit pattern become the numbers of the twin") {
  twins t;
  for (dtype type : {dtype::bf16, dtype::f16}) {
    std::vector<uint16_t> all(65536);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    const auto table = t.make(type, {1, 65536}, all), y = t.output({1, 65536}), id = t.ints({1}, {0});
    t.run([&](backend& b) { b.embed(t.of(b, y), t.of(b, table), 0, t.of(b, id)); });
    t.equal("embed, all patterns", y);
  }
}

TEST_CASE("cuda rows: copies go from listed rows to listed rows, whatever a row weighs") {
  twins t;
  const std::vector<int32_t> to{4, 0, 9, 2}, from{1, 1, 7, 0};
  for (int64_t width : {1, 3, 37, 1024}) {
    for (dtype type : {dtype::u8, dtype::i32, dtype::bf16}) {
      const int64_t n_bytes = 10 * width * size_bytes(type);
      std::vector<uint8_t> bytes(static_cast<size_t>(n_bytes));
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 + 11);
      const auto x = t.make(type, {10, width}, bytes);
      const auto y_rows = t.ints({4}, to), x_rows = t.ints({4}, from);
      for (int lists = 0; lists < 4; ++lists) {
        const auto y = t.output({10, width}, type);
        t.run([&](backend& b) {
          b.copy_rows(t.of(b, y), lists & 1 ? t.of(b, y_rows) : tensor(), t.of(b, x),
                      lists & 2 ? t.of(b, x_rows) : tensor());
        });
        t.equal("copy_rows", y);
      }
    }
  }
}

TEST_CASE("cuda rows: sums, factors and spreading have the bits of the twin") {
  twins t;
  for (int64_t n : {1, 3, 33})
    for (int64_t dim : {1, 37, 96, 5120}) {
      const auto y = t.floats({n, dim}, 1), x = t.floats({n, dim}, 2), h = t.output({n, 3, dim});
      t.run([&](backend& b) {
        b.add(t.of(b, y), t.of(b, x));
        b.scale(t.of(b, y), 0.3F);
        b.spread(t.of(b, h), t.of(b, x));
      });
      t.equal("add and scale", y);
      t.equal("spread", h);
    }
}

TEST_CASE("cuda rows: no rows do nothing") {
  twins t;
  const auto y = t.floats({2, 8}, 1), x = t.floats({2, 8}, 2);
  t.run([&](backend& b) {
    const tensor to = t.of(b, y).slice(0, 0), from = t.of(b, x).slice(0, 0);
    b.copy_rows(to, {}, from, {});
    b.add(to, from);
    b.scale(to, 2);
    b.rms_norm(to, from, t.of(b, x).slice(0, 1).reshape({8}), 1e-6F);
  });
  t.equal("no rows", y);
}

} // namespace
} // namespace troupe::test
