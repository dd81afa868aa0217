// Attention on the device against its host twin.
#include "tests/cuda/twins.h"

#include <algorithm>
#include <cmath>

namespace troupe::test {
namespace {

using seen = attention_args::visibility;

// A run of rows of one sequence: `n` of them from position `first` on, seeing nothing below `floor`.
struct run_of_rows {
  int32_t slot;
  int64_t first, n, floor = 0;
};

struct shape {
  const char* what;
  int64_t heads, dim, window, k; // k 0: no selected entries
  seen how;
  std::vector<run_of_rows> runs;
  enum class key_form { any, eight_bits, rounded, records } keys = key_form::any; // rounded: by the cache quantisers
};
using key_form = shape::key_form;

constexpr int64_t ring_rows = 256, n_slots = 40, entries = 8, table_width = 128, ratio = 2;

struct world {
  twins t;
  const shape& s;
  twin_tensor q, step_kv, rings, compressed, sink;
  std::vector<int32_t> selected; // of all rows, (R, k)
  int64_t n_rows = 0;

  explicit world(const shape& of) : s(of) {
    for (const run_of_rows& run : s.runs) n_rows += run.n;
    q = t.floats({n_rows, s.heads, s.dim}, 1);
    step_kv = keys(1, n_rows, 2, quantiser::fp8_32, false).reshape({n_rows, s.dim});
    rings = keys(n_slots, ring_rows, 3, quantiser::fp8_32, true);
    compressed = keys(s.k == 0 ? 1 : n_slots * table_width, entries, 4, quantiser::fp4_e4m3_16, true);
    sink = t.floats({s.heads}, 5);
    std::mt19937 bits(6);
    for (const run_of_rows& run : s.runs)
      for (int64_t i = 0; i < run.n; ++i) select(std::min((run.first + i + 1) / ratio, table_width * entries), bits);
  }
  twin_tensor keys(int64_t n, int64_t rows, unsigned seed, quantiser how, bool cached) {
    auto v = random_floats(n * rows * s.dim, seed);
    if (s.keys == key_form::eight_bits)
      for (float& x : v) x = std::round(x * 16) / 16;
    if (s.keys >= key_form::rounded) v = quantised(std::move(v), s.dim, how);
    if (s.keys == key_form::records && cached)
      return t.make(dtype::u8, {n, rows, record_bytes(how, s.dim)}, records_of(v, s.dim, how));
    return t.make(dtype::f32, {n, rows, s.dim}, v);
  }
  void select(int64_t n_visible, std::mt19937& bits) {
    std::vector<int32_t> all(static_cast<size_t>(n_visible)), some;
    for (size_t e = 0; e < all.size(); ++e) all[e] = static_cast<int32_t>(e);
    std::sample(all.begin(), all.end(), std::back_inserter(some), s.k, bits);
    some.resize(static_cast<size_t>(s.k), -1);
    selected.insert(selected.end(), some.begin(), some.end());
  }

  // The output of runs [first, first + n) in a step of their own.
  twin_tensor attend(size_t first, size_t n) {
    std::vector<int32_t> slot, first_row, table, tables;
    std::vector<int64_t> position, floor;
    int64_t before = 0;
    for (size_t i = 0; i < first; ++i) before += s.runs[i].n;
    for (size_t i = first; i < first + n; ++i) {
      const run_of_rows& run = s.runs[i];
      const auto begin = static_cast<int32_t>(slot.size());
      for (int64_t j = 0; j < run.n; ++j) {
        slot.push_back(run.slot), first_row.push_back(begin), table.push_back(static_cast<int32_t>(i - first));
        position.push_back(run.first + j), floor.push_back(run.floor);
      }
      for (int64_t b = 0; b < table_width; ++b)
        tables.push_back(static_cast<int32_t>((run.slot * table_width + b) * 7 % (n_slots * table_width)));
    }
    const auto rows = static_cast<int64_t>(slot.size());
    const auto slots = t.ints({rows}, slot), firsts = t.ints({rows}, first_row), in_table = t.ints({rows}, table);
    const auto positions = t.longs({rows}, position), floors = t.longs({rows}, floor);
    const auto blocks = t.ints({static_cast<int64_t>(n), table_width}, tables);
    twin_tensor chosen;
    if (s.k > 0)
      chosen = t.ints({rows, s.k}, {selected.begin() + before * s.k, selected.begin() + (before + rows) * s.k});
    const twin_tensor o = t.output({rows, s.heads, s.dim});
    t.run([&](backend& b) {
      attention_args a;
      a.o = t.of(b, o), a.q = t.of(b, q.slice(before, rows)), a.step_kv = t.of(b, step_kv.slice(before, rows));
      a.rings = t.of(b, rings), a.sink = t.of(b, sink), a.window = s.window, a.seen = s.how;
      a.scale = 1.0F / std::sqrt(static_cast<float>(s.dim));
      if (s.k > 0) a.compressed = t.of(b, compressed), a.selected = t.of(b, chosen);
      b.attention(a, {t.of(b, slots), t.of(b, positions), t.of(b, firsts), t.of(b, floors), t.of(b, in_table),
                      t.of(b, blocks)});
    });
    return o;
  }
};

std::vector<run_of_rows> sequences(int32_t n, int64_t first, int64_t n_rows) {
  std::vector<run_of_rows> runs;
  for (int32_t i = 0; i < n; ++i) runs.push_back({i, first + 31 * i, n_rows});
  return runs;
}

const std::vector<shape> shapes{
    {"real, one row", 64, 512, 128, 512, seen::causal, sequences(1, 1900, 1)},
    {"real, one row, short keys", 64, 512, 128, 512, seen::causal, sequences(1, 1900, 1), key_form::eight_bits},
    {"real, window only", 64, 512, 128, 0, seen::causal, {{0, 0, 1}, {1, 5, 2}, {2, 500, 3}}},
    {"real, large tiles", 64, 512, 128, 512, seen::causal, sequences(33, 900, 1)},
    {"real, chunks", 64, 512, 128, 512, seen::causal, {{0, 0, 40}, {1, 700, 3}, {2, 1200, 30}}, key_form::eight_bits},
    {"real, draft blocks", 64, 512, 128, 0, seen::draft_block, {{0, 200, 6}, {1, 3, 5}, {2, 0, 1}}},
    {"records, one row", 64, 512, 128, 512, seen::causal, sequences(1, 1900, 1), key_form::records},
    {"records, large tiles", 64, 512, 128, 512, seen::causal, sequences(33, 900, 1), key_form::records},
    {"records, chunks", 64, 512, 128, 512, seen::causal, {{0, 0, 40}, {1, 700, 3}, {2, 1200, 30}}, key_form::records},
    {"records, draft blocks", 64, 512, 128, 0, seen::draft_block, {{0, 200, 6}, {1, 3, 5}}, key_form::records},
    {"records, tiny", 4, 96, 8, 5, seen::causal, {{0, 0, 3}, {1, 7, 1}, {2, 300, 33}}, key_form::records},
    {"records, narrow", 6, 32, 16, 8, seen::causal, {{0, 0, 3}, {1, 70, 1}, {2, 300, 130}}, key_form::records},
    {"one of everything", 1, 1, 1, 1, seen::causal, {{3, 0, 1}}},
    {"tiny", 4, 96, 8, 5, seen::causal, {{0, 0, 3}, {1, 7, 1}, {2, 300, 33}}},
    {"odd", 3, 37, 5, 7, seen::causal, {{0, 2, 3}, {1, 90, 9, 95}, {2, 64, 1, 80}}},
    {"seventeen heads", 17, 20, 33, 130, seen::causal, {{0, 250, 1}, {1, 999, 3}}},
    {"many short rows", 3, 40, 9, 3, seen::causal, sequences(35, 20, 4)},
    {"odd draft blocks", 5, 18, 6, 3, seen::draft_block, {{0, 10, 33}, {1, 4, 3}, {4, 0, 64}, {5, 77, 1, 90}}},
};

TEST_CASE("cuda attention: every row is near the twin") {
  for (const shape& s : shapes) {
    world w(s);
    w.t.near(("attention, " + std::string(s.what)).c_str(), w.attend(0, s.runs.size()), 3e-5);
  }
}

TEST_CASE("cuda attention: a sequence alone has the bits it has among others") {
  for (const shape& s : shapes) {
    world w(s);
    const auto together = w.t.read_device(w.attend(0, s.runs.size()));
    std::vector<float> alone;
    for (size_t i = 0; i < s.runs.size(); ++i) {
      const auto one = w.t.read_device(w.attend(i, 1));
      alone.insert(alone.end(), one.begin(), one.end());
    }
    CHECK_MESSAGE(std::memcmp(alone.data(), together.data(), alone.size() * sizeof(float)) == 0, s.what);
  }
}

TEST_CASE("cuda attention: caches of records give the bits of caches of floats") {
  for (const shape& s : shapes) {
    if (s.keys != key_form::records) continue;
    shape as_floats = s;
    as_floats.keys = key_form::rounded;
    world records(s), floats(as_floats);
    CHECK_MESSAGE(records.t.read_device<uint32_t>(records.attend(0, s.runs.size())) ==
                      floats.t.read_device<uint32_t>(floats.attend(0, s.runs.size())),
                  s.what);
  }
}

TEST_CASE("cuda attention: a row that sees nothing gives zeros") {
  const shape blind{"blind", 2, 8, 4, 0, seen::causal, {{0, 5, 1, 6}}};
  world w(blind);
  CHECK(w.t.read_device(w.attend(0, 1)) == std::vector<float>(16, 0.0F));
}

} // namespace
} // namespace troupe::test
