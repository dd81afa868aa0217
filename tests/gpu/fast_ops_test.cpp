// Every vector operation against its twin, bit for bit: at each vector level, on one thread and on three, and for a row
// alone as among others.
#include "gpu/attention.h"
#include "gpu/dot.h"
#include "gpu/engram_rows.h"
#include "gpu/fast_ops.h"
#include "gpu/formats.h"
#include "gpu/mix.h"
#include "gpu/norm.h"
#include "gpu/topk.h"
#include "gpu/vision_ops.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>

namespace troupe {
namespace {

// Tensors of one call; a call is made on copies of them, so that results can be compared.
struct inputs {
  std::mt19937 random{11};
  std::vector<std::vector<float>> floats;
  std::vector<std::vector<int32_t>> ints;
  std::vector<std::vector<int64_t>> longs;

  tensor normal(std::initializer_list<int64_t> shape, float by = 1) {
    std::normal_distribution<float> d(0, by);
    tensor t(nullptr, dtype::f32, shape);
    auto& v = floats.emplace_back(static_cast<size_t>(t.n_elements()));
    for (float& x : v) x = d(random);
    t.data = reinterpret_cast<std::byte*>(v.data());
    return t;
  }
  tensor i32(std::initializer_list<int64_t> shape, const std::function<int32_t(int64_t)>& value) {
    tensor t(nullptr, dtype::i32, shape);
    auto& v = ints.emplace_back(static_cast<size_t>(t.n_elements()));
    for (size_t i = 0; i < v.size(); ++i) v[i] = value(static_cast<int64_t>(i));
    t.data = reinterpret_cast<std::byte*>(v.data());
    return t;
  }
  tensor i64(const std::vector<int64_t>& values) {
    auto& v = longs.emplace_back(values);
    return tensor(v.data(), dtype::i64, {static_cast<int64_t>(v.size())});
  }
};

std::vector<uint32_t> bits(const tensor& t) {
  const uint32_t* p = t.as<uint32_t>();
  std::vector<uint32_t> v(p, p + t.n_elements());
  if (t.type == dtype::f32) // all NaN are one
    for (size_t i = 0; i < v.size(); ++i)
      if (std::isnan(t.f32()[i])) v[i] = 0x7FC00000;
  return v;
}

// Runs `twin` once and `fast` at every level with one and three threads, each on fresh inputs made by `make`, which
// returns the tensors that hold results.
using call = std::function<std::vector<tensor>(inputs&, fast_context*)>;
void compare(const call& run) {
  inputs of_twin;
  std::vector<std::vector<uint32_t>> expected;
  for (const tensor& t : run(of_twin, nullptr)) expected.push_back(bits(t));
  for (const vector_level level : supported_vector_levels()) {
    if (level == vector_level::scalar) continue;
    for (int n_threads : {1, 3}) {
      INFO(std::string(name(level)) << ", threads " << n_threads);
      host_threads threads(n_threads);
      fast_context context(level, *row_kernels_of(level), *attention_kernels_of(level), threads);
      inputs of_fast;
      const std::vector<tensor> results = run(of_fast, &context);
      for (size_t i = 0; i < results.size(); ++i) CHECK(bits(results[i]) == expected[i]);
    }
  }
}

TEST_CASE("fast_ops: the norm has the bits of the twin for widths with and without a rest") {
  for (int64_t dim : {5, 16, 96, 256, 300})
    compare([&](inputs& in, fast_context* c) {
      const tensor x = in.normal({260, dim}), w = in.normal({dim});
      c ? rms_norm_fast(*c, x, x, w, 1e-20F) : rms_norm_host(x, x, w, 1e-20F);
      return std::vector{x};
    });
}

TEST_CASE("fast_ops: streams mix, fold, expand and average with the bits of the twin") {
  for (int64_t m : {4, 3})
    for (int64_t rows : {1, 2, 5, 17, 140}) {
      const int64_t dim = 72;
      std::mt19937 random(5);
      std::normal_distribution<float> d(0, 0.3F);
      std::vector<float> w(static_cast<size_t>((2 + m) * m * m * dim));
      for (float& v : w) v = d(random);
      stored_matrix stored;
      stored.out = (2 + m) * m;
      stored.in = m * dim;
      stored.weight = tensor(w.data(), dtype::f32, {stored.out, stored.in});
      memory_account account{INT64_MAX, 0};
      const host_matrix fn(stored, account);
      compare([&](inputs& in, fast_context* c) {
        mix_args a;
        a.h = in.normal({rows, m, dim}, 3);
        a.pre = in.normal({rows, m});
        a.post = in.normal({rows, m});
        a.comb = in.normal({rows, m, m});
        a.fn = &fn;
        a.scale = in.normal({3});
        a.base = in.normal({(2 + m) * m});
        c ? mix_fast(*c, a) : mix_host(a);
        const tensor x = in.normal({rows, dim}), mean = in.normal({rows, dim});
        c ? fold_fast(*c, x, a.h, a.pre) : fold_host(x, a.h, a.pre);
        c ? expand_fast(*c, a.h, x, a.post, a.comb) : expand_host(a.h, x, a.post, a.comb);
        c ? mean_copies_fast(*c, mean, a.h) : mean_copies_host(mean, a.h);
        return std::vector{a.pre, a.post, a.comb, x, a.h, mean};
      });
    }
}

TEST_CASE("fast_ops: the three quantisers have the bits of the twin over all magnitudes, zeros, ties and poison") {
  for (quantiser how : {quantiser::fp8_32, quantiser::fp4_e8m0_32, quantiser::fp4_e4m3_16})
    compare([&](inputs& in, fast_context* c) {
      const tensor x = in.normal({1200, 64});
      float* v = x.f32();
      for (int64_t i = 0; i < x.n_elements(); ++i) {
        const int64_t row = i / 64;
        if (row < 900)
          v[i] *= std::ldexp(1.0F, static_cast<int>(row % 160) - 80);
        else if (row < 1000)
          v[i] = std::round(v[i] * 16) / 16; // ties
        else if (row < 1100)
          v[i] = std::round(v[i] * 4) * 64;
      }
      std::fill(v, v + 64, 0.0F);
      v[70] = -0.0F, v[64 * 7 + 3] = NAN, v[64 * 8 + 40] = INFINITY, v[64 * 9] = 3e38F, v[64 * 10 + 1] = 1e-42F;
      c ? quantise_fast(*c, x, how) : quantise_host(x, how);
      return std::vector{x};
    });
}

TEST_CASE("fast_ops: rotation has the bits of the twin, forwards and back, and leaves negative positions alone") {
  for (int64_t n : {4, 5, 32})
    compare([&](inputs& in, fast_context* c) {
      const tensor x = in.normal({90, 3, 72}), y = in.normal({90, 72}), f = in.normal({n});
      std::vector<int64_t> at;
      for (int64_t i = 0; i < 90; ++i) at.push_back(i % 7 == 3 ? -1 : i % 50 * 20011);
      const tensor positions = in.i64(at);
      c ? rope_fast(*c, x, positions, f, false) : rope_host(x, positions, f, false);
      c ? rope_fast(*c, y, positions, f, true) : rope_host(y, positions, f, true);
      const tensor g = in.normal({n});
      c ? rope_fast(*c, x, positions, g, true) : rope_host(x, positions, g, true);
      return std::vector{x, y};
    });
}

// Two sequences: one with 70 rows from position 30, one with a single row at position 5.
step_rows two_sequences(inputs& in) {
  step_rows rows;
  rows.slot = in.i32({71}, [](int64_t i) { return i == 70 ? 0 : 1; });
  std::vector<int64_t> at, floor(71, 0);
  for (int64_t i = 0; i < 70; ++i) at.push_back(30 + i);
  at.push_back(5);
  rows.position = in.i64(at);
  rows.first_row = in.i32({71}, [](int64_t i) { return i == 70 ? 70 : 0; });
  rows.floor = in.i64(floor);
  rows.table = in.i32({71}, [](int64_t i) { return i == 70 ? 1 : 0; });
  rows.tables = in.i32({2, 13}, [](int64_t i) { return static_cast<int32_t>(25 - i); });
  return rows;
}

TEST_CASE("fast_ops: attention has the bits of the twin over ring, step and selected rows") {
  for (int64_t dim : {40, 128, 300})
    for (auto seen : {attention_args::visibility::causal, attention_args::visibility::draft_block})
      compare([&](inputs& in, fast_context* c) {
        const step_rows rows = two_sequences(in);
        attention_args a;
        a.q = in.normal({71, 3, dim});
        a.o = in.normal({71, 3, dim});
        a.step_kv = in.normal({71, dim});
        a.rings = in.normal({2, 24, dim});
        a.compressed = in.normal({26, 8, dim});
        a.selected = in.i32({71, 12}, [](int64_t i) {
          const int64_t r = i / 12, j = i % 12;
          return static_cast<int32_t>(j < r % 13 ? j * 8 + r % 8 : -1);
        });
        a.sink = in.normal({3});
        a.window = 20;
        a.scale = 0.11F;
        a.seen = seen;
        c ? attention_fast(*c, a, rows) : attention_host(a, rows);
        return std::vector{a.o};
      });
}

TEST_CASE("fast_ops: selection takes the entries and candidate blocks of the twin, with scores wanted or not") {
  for (const bool with_scores : {false, true})
    for (int64_t k : {6, 200})
      compare([&](inputs& in, fast_context* c) {
        const step_rows rows = two_sequences(in);
        index_args a;
        a.q = in.normal({71, 4, 40});
        a.weight = in.normal({71, 4});
        a.keys = in.normal({26, 8, 40});
        a.selected = in.i32({71, k}, [](int64_t) { return 0; });
        a.candidates_out = in.i32({71, 5}, [](int64_t) { return 0; });
        a.candidate_block = 4;
        if (with_scores) a.scores = in.normal({71, 100});
        c ? select_entries_fast(*c, a, rows) : select_entries_host(a, rows);
        std::vector<tensor> results = {a.selected, a.candidates_out};
        if (with_scores) results.push_back(a.scores);
        a.candidates_in = a.candidates_out;
        a.candidates_out = {};
        a.selected = in.i32({71, k}, [](int64_t) { return 0; });
        c ? select_entries_fast(*c, a, rows) : select_entries_host(a, rows);
        results.push_back(a.selected);
        return results;
      });
}

TEST_CASE("fast_ops: pair compression has the bits of the twin") {
  compare([&](inputs& in, fast_context* c) {
    const step_rows rows = two_sequences(in);
    const tensor out = in.normal({71, 43}), u = in.normal({71, 43}), g = in.normal({71, 43}, 4);
    const tensor pending = in.normal({2, 3, 2, 43});
    c ? compress_pairs_by(c->heads.compress_pair, out, u, g, pending, rows)
      : compress_pairs_host(out, u, g, pending, rows);
    return std::vector{out, pending};
  });
}

TEST_CASE("fast_ops: the Engram gate has the bits of the twin, dead rows included") {
  for (int64_t dim : {16, 75})
    compare([&](inputs& in, fast_context* c) {
      const tensor h = in.normal({130, 4, dim}), kv = in.normal({130, 5, dim}), gates = in.normal({130, 4});
      const tensor qw = in.normal({4, dim}), kw = in.normal({4, dim});
      const tensor dead = in.i32({130}, [](int64_t i) { return i % 5 == 2; });
      c ? engram_gate_fast(*c, h, kv, qw, kw, dead, gates, 1e-20F)
        : engram_gate_host(h, kv, qw, kw, dead, gates, 1e-20F);
      return std::vector{h, gates};
    });
}

TEST_CASE("fast_ops: full attention and the gated product of the vision tower have the bits of the twin") {
  compare([&](inputs& in, fast_context* c) {
    const tensor q = in.normal({37, 2, 64}), k = in.normal({37, 2, 64}), v = in.normal({37, 2, 64});
    const tensor o = in.normal({37, 2, 64}), y = in.normal({400, 90}), gate_up = in.normal({400, 180}, 9);
    c ? attention_full_fast(*c, o, q, k, v, 0.125F) : attention_full_host(o, q, k, v, 0.125F);
    c ? silu_mul_fast(*c, y, gate_up) : silu_mul_host(y, gate_up);
    return std::vector{o, y};
  });
}

TEST_CASE("fast_ops: no rows are no work") {
  const vector_level level = supported_vector_levels().back();
  if (level == vector_level::scalar) return;
  host_threads threads(2);
  fast_context c(level, *row_kernels_of(level), *attention_kernels_of(level), threads);
  inputs in;
  const tensor none = in.normal({0, 64}), streams = in.normal({0, 4, 64}), w = in.normal({64});
  rms_norm_fast(c, none, none, w, 1e-20F);
  quantise_fast(c, none, quantiser::fp8_32);
  fold_fast(c, none, streams, none);
  expand_fast(c, streams, none, none, none);
  mean_copies_fast(c, none, streams);
  rope_fast(c, none, in.i64({}), w, false);
  silu_mul_fast(c, none, none);
  CHECK(none.n_elements() == 0);
}

} // namespace
} // namespace troupe
