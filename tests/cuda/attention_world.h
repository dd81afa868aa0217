// Sequences, their caches and steps of rows of them, for tests of attention.
#pragma once

#include "tests/cuda/twins.h"

#include <algorithm>
#include <cmath>

namespace troupe::test {

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
  // Queries and keys are normal numbers times these, and scores are divided by both; queries of odd heads are smaller
  // by 2^-30.
  float query_by = 1, key_by = 1;
};
using key_form = shape::key_form;

inline constexpr int64_t ring_rows = 256, entries = 8, table_width = 128, ratio = 2;

struct world {
  twins t;
  const shape& s;
  twin_tensor q, step_kv, rings, compressed, sink;
  std::vector<int32_t> selected; // of all rows, (R, k)
  int64_t n_rows = 0, n_slots = 1;

  explicit world(const shape& of, int64_t scratch_bytes = 64 << 20) : t(scratch_bytes), s(of) {
    for (const run_of_rows& run : s.runs) n_rows += run.n, n_slots = std::max<int64_t>(n_slots, run.slot + 1);
    auto queries = random_floats(n_rows * s.heads * s.dim, 1);
    if (s.query_by != 1)
      for (size_t i = 0; i < queries.size(); ++i)
        queries[i] *= static_cast<int64_t>(i) / s.dim % 2 == 0 ? s.query_by : s.query_by * 0x1p-30F;
    q = t.make(dtype::f32, {n_rows, s.heads, s.dim}, queries);
    step_kv = keys(1, n_rows, 2, quantiser::fp8_32, false).reshape({n_rows, s.dim});
    rings = keys(n_slots, ring_rows, 3, quantiser::fp8_32, true);
    compressed = keys(s.k == 0 ? 1 : n_slots * table_width, entries, 4, quantiser::fp4_e4m3_16, true);
    sink = t.floats({s.heads}, 5);
    std::mt19937 bits(6);
    for (const run_of_rows& run : s.runs)
      for (int64_t i = 0; i < run.n; ++i) select(std::min((run.first + i + 1) / ratio, table_width * entries), bits);
  }
  twin_tensor keys(int64_t n, int64_t rows, unsigned seed, quantiser how, bool cached) {
    auto v = random_floats(n * rows * s.dim, seed, s.key_by);
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

  struct step {
    int64_t before, n_rows;                                              // rows of the world
    twin_tensor slot, position, first_row, floor, table, tables, chosen; // chosen: selected of these rows
    step_rows of(twins& t, backend& b) const {
      return {t.of(b, slot), t.of(b, position), t.of(b, first_row), t.of(b, floor), t.of(b, table), t.of(b, tables)};
    }
  };
  // Runs [first, first + n) as a step of their own.
  step step_of(size_t first, size_t n) {
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
    twin_tensor chosen;
    if (s.k > 0)
      chosen = t.ints({rows, s.k}, {selected.begin() + before * s.k, selected.begin() + (before + rows) * s.k});
    return {before,
            rows,
            t.ints({rows}, slot),
            t.longs({rows}, position),
            t.ints({rows}, first_row),
            t.longs({rows}, floor),
            t.ints({rows}, table),
            t.ints({static_cast<int64_t>(n), table_width}, tables),
            chosen};
  }
  attention_args args(backend& b, const step& at, const twin_tensor& o) const {
    attention_args a;
    a.o = t.of(b, o), a.q = t.of(b, q.slice(at.before, at.n_rows));
    a.step_kv = t.of(b, step_kv.slice(at.before, at.n_rows));
    a.rings = t.of(b, rings), a.sink = t.of(b, sink), a.window = s.window, a.seen = s.how;
    a.scale = 1.0F / std::sqrt(static_cast<float>(s.dim)) / s.query_by / s.key_by;
    if (s.k > 0) a.compressed = t.of(b, compressed), a.selected = t.of(b, at.chosen);
    return a;
  }
  void attend(backend& b, const step& at, const twin_tensor& o) { b.attention(args(b, at, o), at.of(t, b)); }
  // The output of runs [first, first + n) in a step of their own, of the device alone.
  std::vector<float> attend(size_t first, size_t n) {
    const step at = step_of(first, n);
    const twin_tensor o = t.output({at.n_rows, s.heads, s.dim});
    attend(*t.device, at, o);
    return t.read_device(o);
  }
  void set_class(row_class rows) {
    t.device->set_row_classes(rows == row_class::prefill ? std::span<const row_run>(all_prefill)
                                                         : std::span<const row_run>());
  }
};

inline std::vector<run_of_rows> sequences(int32_t n, int64_t first, int64_t n_rows) {
  std::vector<run_of_rows> runs;
  for (int32_t i = 0; i < n; ++i) runs.push_back({i, first + 31 * i, n_rows});
  return runs;
}

} // namespace troupe::test
