// Rotation against golden tables; attention, rings, pairs and paged caches against the formulas.
#include "gpu/attention.h"

#include "tests/golden_file.h"
#include "tests/near.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace troupe;

namespace {

// Rows of one sequence from `start` in slot 0, its blocks 1, 0.
struct one_sequence {
  std::vector<int32_t> slot, first_row, table, blocks{1, 0};
  std::vector<int64_t> position, floor;
  step_rows rows;

  one_sequence(int64_t n, int64_t start, int64_t lowest = 0)
      : slot(n), first_row(n), table(n), position(n), floor(n, lowest) {
    for (int64_t i = 0; i < n; ++i) position[i] = start + i;
    rows.slot = tensor(slot.data(), dtype::i32, {n});
    rows.first_row = tensor(first_row.data(), dtype::i32, {n});
    rows.table = tensor(table.data(), dtype::i32, {n});
    rows.position = tensor(position.data(), dtype::i64, {n});
    rows.floor = tensor(floor.data(), dtype::i64, {n});
    rows.tables = tensor(blocks.data(), dtype::i32, {1, 2});
  }
};

// One head of one dimension: with q = 0 every visible row weighs the same, so the output shows who was seen.
std::vector<float> mean_seen(int64_t n, int64_t start, std::vector<float> step, std::vector<float> ring, int64_t window,
                             attention_args::visibility seen, int64_t floor = 0) {
  one_sequence s(n, start, floor);
  std::vector<float> q(n), o(n), sink{-INFINITY};
  attention_args a;
  a.q = tensor(q.data(), dtype::f32, {n, 1, 1});
  a.o = tensor(o.data(), dtype::f32, {n, 1, 1});
  a.step_kv = tensor(step.data(), dtype::f32, {n, 1});
  a.rings = tensor(ring.data(), dtype::f32, {1, static_cast<int64_t>(ring.size()), 1});
  a.sink = tensor(sink.data(), dtype::f32, {1});
  a.window = window;
  a.seen = seen;
  attention_host(a, s.rows);
  return o;
}

} // namespace

TEST_CASE("attention: rotation agrees with the golden tables up to position 1048575") {
  test::golden_file want(test::golden_in_tree("model") / "units/rope_real.safetensors");
  const tensor positions32 = want.get("positions");
  const int64_t n = positions32.n_elements(), dim = want.get("x").shape[1];
  std::vector<int64_t> positions(positions32.i32(), positions32.i32() + n);
  for (const std::string kind : {"window.", "compressed."}) {
    const tensor f = want.get(kind + "freqs");
    for (const char* part : {"angles", "cos", "sin"})
      want.information_only(kind + part); // the turned vectors hold them
    for (const bool inverse : {false, true}) {
      std::vector<float> x = want.floats("x");
      rope_host(tensor(x.data(), dtype::f32, {n, 1, dim}), tensor(positions.data(), dtype::i64, {n}), f, inverse);
      CHECK(test::relative_error(x, want.floats(kind + (inverse ? "rope_x_inverse" : "rope_x"))) < 1e-6);
    }
  }
  CHECK(want.unused().empty());
}

TEST_CASE("attention: a causal row sees its window, older rows from the ring, none below the floor") {
  using seen = attention_args::visibility;
  // Position p holds 10 p; ring of 4 with positions 1..4 written, the step is 5, 6, 7.
  const std::vector<float> ring{40, 10, 20, 30};
  CHECK(mean_seen(3, 5, {50, 60, 70}, ring, 3, seen::causal) == std::vector<float>{40, 50, 60});
  CHECK(mean_seen(3, 5, {50, 60, 70}, ring, 3, seen::causal, 5) == std::vector<float>{50, 55, 60});
  CHECK(mean_seen(2, 0, {8, 10}, ring, 3, seen::causal) == std::vector<float>{8, 9});
}

TEST_CASE("attention: a draft row sees the ring below the block and all of its block") {
  using seen = attention_args::visibility;
  const std::vector<float> ring{40, 10, 20, 30};
  CHECK(mean_seen(2, 5, {50, 60}, ring, 2, seen::draft_block) == std::vector<float>{45, 45});
  CHECK(mean_seen(2, 5, {50, 60}, ring, 2, seen::draft_block, 5) == std::vector<float>{55, 55});
}

TEST_CASE("attention: a row that sees nothing gives zeros, a sink only takes weight away") {
  one_sequence s(1, 5, 6); // floor above the row itself
  std::vector<float> q{1}, o{7}, kv{2}, ring(4), sink{0};
  attention_args a;
  a.q = tensor(q.data(), dtype::f32, {1, 1, 1});
  a.o = tensor(o.data(), dtype::f32, {1, 1, 1});
  a.step_kv = tensor(kv.data(), dtype::f32, {1, 1});
  a.rings = tensor(ring.data(), dtype::f32, {1, 4, 1});
  a.sink = tensor(sink.data(), dtype::f32, {1});
  a.window = 1;
  attention_host(a, s.rows);
  CHECK(o[0] == 0);
  s.floor[0] = 0;
  attention_host(a, s.rows); // score 2, sink 0: 2 e^2 / (e^2 + e^0)
  CHECK(o[0] == doctest::Approx(2 * std::exp(2.0) / (std::exp(2.0) + 1)));
}

TEST_CASE("attention: selected entries come from the sequence's own blocks and are not de-duplicated") {
  one_sequence s(1, 5);
  std::vector<float> q{0}, o{0}, kv{3}, ring(4), sink{-INFINITY}, cache{100, 200, 10, 20}; // blocks 0, 1 of two entries
  std::vector<int32_t> selected{0, 3, -1}; // entry 0: block 1, place 0; entry 3: block 0, place 1
  attention_args a;
  a.q = tensor(q.data(), dtype::f32, {1, 1, 1});
  a.o = tensor(o.data(), dtype::f32, {1, 1, 1});
  a.step_kv = tensor(kv.data(), dtype::f32, {1, 1});
  a.rings = tensor(ring.data(), dtype::f32, {1, 4, 1});
  a.compressed = tensor(cache.data(), dtype::f32, {2, 2, 1});
  a.selected = tensor(selected.data(), dtype::i32, {1, 3});
  a.sink = tensor(sink.data(), dtype::f32, {1});
  a.window = 1;
  attention_host(a, s.rows);
  CHECK(o[0] == doctest::Approx((3 + 10 + 200) / 3.0));
}

TEST_CASE("compress_pairs: a pair gives the same bits in one step, in two, and again after rejected rows") {
  std::vector<float> u{1, 2, 3, 4}, g{0.5F, -1, 2, 2}, c(4), pending(2 * 2), cut(4);
  const auto view = [](std::vector<float>& v, int64_t first, int64_t n) {
    return tensor(v.data() + first, dtype::f32, {n, 1});
  };
  const tensor held(pending.data(), dtype::f32, {1, 2, 2, 1});
  one_sequence all(4, 0), one(1, 2), two(1, 3), rejected(1, 4);
  compress_pairs_host(view(c, 0, 4), view(u, 0, 4), view(g, 0, 4), held, all.rows);
  CHECK(c[1] == doctest::Approx((std::exp(0.5) * 1 + std::exp(-1.0) * 2) / (std::exp(0.5) + std::exp(-1.0))));
  CHECK(c[3] == doctest::Approx(3.5));
  compress_pairs_host(view(cut, 2, 1), view(u, 2, 1), view(g, 2, 1), held, one.rows);
  compress_pairs_host(view(cut, 0, 1), view(u, 0, 1), view(g, 0, 1), held, rejected.rows); // position 4 is taken back
  compress_pairs_host(view(cut, 3, 1), view(u, 3, 1), view(g, 3, 1), held, two.rows);
  CHECK(cut[3] == c[3]);
}

TEST_CASE("write_rings: of a long step the last rows stay; scatter leaves rows without an entry alone") {
  one_sequence s(6, 1);
  std::vector<float> x{1, 2, 3, 4, 5, 6}, ring(4), cache(4, -1);
  write_rings_host(tensor(ring.data(), dtype::f32, {1, 4, 1}), tensor(x.data(), dtype::f32, {6, 1}), s.rows);
  CHECK(ring == std::vector<float>{4, 5, 6, 3});
  std::vector<int32_t> entries{-1, 0, -1, 1, -1, 2};
  scatter_entries_host(tensor(cache.data(), dtype::f32, {2, 2, 1}), tensor(x.data(), dtype::f32, {6, 1}),
                       tensor(entries.data(), dtype::i32, {6}), quantiser::fp4_e4m3_16, s.rows);
  CHECK(cache == std::vector<float>{6, -1, 2, 4}); // entries 0, 1 in block 1, entry 2 in block 0
}
