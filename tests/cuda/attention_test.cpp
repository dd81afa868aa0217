// Attention on the device against its host twin.
#include "gpu/cuda_lane.h"
#include "tests/cuda/attention_world.h"

#include <algorithm>
#include <cmath>

namespace troupe::test {
namespace {

constexpr row_class both_classes[] = {row_class::decode, row_class::prefill};
std::string name_of(const shape& s, row_class rows) {
  return std::string(s.what) + (rows == row_class::prefill ? ", prompt" : "");
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
    {"records, window only", 64, 512, 128, 0, seen::causal, {{0, 0, 1}, {1, 5, 2}, {2, 500, 3}}, key_form::records},
    {"records, floors",
     64,
     512,
     128,
     70,
     seen::causal,
     {{0, 90, 9, 95}, {1, 260, 3, 200}, {2, 9, 2}},
     key_form::records},
    {"records, tiny", 4, 96, 8, 5, seen::causal, {{0, 0, 3}, {1, 7, 1}, {2, 300, 33}}, key_form::records},
    {"records, narrow", 6, 32, 16, 8, seen::causal, {{0, 0, 3}, {1, 70, 1}, {2, 300, 130}}, key_form::records},
    {"wide, eleven heads", 11, 512, 40, 30, seen::causal, {{0, 0, 3}, {1, 90, 9, 95}, {2, 64, 1, 80}}},
    {"wide, many keys", 9, 512, 100, 900, seen::causal, {{0, 1950, 2}, {3, 700, 3, 650}, {4, 1, 1}}},
    {"wide, many keys of records", 8, 512, 200, 777, seen::causal, {{0, 1950, 2}, {3, 900, 3, 650}}, key_form::records},
    {"wide, draft blocks", 5, 512, 20, 70, seen::draft_block, {{0, 300, 33}, {1, 4, 3}, {2, 0, 50}, {5, 77, 1, 90}}},
    {"one of everything", 1, 1, 1, 1, seen::causal, {{3, 0, 1}}},
    {"tiny", 4, 96, 8, 5, seen::causal, {{0, 0, 3}, {1, 7, 1}, {2, 300, 33}}},
    {"odd", 3, 37, 5, 7, seen::causal, {{0, 2, 3}, {1, 90, 9, 95}, {2, 64, 1, 80}}},
    {"seventeen heads", 17, 20, 33, 130, seen::causal, {{0, 250, 1}, {1, 999, 3}}},
    {"many short rows", 3, 40, 9, 3, seen::causal, sequences(35, 20, 4)},
    {"odd draft blocks", 5, 18, 6, 3, seen::draft_block, {{0, 10, 33}, {1, 4, 3}, {4, 0, 64}, {5, 77, 1, 90}}},
};

// Prompt rows of 64 heads of 512 over records are multiplied as f16 (attention_prompt.cu). Keys are exact in it;
// queries and weights are off by 2^-11 of themselves (or 2^-25 of the largest) at most, both with either sign. A score,
// a sum of 512 such terms, is here normal with a spread of 1, so it is off by about 2^-12 and seldom by 2^-11, a weight
// by the same part of itself. A row is a mean of values with these weights, and what it is off by is the mean of (value
// - row) times what the weights are off by: 2^-11 + 2^-11 of the largest value, where few keys share a row and nothing
// cancels.
double bound_of(const shape& s, row_class rows, bool has_prompt_attention) {
  const bool as_f16 = has_prompt_attention && rows == row_class::prefill && s.heads == 64 && s.dim == 512 &&
                      s.keys == key_form::records;
  return as_f16 ? 0x1p-10 : 3e-5;
}

void check_near(const shape& s) {
  world w(s);
  const world::step all = w.step_of(0, s.runs.size());
  twin_tensor o = w.t.output({all.n_rows, s.heads, s.dim});
  w.attend(*w.t.host, all, o);
  for (const row_class rows : both_classes) {
    o.device = w.t.output({all.n_rows, s.heads, s.dim}).device;
    w.set_class(rows);
    w.attend(*w.t.device, all, o);
    w.t.near(("attention, " + name_of(s, rows)).c_str(), o,
             bound_of(s, rows, lane_of(*w.t.device).has_prompt_attention));
  }
}

TEST_CASE("cuda attention: every row is near the twin") {
  for (const shape& s : shapes) check_near(s);
}

// 2^60 and 2^-100 are far outside of f16. Keys of 2^-8 have the smallest scales that fp4_e4m3_16 has, those of 2^13 the
// largest of fp8_32 that f16 holds; there fp4 ends at 2688.
TEST_CASE("cuda attention: queries and keys of extreme magnitude are near the twin") {
  for (const float query_by : {0x1p60F, 0x1p-100F})
    check_near({"extreme queries", 64, 512, 128, 100, seen::causal, sequences(3, 900, 2), key_form::records, query_by});
  for (const float key_by : {0x1p-8F, 0x1p9F, 0x1p13F})
    check_near({"extreme keys", 64, 512, 128, 100, seen::causal, sequences(3, 900, 2), key_form::records, 1, key_by});
}

TEST_CASE("cuda attention: a sequence alone has the bits it has among others") {
  for (const shape& s : shapes) {
    world w(s);
    for (const row_class rows : both_classes) {
      w.set_class(rows);
      const auto together = w.attend(0, s.runs.size());
      std::vector<float> alone;
      for (size_t i = 0; i < s.runs.size(); ++i) {
        const auto one = w.attend(i, 1);
        alone.insert(alone.end(), one.begin(), one.end());
      }
      CHECK_MESSAGE(std::memcmp(alone.data(), together.data(), alone.size() * sizeof(float)) == 0, name_of(s, rows));
    }
  }
}

TEST_CASE("cuda attention: a step in chunks gives the bits of the step in one") {
  std::vector<shape> of = shapes;
  of.push_back({"whole", 64, 512, 128, 512, seen::causal, {{0, 700, 190}}, key_form::records});
  for (const shape& s : of) {
    if (s.keys < key_form::rounded || s.how != seen::causal) continue;
    shape cut = s;
    cut.runs.clear();
    for (const run_of_rows& run : s.runs)
      for (int64_t done = 0, n = (run.n + 1) / 2; done < run.n; done += n)
        cut.runs.push_back({run.slot, run.first + done, std::min(n, run.n - done), run.floor});
    for (const row_class rows : both_classes) {
      world a(s), b(cut);
      a.set_class(rows), b.set_class(rows);
      const auto together = a.attend(0, s.runs.size());
      std::vector<float> parts;
      for (size_t i = 0; i < cut.runs.size(); ++i) {
        const auto part = b.attend(i, 1);
        parts.insert(parts.end(), part.begin(), part.end());
        const world::step done = b.step_of(i, 1);
        b.t.device->write_rings(b.rings.device, b.step_kv.slice(done.before, done.n_rows).device,
                                done.of(b.t, *b.t.device));
      }
      CHECK_MESSAGE(std::memcmp(parts.data(), together.data(), parts.size() * sizeof(float)) == 0, name_of(s, rows));
    }
  }
}

// Decode is replayed: kernels start early there, behind one that writes what they read.
TEST_CASE("cuda attention: a replayed step has the bits of a launched one") {
  for (const shape& s : {shapes[6], shapes[0], shapes[8]}) {
    world w(s);
    const world::step all = w.step_of(0, s.runs.size());
    const std::vector<float> launched = w.attend(0, s.runs.size());
    const twin_tensor o = w.t.output({all.n_rows, s.heads, s.dim});
    backend& b = *w.t.device;
    const auto graph = b.capture([&] {
      b.scale(w.q.device, 0.5F);
      b.scale(w.q.device, 2); // q again, exactly
      w.attend(b, all, o);
    });
    for (int i = 0; i < 5; ++i) {
      b.replay(*graph);
      const std::vector<float> replayed = w.t.read_device(o);
      CHECK_MESSAGE(std::memcmp(replayed.data(), launched.data(), launched.size() * sizeof(float)) == 0, s.what);
    }
  }
}

TEST_CASE("cuda attention: rows of both classes share a step") {
  const shape s{"mixed", 64, 512, 128, 100, seen::causal, {{0, 300, 40}, {1, 90, 7}}, key_form::records};
  world w(s);
  std::vector<float> of_class[2];
  for (const row_class rows : both_classes) w.set_class(rows), of_class[static_cast<int>(rows)] = w.attend(0, 2);
  constexpr row_run mixed[] = {{row_class::prefill, 21}, {row_class::decode, 3}, {row_class::prefill, 17}};
  w.t.device->set_row_classes(mixed);
  const auto both = w.attend(0, 2);
  const auto width = static_cast<size_t>(s.heads * s.dim);
  for (size_t r = 0; r < 47; ++r) {
    const auto& want = of_class[r < 21 || (r >= 24 && r < 41) ? 1 : 0];
    CHECK_MESSAGE(std::memcmp(both.data() + r * width, want.data() + r * width, width * sizeof(float)) == 0,
                  "row " << r);
  }
}

// Rows of decode: prompt rows have kernels for records alone.
TEST_CASE("cuda attention: caches of records give the bits of caches of floats") {
  for (const shape& s : shapes) {
    if (s.keys != key_form::records) continue;
    shape as_floats = s;
    as_floats.keys = key_form::rounded;
    world records(s), floats(as_floats);
    const auto a = records.attend(0, s.runs.size()), b = floats.attend(0, s.runs.size());
    CHECK_MESSAGE(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0, s.what);
  }
}

TEST_CASE("cuda attention: a row that sees nothing gives zeros") {
  for (const shape& s : {shape{"blind", 2, 8, 4, 0, seen::causal, {{0, 5, 1, 6}}},
                         shape{"blind", 64, 512, 128, 64, seen::causal, {{0, 0, 1, 6}}, key_form::records}}) {
    world w(s);
    for (const row_class rows : both_classes) {
      w.set_class(rows);
      CHECK(w.attend(0, 1) == std::vector<float>(static_cast<size_t>(s.heads * s.dim), 0.0F));
    }
  }
}

} // namespace
} // namespace troupe::test
