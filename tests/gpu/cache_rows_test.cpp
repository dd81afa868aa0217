// Cache rows as records: exact for what the quantisers make, and every operation gives the bits it gives with floats.
#include "gpu/cache_rows.h"

#include "gpu/attention.h"
#include "gpu/fast_ops.h"
#include "gpu/formats.h"
#include "gpu/topk.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

using namespace troupe;

namespace {

constexpr quantiser formats[] = {quantiser::fp8_32, quantiser::fp4_e8m0_32, quantiser::fp4_e4m3_16};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// x quantised, through a record and back.
std::vector<float> through_record(const std::vector<float>& x, quantiser how) {
  const auto dim = static_cast<int64_t>(x.size());
  std::vector<std::byte> record(static_cast<size_t>(record_bytes(how, dim)), std::byte{0xAA});
  std::vector<float> back(x.size());
  encode_record(record.data(), x.data(), dim, how);
  decode_record(back.data(), record.data(), dim, how);
  return back;
}

std::vector<float> quantised(std::vector<float> x, quantiser how) {
  quantise_host(tensor(x.data(), dtype::f32, {static_cast<int64_t>(x.size())}), how);
  return x;
}

TEST_CASE("cache_rows: the released widths take 528, 288 and 68 bytes, others whole words") {
  CHECK(record_bytes(quantiser::fp8_32, 512) == 528);
  CHECK(record_bytes(quantiser::fp4_e4m3_16, 512) == 288);
  CHECK(record_bytes(quantiser::fp4_e8m0_32, 128) == 68);
  CHECK(record_bytes(quantiser::fp8_32, 64) == 68);
  CHECK(record_bytes(quantiser::fp4_e4m3_16, 16) == 12);
  CHECK(record_bytes(quantiser::fp4_e8m0_32, 32) == 20);
  CHECK(cache_row_bytes(cache_form::floats, quantiser::fp8_32, 512) == 2048);
}

TEST_CASE("cache_rows: what a quantiser makes comes back bit for bit, whatever its magnitude") {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const quantiser how : formats) {
    for (int exponent = -140; exponent <= 120; ++exponent)
      for (int i = 0; i < 20; ++i) {
        std::vector<float> x(static_cast<size_t>(64 + 32 * (i % 3)));
        for (float& v : x) v = std::ldexp(normal(random), exponent);
        if (i % 4 == 1) x[5] = 0, x[6] = -0.0F;
        if (i % 4 == 2) std::fill(x.begin(), x.begin() + 40, 0.0F);
        if (i % 4 == 3)
          for (float& v : x) v = std::ldexp(std::round(std::ldexp(v, 4 - exponent)), exponent - 4); // ties
        const auto q = quantised(x, how);
        REQUIRE(same_bits(through_record(q, how), q));
      }
    // Largest magnitudes around every step of a small scale, where its rounding is coarsest.
    for (int step = 0; step < 4000; ++step) {
      std::vector<float> x(32);
      for (float& v : x) v = std::ldexp(normal(random), -9);
      x[3] = x[20] = std::ldexp(static_cast<float>(step) / 40.0F, -9);
      const auto q = quantised(x, how);
      REQUIRE(same_bits(through_record(q, how), q));
    }
  }
}

TEST_CASE("cache_rows: a group that is not finite becomes NaN, its neighbours stay, and the padding is zeros") {
  for (const quantiser how : formats)
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      std::vector<float> x(96, 1.0F);
      x[40] = bad;
      const auto q = quantised(x, how);
      CHECK(same_bits(through_record(q, how), q)); // the quantiser poisons the group as well
      CHECK(same_bits(through_record(x, how), q));
      CHECK(std::isnan(q[41]));
    }
  std::vector<float> x(32, 3.0F);
  std::vector<std::byte> record(36, std::byte{0xAA});
  encode_record(record.data(), x.data(), 32, quantiser::fp8_32);
  CHECK(record[33] == std::byte{0});
  CHECK(record[34] == std::byte{0});
  CHECK(record[35] == std::byte{0});
}

// Caches in both forms, with rows that went through the operations that fill them.
struct filled {
  std::mt19937 random{11};
  std::vector<std::vector<std::byte>> memory;

  tensor make(dtype type, std::initializer_list<int64_t> shape) {
    tensor t(nullptr, type, shape);
    t.data = memory.emplace_back(static_cast<size_t>(t.size_bytes())).data();
    return t;
  }
  tensor normal(std::initializer_list<int64_t> shape) {
    const tensor t = make(dtype::f32, shape);
    std::normal_distribution<float> n;
    for (int64_t i = 0; i < t.n_elements(); ++i) t.f32()[i] = n(random);
    return t;
  }
  tensor rows(std::initializer_list<int64_t> shape, quantiser how) {
    const tensor t = normal(shape);
    quantise_host(t, how);
    return t;
  }
  template <class Of> tensor i32(std::initializer_list<int64_t> shape, Of of) {
    const tensor t = make(dtype::i32, shape);
    for (int64_t i = 0; i < t.n_elements(); ++i) t.i32()[i] = static_cast<int32_t>(of(i));
    return t;
  }
  tensor cache(cache_form form, int64_t n, int64_t per, quantiser how, int64_t dim) {
    return form == cache_form::floats ? make(dtype::f32, {n, per, dim})
                                      : make(dtype::u8, {n, per, record_bytes(how, dim)});
  }
  // One sequence of n rows from position t0, in slot 1 and blocks 7, 6, ..
  step_rows step(int64_t n, int64_t t0) {
    step_rows r;
    r.slot = i32({n}, [](int64_t) { return 1; });
    r.first_row = i32({n}, [](int64_t) { return 0; });
    r.table = i32({n}, [](int64_t) { return 0; });
    r.tables = i32({1, 8}, [](int64_t i) { return 7 - i; });
    r.position = make(dtype::i64, {n}), r.floor = make(dtype::i64, {n});
    for (int64_t i = 0; i < n; ++i) r.position.i64()[i] = t0 + i;
    return r;
  }
};

// What attention and selection give after 60 rows filled the caches; fast: the vector forms.
std::vector<float> results(cache_form form, int64_t dim, fast_context* fast) {
  filled f;
  const tensor rings = f.cache(form, 2, 24, quantiser::fp8_32, dim);
  const tensor latents = f.cache(form, 8, 8, quantiser::fp4_e4m3_16, dim);
  const tensor keys = f.cache(form, 8, 8, quantiser::fp4_e8m0_32, dim);
  const tensor entries = f.i32({60}, [](int64_t i) { return i % 7 == 3 ? -1 : i; });
  const step_rows before = f.step(60, 0);
  write_rings_host(rings, f.rows({60, dim}, quantiser::fp8_32), before);
  scatter_entries_host(latents, f.rows({60, dim}, quantiser::fp4_e4m3_16), entries, quantiser::fp4_e4m3_16, before);
  scatter_entries_host(keys, f.rows({60, dim}, quantiser::fp4_e8m0_32), entries, quantiser::fp4_e8m0_32, before);
  std::vector<float> out;
  const step_rows now = f.step(3, 60);
  index_args i;
  i.selected = f.i32({3, 9}, [](int64_t) { return 0; });
  i.q = f.rows({3, 5, dim}, quantiser::fp4_e8m0_32), i.weight = f.normal({3, 5}), i.keys = keys;
  i.scores = f.make(dtype::f32, {3, 64});
  fast != nullptr ? select_entries_fast(*fast, i, now) : select_entries_host(i, now);
  for (const auto seen : {attention_args::visibility::causal, attention_args::visibility::draft_block}) {
    attention_args a;
    a.q = f.normal({3, 4, dim}), a.o = f.make(dtype::f32, {3, 4, dim}), a.sink = f.normal({4});
    a.step_kv = f.rows({3, dim}, quantiser::fp8_32), a.rings = rings, a.compressed = latents, a.selected = i.selected;
    a.window = 20, a.scale = 0.1F, a.seen = seen;
    fast != nullptr ? attention_fast(*fast, a, now) : attention_host(a, now);
    out.insert(out.end(), a.o.f32(), a.o.f32() + a.o.n_elements());
  }
  for (int64_t e = 0; e < i.selected.n_elements(); ++e) out.push_back(static_cast<float>(i.selected.i32()[e]));
  out.insert(out.end(), i.scores.f32(), i.scores.f32() + i.scores.n_elements());
  return out;
}

TEST_CASE("cache_rows: attention and selection have the same bits over records as over floats") {
  const vector_level level = supported_vector_levels().back();
  for (const int64_t dim : {32, 96, 512}) {
    const auto want = results(cache_form::floats, dim, nullptr);
    CHECK(same_bits(results(cache_form::records, dim, nullptr), want));
    if (level == vector_level::scalar) continue;
    host_threads threads(2);
    fast_context c(level, *row_kernels_of(level), *attention_kernels_of(level), threads);
    CHECK(same_bits(results(cache_form::floats, dim, &c), want));
    CHECK(same_bits(results(cache_form::records, dim, &c), want));
  }
}

} // namespace
