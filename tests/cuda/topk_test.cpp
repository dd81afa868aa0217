// Index scores and selection on the device: the bits of the host twin.
#include "tests/cuda/twins.h"

#include <cmath>
#include <limits>

namespace troupe::test {
namespace {

struct shape {
  const char* what;
  int64_t heads, dim, entries, table_width, ratio, k;
  std::vector<int64_t> positions;                   // row i is of sequence i / rows_a_sequence
  int64_t candidate_block = 0, n_out = 0, n_in = 0; // candidate blocks made or used
  // scaled: groups of 32 of magnitudes so different that sums round
  enum class key_values { normal, few, strange, scaled } values = key_values::normal;
  bool raw = false;
  enum class key_form { any, rounded, records } form = key_form::any;
  int64_t rows_a_sequence = 1;
};
using key_form = shape::key_form;
using key_values = shape::key_values;

struct world {
  twins t;
  const shape& s;
  twin_tensor q, weight, keys, table, positions, tables, in, selected, out, scores;

  explicit world(const shape& of, int64_t scratch_bytes = 64 << 20) : t(scratch_bytes), s(of) {
    const auto n = static_cast<int64_t>(s.positions.size());
    const int64_t n_sequences = (n + s.rows_a_sequence - 1) / s.rows_a_sequence, n_blocks = n_sequences * s.table_width;
    auto values = random_floats(n_blocks * s.entries * s.dim, 1), queries = random_floats(n * s.heads * s.dim, 2);
    if (s.values == key_values::few || s.values == key_values::strange) // many equal scores
      for (auto* v : {&values, &queries})
        for (float& x : *v) x = std::clamp(std::round(x), -1.0F, 1.0F);
    if (s.values == key_values::scaled)
      for (auto* v : {&values, &queries})
        for (size_t i = 0; i < v->size(); ++i) (*v)[i] = std::ldexp((*v)[i], static_cast<int>(i / 32 * 5 % 17) - 8);
    if (s.values == key_values::strange)
      for (size_t i = 0; i < values.size(); i += 5 * static_cast<size_t>(s.dim) + 1)
        values[i] = i % 3 == 0 ? std::numeric_limits<float>::quiet_NaN() : i % 3 == 1 ? INFINITY : -0.0F;
    constexpr auto how = quantiser::fp4_e8m0_32;
    if (s.form != key_form::any)
      values = quantised(std::move(values), s.dim, how), queries = quantised(std::move(queries), s.dim, how);
    if (s.form == key_form::records)
      keys = t.make(dtype::u8, {n_blocks, s.entries, record_bytes(how, s.dim)}, records_of(values, s.dim, how));
    else
      keys = t.make(dtype::f32, {n_blocks, s.entries, s.dim}, values);
    q = t.make(dtype::f32, {n, s.heads, s.dim}, queries);
    auto weights = random_floats(n * s.heads, 3);
    if (s.values == key_values::few || s.values == key_values::strange)
      for (float& x : weights) x = std::round(x);
    weight = t.make(dtype::f32, {n, s.heads}, weights);
    std::vector<int32_t> rows, blocks, candidates;
    for (int64_t r = 0; r < n; ++r) {
      // A sequence's blocks are in another row of the tables.
      rows.push_back(static_cast<int32_t>(n_sequences - 1 - r / s.rows_a_sequence));
      int64_t block = r % 2; // ascending, none twice
      for (int64_t i = 0; i < s.n_in; ++i, block += 1 + (i + r) % 3)
        candidates.push_back(i < s.n_in - r % 3 ? static_cast<int32_t>(block) : -1);
    }
    for (int64_t b = 0; b < n_blocks; ++b) blocks.push_back(static_cast<int32_t>(n_blocks - 1 - b));
    table = t.ints({n}, rows), tables = t.ints({n_sequences, s.table_width}, blocks),
    positions = t.longs({n}, s.positions);
    if (s.n_in > 0) in = t.ints({n, s.n_in}, candidates);
    selected = t.output({n, s.k}, dtype::i32);
    if (s.n_out > 0) out = t.output({n, s.n_out}, dtype::i32);
    if (s.raw) scores = t.output({n, s.table_width * s.entries});
  }
  void select(backend& b, int64_t first, int64_t n) {
    const auto of = [&](const twin_tensor& x) { return x.host ? t.of(b, x.slice(first, n)) : tensor(); };
    index_args a;
    a.selected = of(selected), a.q = of(q), a.weight = of(weight), a.keys = t.of(b, keys), a.ratio = s.ratio;
    a.candidate_block = s.candidate_block, a.candidates_in = of(in), a.candidates_out = of(out), a.scores = of(scores);
    step_rows rows;
    rows.position = of(positions), rows.table = of(table), rows.tables = t.of(b, tables);
    rows.slot = rows.first_row = rows.table, rows.floor = rows.position; // not looked at
    b.select_entries(a, rows);
  }
};

std::vector<int64_t> every(int64_t n, int64_t first, int64_t step) {
  std::vector<int64_t> v;
  for (int64_t i = 0; i < n; ++i) v.push_back(first + i * step);
  return v;
}

const std::vector<shape> shapes{
    {"real heads", 32, 128, 64, 40, 2, 512, {5000}},
    {"real heads, short and long rows", 32, 128, 64, 32, 1, 512, {0, 510, 511, 512, 513, 2000, 2047}},
    {"real heads, raw scores", 32, 128, 64, 20, 2, 512, {0, 1500, 2559}, 0, 0, 0, key_values::normal, true},
    {"equal scores", 32, 128, 64, 32, 1, 512, {1999, 2047, 700}, 0, 0, 0, key_values::few},
    {"no numbers", 32, 128, 64, 32, 1, 512, {1999, 2047, 700}, 0, 0, 0, key_values::strange, true},
    {"makes candidates", 32, 128, 64, 64, 1, 512, {4090, 100, 0, 4095}, 8, 128, 0},
    {"makes candidates of equal scores", 4, 128, 64, 64, 1, 70, {4090, 100, 4095}, 8, 33, 0, key_values::few},
    {"uses candidates", 32, 128, 64, 64, 1, 512, {4090, 100, 0, 1300}, 8, 0, 128},
    {"uses candidates, raw scores", 8, 128, 16, 16, 2, 20, {500, 100, 0}, 8, 0, 12, key_values::few, true},
    {"long row", 4, 128, 256, 200, 1, 512, {51199, 33000, 16383, 16384, 100}},
    {"long row of equal scores", 1, 128, 256, 200, 1, 600, {51199, 40000}, 8, 300, 0, key_values::few},
    {"long row, any dim", 1, 4, 256, 140, 1, 17, {35000, 20000}, 2, 9, 0, key_values::strange},
    {"tiny", 4, 32, 4, 8, 2, 5, every(33, 0, 2)},
    {"odd", 3, 37, 3, 21, 1, 7, {62, 5, 6, 7, 31}, 5, 4, 0},
    {"odd, uses candidates", 5, 19, 3, 21, 1, 7, {62, 5, 31}, 5, 0, 6, key_values::normal, true},
    {"one", 1, 1, 1, 1, 1, 1, {0}, 1, 1, 0},
    {"takes none", 2, 16, 4, 4, 1, 0, {9, 15}, 2, 3, 0},
    {"records", 32, 128, 64, 40, 2, 512, {5000, 2000, 1022}, 0, 0, 0, key_values::normal, false, key_form::records},
    {"records, raw scores",
     32,
     128,
     32,
     40,
     2,
     512,
     {0, 1500, 2559},
     0,
     0,
     0,
     key_values::normal,
     true,
     key_form::records},
    {"records of equal scores",
     32,
     128,
     64,
     32,
     1,
     512,
     {1999, 2047, 700},
     0,
     0,
     0,
     key_values::few,
     true,
     key_form::records},
    {"records, no numbers",
     32,
     128,
     64,
     32,
     1,
     512,
     {1999, 700},
     0,
     0,
     0,
     key_values::strange,
     true,
     key_form::records},
    {"records whose sums round",
     32,
     128,
     64,
     20,
     1,
     512,
     {1279, 700},
     0,
     0,
     0,
     key_values::scaled,
     true,
     key_form::records},
    {"records, makes candidates",
     8,
     128,
     64,
     64,
     1,
     512,
     {4090, 100, 4095},
     8,
     128,
     0,
     key_values::normal,
     false,
     key_form::records},
    {"records, uses candidates",
     64,
     128,
     64,
     64,
     1,
     512,
     {4090, 100, 0, 1300},
     8,
     0,
     128,
     key_values::normal,
     false,
     key_form::records},
    {"records, odd blocks", 16, 128, 7, 90, 1, 50, {600, 31, 5}, 3, 20, 0, key_values::normal, true, key_form::records},
    {"records, long row",
     32,
     128,
     256,
     200,
     1,
     512,
     {51199, 33000},
     0,
     0,
     0,
     key_values::normal,
     false,
     key_form::records},
    // Rows that share decoded keys, those of two sequences in one block among them.
    {.what = "records of prompts",
     .heads = 32,
     .dim = 128,
     .entries = 16,
     .table_width = 20,
     .ratio = 2,
     .k = 50,
     .positions = every(90, 40, 6),
     .raw = true,
     .form = key_form::records,
     .rows_a_sequence = 37},
    {.what = "records of prompts, not raw",
     .heads = 24,
     .dim = 128,
     .entries = 16,
     .table_width = 20,
     .ratio = 2,
     .k = 50,
     .positions = every(90, 40, 6),
     .candidate_block = 2,
     .n_out = 20,
     .form = key_form::records,
     .rows_a_sequence = 90},
    {.what = "records of prompts, no numbers",
     .heads = 8,
     .dim = 128,
     .entries = 16,
     .table_width = 20,
     .ratio = 2,
     .k = 50,
     .positions = every(66, 40, 7),
     .values = key_values::strange,
     .raw = true,
     .form = key_form::records,
     .rows_a_sequence = 37},
    {.what = "records of prompts whose sums round",
     .heads = 16,
     .dim = 128,
     .entries = 16,
     .table_width = 20,
     .ratio = 2,
     .k = 50,
     .positions = every(66, 40, 7),
     .values = key_values::scaled,
     .raw = true,
     .form = key_form::records,
     .rows_a_sequence = 66},
    {"records, tiny", 6, 32, 4, 8, 2, 5, every(33, 0, 2), 2, 5, 0, key_values::normal, true, key_form::records},
};

TEST_CASE("cuda topk: entries, candidate blocks and raw scores are the twin's") {
  for (const shape& s : shapes) {
    world w(s);
    w.t.run([&](backend& b) { w.select(b, 0, w.positions.host.rows()); });
    const std::string of = std::string(", ") + s.what;
    w.t.equal(("select_entries" + of).c_str(), w.selected);
    if (s.n_out > 0) w.t.equal(("select_entries candidates" + of).c_str(), w.out);
    if (s.raw) w.t.equal(("select_entries scores" + of).c_str(), w.scores);
  }
}

TEST_CASE("cuda topk: keys kept as records give the scores of keys kept as floats, bit for bit") {
  for (const shape& s : shapes) {
    if (s.form != key_form::records || !s.raw) continue;
    shape as_floats = s;
    as_floats.form = key_form::rounded;
    world records(s), floats(as_floats);
    const int64_t n = records.positions.host.rows();
    records.select(*records.t.device, 0, n), floats.select(*floats.t.device, 0, n);
    CHECK_MESSAGE(records.t.read_device<uint32_t>(records.scores) == floats.t.read_device<uint32_t>(floats.scores),
                  s.what);
  }
}

TEST_CASE("cuda topk: a row alone, and in slabs of few rows, selects the same") {
  for (const shape& s : shapes) {
    world w(s), small(s, 1 << 20);
    const int64_t n = w.positions.host.rows();
    w.select(*w.t.device, 0, n);
    small.select(*small.t.device, 0, n);
    const auto together = w.t.read_device<int32_t>(w.selected);
    CHECK_MESSAGE(small.t.read_device<int32_t>(small.selected) == together, s.what);
    for (int64_t r = 0; r < n; ++r) w.select(*w.t.device, r, 1);
    CHECK_MESSAGE(w.t.read_device<int32_t>(w.selected) == together, s.what);
  }
}

} // namespace
} // namespace troupe::test
