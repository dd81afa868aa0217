// What fills the caches, on the device against the host twins.
#include "tests/cuda/alone.h"

#include <cmath>

namespace troupe::test {
namespace {

// A run of rows of one sequence: `n` of them from position `first` on.
struct run_of_rows {
  int32_t slot;
  int64_t first, n;
};

struct twin_step {
  twin_tensor slot, position, first_row, floor, table, tables;
  int64_t n = 0;
  step_rows of(twins& t, backend& b) const {
    return {t.of(b, slot), t.of(b, position), t.of(b, first_row), t.of(b, floor), t.of(b, table), t.of(b, tables)};
  }
};

// Sequence i of the step has row i of the tables: blocks spread over 24, none shared.
twin_step make_step(twins& t, const std::vector<run_of_rows>& runs) {
  std::vector<int32_t> slot, first_row, table, tables;
  std::vector<int64_t> position;
  for (const run_of_rows& run : runs) {
    const auto first = static_cast<int32_t>(slot.size()), index = static_cast<int32_t>(&run - runs.data());
    for (int64_t i = 0; i < run.n; ++i) {
      slot.push_back(run.slot);
      first_row.push_back(first);
      table.push_back(index);
      position.push_back(run.first + i);
    }
    for (int32_t b = 0; b < 6; ++b) tables.push_back((b * 4 + index) * 7 % 24);
  }
  twin_step s;
  s.n = static_cast<int64_t>(slot.size());
  s.slot = t.ints({s.n}, slot);
  s.position = t.longs({s.n}, position);
  s.first_row = t.ints({s.n}, first_row);
  s.floor = t.longs({s.n}, std::vector<int64_t>(slot.size(), 0));
  s.table = t.ints({s.n}, table);
  s.tables = t.ints({static_cast<int64_t>(runs.size()), 6}, tables);
  return s;
}

const std::vector<std::vector<run_of_rows>> steps{
    {{0, 0, 1}},
    {{2, 7, 1}},
    {{1, 5, 3}},
    {{0, 9, 1}, {3, 4, 2}, {1, 1, 5}},
    {{3, 0, 33}},
    {{2, 17, 64}, {0, 6, 1}, {1, 13, 40}},
    {{0, 1, 200}, {3, 2, 200}, {1, 1000001, 9}},
};

TEST_CASE("cuda cache: rotation is near the twin at every position, there and back") {
  twins t;
  struct shape {
    int64_t heads, dim, n;
  };
  for (const auto [heads, dim, n] : {shape{1, 64, 32}, {64, 512, 32}, {3, 37, 18}, {5, 37, 3}, {1, 2, 1}, {9, 96, 24}})
    for (int64_t rows : {1, 3, 33}) {
      std::vector<float> frequencies;
      for (int64_t i = 0; i < n; ++i)
        frequencies.push_back(std::pow(10000.0F, -static_cast<float>(i) / static_cast<float>(n)));
      std::vector<int64_t> positions{1048575, 0, -1, 1, 7, 105615, 105616, 999999, 524287};
      while (positions.size() < 33) positions.push_back(static_cast<int64_t>(positions.size()) * 31337);
      positions.resize(static_cast<size_t>(rows));
      const auto f = t.make(dtype::f32, {n}, frequencies);
      const auto p = t.longs({rows}, positions);
      for (bool inverse : {false, true}) {
        const auto x = t.floats({rows, heads, dim}, 40);
        const auto original = t.read_device(x);
        t.run([&](backend& b) { b.rope(t.of(b, x), t.of(b, p), t.of(b, f), inverse); });
        t.near("rope", x, 1e-6);
        alone_equals_together(
            "rope", t, x,
            [&](backend& b, int64_t first, int64_t count) {
              b.rope(x.device.slice(first, count), p.device.slice(first, count), f.device, inverse);
            },
            [&] { t.device->upload(x.device, original.data(), x.device.size_bytes()); });
      }
    }
}

TEST_CASE("cuda cache: entries land in the blocks of their sequences") {
  twins t;
  for (const auto& runs : steps)
    for (int64_t dim : {37, 96, 512}) {
      const twin_step s = make_step(t, runs);
      std::vector<int32_t> entries; // of every sequence: none, 0, none, 1, .. as far as 6 blocks of 5 reach
      for (const run_of_rows& run : runs)
        for (int64_t i = 0; i < run.n; ++i) entries.push_back(i % 2 == 1 && i < 60 ? static_cast<int32_t>(i / 2) : -1);
      const auto x = t.floats({s.n, dim}, 41), cache = t.output({24, 5, dim}), e = t.ints({s.n}, entries);
      t.run([&](backend& b) {
        b.scatter_entries(t.of(b, cache), t.of(b, x), t.of(b, e), quantiser::fp4_e4m3_16, s.of(t, b));
      });
      t.equal("scatter_entries", cache);
    }
}

// Rows of many magnitudes, some poisoned, as a quantiser leaves them.
std::vector<float> rounded_rows(int64_t n, int64_t dim, quantiser how) {
  auto v = random_floats(n * dim, 46);
  for (size_t i = 0; i < v.size(); ++i) v[i] = std::ldexp(v[i], static_cast<int>(i / 48 * 7 % 61) - 40);
  if (n > 2) v[static_cast<size_t>(dim) + 5] = NAN, v[static_cast<size_t>(2 * dim) + 2] = -INFINITY;
  return quantised(std::move(v), dim, how);
}

TEST_CASE("cuda cache: records have the bytes of the twin's") {
  twins t;
  for (const auto& runs : steps)
    for (const quantiser how : {quantiser::fp8_32, quantiser::fp4_e8m0_32, quantiser::fp4_e4m3_16})
      for (const int64_t dim : {32, 64, 96, 512, 992}) {
        const twin_step s = make_step(t, runs);
        std::vector<int32_t> entries;
        for (const run_of_rows& run : runs)
          for (int64_t i = 0; i < run.n; ++i) entries.push_back(i < 30 ? static_cast<int32_t>(i) : -1);
        const auto x = t.make(dtype::f32, {s.n, dim}, rounded_rows(s.n, dim, how)), e = t.ints({s.n}, entries);
        const auto cache = t.output({24, 5, record_bytes(how, dim)}, dtype::u8);
        t.run([&](backend& b) { b.scatter_entries(t.of(b, cache), t.of(b, x), t.of(b, e), how, s.of(t, b)); });
        t.equal("scatter_entries, records", cache);
        if (how != quantiser::fp8_32) continue;
        const auto rings = t.output({4, 33, record_bytes(how, dim)}, dtype::u8);
        t.run([&](backend& b) { b.write_rings(t.of(b, rings), t.of(b, x), s.of(t, b)); });
        t.equal("write_rings, records", rings);
      }
}

TEST_CASE("cuda cache: of the rows that share a place of a ring the newest stays") {
  twins t;
  for (const auto& runs : steps)
    for (int64_t ring : {1, 4, 33, 128})
      for (int64_t dim : {37, 512}) {
        const twin_step s = make_step(t, runs);
        const auto x = t.floats({s.n, dim}, 42), rings = t.output({4, ring, dim});
        t.run([&](backend& b) { b.write_rings(t.of(b, rings), t.of(b, x), s.of(t, b)); });
        t.equal("write_rings", rings);
      }
}

TEST_CASE("cuda cache: pairs are compressed with the bits of the twin, and the newest even rows are kept") {
  twins t;
  for (const auto& runs : steps)
    for (int64_t pairs : {1, 2, 5, 9})
      for (int64_t dim : {37, 512}) {
        const twin_step s = make_step(t, runs);
        const auto u = t.floats({s.n, dim}, 43), g = t.floats({s.n, dim}, 44, 4);
        const auto c = t.output({s.n, dim}), pending = t.floats({4, pairs, 2, dim}, 45);
        t.run([&](backend& b) { b.compress_pairs(t.of(b, c), t.of(b, u), t.of(b, g), t.of(b, pending), s.of(t, b)); });
        t.equal("compress_pairs", c);
        t.equal("pending pairs", pending);
      }
}

} // namespace
} // namespace troupe::test
