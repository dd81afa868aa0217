// Shapes of the real model: 64 heads x 512 over 128 window rows and 512 of 64k entries; 32 index heads x 128 over all
// entries. Calls go through more than 256 MB of caches, so each reads its rows from device memory.
#include "bench/cuda_caches.h"

#include "bench/cuda_timing.h"
#include "gpu/cache_rows.h"
#include "gpu/formats.h"

#include <cmath>
#include <random>

namespace troupe::bench {
namespace {

constexpr int64_t block_entries = 64;

std::vector<float> normal_floats(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = normal(random);
  return v;
}

tensor upload(backend& b, dtype type, std::initializer_list<int64_t> shape, const void* from) {
  const tensor t = b.allocate(type, shape, "bench");
  b.upload(t, from, t.size_bytes());
  return t;
}
tensor floats(backend& b, std::initializer_list<int64_t> shape, unsigned seed) {
  return upload(b, dtype::f32, shape, normal_floats(tensor(nullptr, dtype::f32, shape).n_elements(), seed).data());
}

} // namespace

tensor make_cache(backend& b, cache_form form, int64_t n, int64_t rows, quantiser how, int64_t dim) {
  auto v = normal_floats(rows * dim, 7);
  quantise_host(tensor(v.data(), dtype::f32, {rows, dim}), how);
  const int64_t bytes = record_bytes(how, dim);
  std::vector<std::byte> records(static_cast<size_t>(rows * bytes));
  for (int64_t i = 0; i < rows; ++i) encode_record(records.data() + i * bytes, v.data() + i * dim, dim, how);
  const bool are_records = form == cache_form::records;
  const tensor cache =
      are_records ? b.allocate(dtype::u8, {n, rows, bytes}, "bench") : b.allocate(dtype::f32, {n, rows, dim}, "bench");
  for (int64_t i = 0; i < n; ++i) {
    const tensor part = cache.slice(i, 1);
    b.upload(part, are_records ? static_cast<const void*>(records.data()) : v.data(), part.size_bytes());
  }
  return cache;
}

namespace {

// `n` rows that each are the newest of a sequence of `length` tokens; all in the same blocks, an identity table.
step_rows newest_rows(backend& b, int64_t n, int64_t length, int64_t n_blocks) {
  std::vector<int32_t> own(static_cast<size_t>(n)), zeros(own.size()), blocks(static_cast<size_t>(n_blocks));
  for (size_t i = 0; i < own.size(); ++i) own[i] = static_cast<int32_t>(i);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
  const std::vector<int64_t> position(own.size(), length - 1), floor(own.size(), 0);
  return {upload(b, dtype::i32, {n}, zeros.data()), upload(b, dtype::i64, {n}, position.data()),
          upload(b, dtype::i32, {n}, own.data()),   upload(b, dtype::i64, {n}, floor.data()),
          upload(b, dtype::i32, {n}, zeros.data()), upload(b, dtype::i32, {1, n_blocks}, blocks.data())};
}

void bench_attention(backend& b, cache_form form, const std::string& name, int64_t n) {
  constexpr int64_t heads = 64, dim = 512, k = 512, ring = 133, length = 65536, n_blocks = length / block_entries;
  const int64_t bytes = n_blocks * block_entries * cache_row_bytes(form, quantiser::fp4_e4m3_16, dim);
  const step_rows rows = newest_rows(b, n, length, n_blocks);
  attention_args a;
  a.q = floats(b, {n, heads, dim}, 1), a.step_kv = floats(b, {n, dim}, 2), a.sink = floats(b, {heads}, 3);
  a.o = b.allocate(dtype::f32, {n, heads, dim}, "bench");
  a.rings = make_cache(b, form, 1, ring, quantiser::fp8_32, dim);
  a.window = 128, a.scale = 1.0F / std::sqrt(static_cast<float>(dim));
  std::vector<std::function<void()>> calls;
  for (int64_t copy = 0; copy < std::max<int64_t>(cold_bytes / bytes, 2); ++copy) {
    std::mt19937 random(static_cast<unsigned>(copy));
    std::vector<int32_t> selected;
    for (int64_t i = 0; i < n * k; ++i) // ascending, one of each 128 entries
      selected.push_back(static_cast<int32_t>(i % k * (length / k) + random() % (length / k)));
    a.selected = upload(b, dtype::i32, {n, k}, selected.data());
    a.compressed = make_cache(b, form, n_blocks, block_entries, quantiser::fp4_e4m3_16, dim);
    calls.push_back([&b, a, rows] { b.attention(a, rows); });
  }
  const int64_t read = n * (128 * cache_row_bytes(form, quantiser::fp8_32, dim) +
                            k * cache_row_bytes(form, quantiser::fp4_e4m3_16, dim) + 2 * heads * dim * 4);
  row(name, time_calls(b, calls, a.o), 0, static_cast<double>(read));
}

void bench_index(backend& b, cache_form form, const std::string& name, int64_t n, int64_t length) {
  constexpr int64_t heads = 32, dim = 128, k = 512;
  const int64_t n_blocks = length / block_entries, key_bytes = cache_row_bytes(form, quantiser::fp4_e8m0_32, dim);
  const step_rows rows = newest_rows(b, n, length, n_blocks);
  index_args a;
  auto q = normal_floats(n * heads * dim, 4);
  quantise_host(tensor(q.data(), dtype::f32, {n * heads, dim}), quantiser::fp4_e8m0_32);
  a.q = upload(b, dtype::f32, {n, heads, dim}, q.data()), a.weight = floats(b, {n, heads}, 5);
  a.selected = b.allocate(dtype::i32, {n, k}, "bench");
  std::vector<std::function<void()>> calls;
  for (int64_t copy = 0; copy < std::max<int64_t>(cold_bytes / (length * key_bytes), 2); ++copy) {
    a.keys = make_cache(b, form, n_blocks, block_entries, quantiser::fp4_e8m0_32, dim);
    calls.push_back([&b, a, rows] { b.select_entries(a, rows); });
  }
  row(name, time_calls(b, calls, a.selected), 0, static_cast<double>(length * key_bytes));
}

} // namespace

void bench_caches(backend& b, const std::function<bool(const std::string&)>& wanted) {
  for (const cache_form form : {cache_form::records, cache_form::floats}) {
    const std::string kind = form == cache_form::records ? "records" : "floats";
    for (const int64_t n : {1, 4, 256}) {
      const std::string name = "attention over " + kind + " m=" + std::to_string(n);
      if (wanted(name)) bench_attention(b, form, name, n);
    }
    for (const int64_t length : {8192, 131072, 1048576}) {
      const std::string name = "indexer over " + kind + " n=" + std::to_string(length);
      if (wanted(name)) bench_index(b, form, name, 1, length);
    }
  }
}

} // namespace troupe::bench
