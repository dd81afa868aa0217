// Host kernels at the shapes of the tiny model. Usage: bench_kernels [threads] > results/kernels.csv
// One line a case: operation, shape, rows, vector level, threads, median us, MAD us, min us, bytes, flops, % of
// roofline. Weights are read in turn from 24 MB of matrices, as a decode step reads them; activations stay in the first
// caches. Decode shapes (1 to 8 rows) and prefill shapes (64 rows) are separate lines and are never averaged.
#include "bench/bench.h"
#include "gpu/backend.h"
#include "gpu/cache_rows.h"
#include "gpu/fast_linear.h"
#include "gpu/formats.h"
#include "gpu/host_threads.h"
#include "gpu/split_linear.h"

#include <cstdlib>
#include <limits>
#include <memory>
#include <random>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace troupe::bench {
namespace {

constexpr int64_t working_set_bytes = 24 << 20;

#if defined(__x86_64__)
// Sixteen independent sums hide the latency of a fused step on every core we know.
__attribute__((target("avx512f"))) float fused_512(int64_t n) {
  __m512 acc[16];
  for (int j = 0; j < 16; ++j) acc[j] = _mm512_set1_ps(static_cast<float>(j));
  const __m512 x = _mm512_set1_ps(0.999F), y = _mm512_set1_ps(0.001F);
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) acc[j] = _mm512_fmadd_ps(acc[j], x, y);
  __m512 sum = acc[0];
  for (int j = 1; j < 16; ++j) sum = _mm512_add_ps(sum, acc[j]);
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, sum);
  return lanes[0];
}
__attribute__((target("avx2,fma"))) float fused_256(int64_t n) {
  __m256 acc[12];
  for (int j = 0; j < 12; ++j) acc[j] = _mm256_set1_ps(static_cast<float>(j));
  const __m256 x = _mm256_set1_ps(0.999F), y = _mm256_set1_ps(0.001F);
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) acc[j] = _mm256_fmadd_ps(acc[j], x, y);
  __m256 sum = acc[0];
  for (int j = 1; j < 12; ++j) sum = _mm256_add_ps(sum, acc[j]);
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, sum);
  return lanes[0];
}
__attribute__((target("avx2"))) int64_t read_all(const int64_t* p, size_t n) {
  __m256i sum[4] = {};
  for (size_t i = 0; i + 16 <= n; i += 16)
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j)
      sum[j] = _mm256_add_epi64(sum[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i + 4 * j)));
  sum[0] = _mm256_add_epi64(_mm256_add_epi64(sum[0], sum[1]), _mm256_add_epi64(sum[2], sum[3]));
  return _mm256_extract_epi64(sum[0], 0) + _mm256_extract_epi64(sum[0], 3);
}
#else
int64_t read_all(const int64_t* p, size_t n) {
  int64_t sum = 0;
  for (size_t i = 0; i < n; ++i) sum += p[i];
  return sum;
}
#endif

// Peaks of `n_threads` threads: fused steps in registers, and reading the working set again and again.
peaks measure_peaks(vector_level level, host_threads& threads) {
  peaks p;
#if defined(__x86_64__)
  volatile float sink = 0;
  const int64_t steps = 20000;
  const bool wide = level == vector_level::avx512;
  const sample s = measure([&](int64_t) {
    threads.for_each(threads.size(), [&](int64_t) { sink = wide ? fused_512(steps) : fused_256(steps); });
  });
  p.flops_per_us = 2.0 * threads.size() * static_cast<double>(steps) * (wide ? 16 * 16 : 12 * 8) / s.min_us;
#endif
  const std::vector<int64_t> data(working_set_bytes / 8, 1);
  volatile int64_t total = 0;
  const auto parts = static_cast<size_t>(threads.size());
  const sample r = measure([&](int64_t) {
    threads.for_each(threads.size(), [&](int64_t part) {
      const size_t first = static_cast<size_t>(part) * data.size() / parts;
      total = read_all(data.data() + first, data.size() / parts);
    });
  });
  p.bytes_per_us = static_cast<double>(working_set_bytes) / r.min_us;
  return p;
}

void print(const char* operation, const std::string& shape, int64_t rows, vector_level level, int n_threads,
           const sample& s, double bytes, double flops, const peaks& p) {
  std::printf("%s,%s,%ld,%s,%d,%.3f,%.3f,%.3f,%.0f,%.0f,%.1f\n", operation, shape.c_str(), static_cast<long>(rows),
              name(level), n_threads, s.median_us, s.mad_us, s.min_us, bytes, flops,
              roofline_percent(s, bytes, flops, p));
  std::fflush(stdout);
}

std::vector<float> normal(int64_t n, bool is_bf16 = false) {
  static std::mt19937 random(1);
  std::normal_distribution<float> d;
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = is_bf16 ? bf16_to_f32(f32_to_bf16(d(random))) : d(random);
  return v;
}

void bench_linear(int64_t out, int64_t in, bool is_bf16, vector_level level, host_threads& threads, const peaks& p) {
  memory_account account{INT64_MAX, 0};
  std::vector<std::unique_ptr<host_matrix>> matrices;
  while (account.used_bytes < working_set_bytes) {
    std::vector<float> w = normal(out * in, is_bf16);
    stored_matrix m;
    m.out = out;
    m.in = in;
    m.weight = tensor(w.data(), dtype::f32, {out, in});
    matrices.push_back(std::make_unique<host_matrix>(m, account));
  }
  std::vector<float> x = normal(64 * in), y(static_cast<size_t>(64 * out));
  for (int64_t rows : {1, 2, 4, 8, 64}) {
    const tensor from(x.data(), dtype::f32, {rows, in}), to(y.data(), dtype::f32, {rows, out});
    const sample s = measure(
        [&](int64_t i) { linear_fast(level, threads, to, from, *matrices[static_cast<size_t>(i) % matrices.size()]); });
    const std::string shape = std::to_string(out) + "x" + std::to_string(in) + (is_bf16 ? " bf16" : " f32");
    print(rows <= 8 ? "linear decode" : "linear prefill", shape, rows, level, threads.size(), s,
          static_cast<double>(matrices[0]->size_bytes), 2.0 * static_cast<double>(rows * out * in), p);
  }
}

// Operations through the backend: 4 streams of 256, heads of 128, window 64 and 64 selected rows.
struct rows_case {
  std::unique_ptr<backend> b;
  int64_t rows;
  tensor make(std::initializer_list<int64_t> shape) const {
    tensor t = b->allocate(dtype::f32, shape, "bench");
    const std::vector<float> v = normal(t.n_elements());
    b->upload(t, v.data(), t.size_bytes());
    return t;
  }
  tensor records(std::initializer_list<int64_t> shape) const { // codes and scales of about 1
    tensor t = b->allocate(dtype::u8, shape, "bench");
    std::fill_n(t.data, t.size_bytes(), std::byte{0x3A});
    return t;
  }
  tensor ints(std::initializer_list<int64_t> shape, int64_t step, int64_t modulus) const {
    tensor t = b->allocate(dtype::i32, shape, "bench");
    for (int64_t i = 0; i < t.n_elements(); ++i) t.i32()[i] = static_cast<int32_t>(i * step % modulus);
    return t;
  }
};

void bench_rows(int64_t rows, vector_level level, int n_threads, const peaks& p) {
  rows_case c{make_host_backend({.n_threads = n_threads, .scalar_only = level == vector_level::scalar}), rows};
  const double r = static_cast<double>(rows);
  const peaks in_cache = {std::numeric_limits<double>::infinity(), p.flops_per_us};
  const auto line = [&](const char* operation, const char* shape, double bytes, double flops, auto work) {
    print(operation, shape, rows, level, n_threads, measure([&](int64_t) { work(); }), r * bytes, r * flops, in_cache);
  };
  const tensor x = c.make({rows, 256}), h = c.make({rows, 4, 256}), w = c.make({256});
  const tensor pre = c.make({rows, 4}), post = c.make({rows, 4}), comb = c.make({rows, 4, 4});
  line("rms_norm", "256", 2048, 1024, [&] { c.b->rms_norm(x, x, w, 1e-20F); });
  line("fold", "4x256", 5120, 2048, [&] { c.b->fold(x, h, pre); });
  c.b->scale(comb, 0);
  line("expand", "4x256", 9216, 9216, [&] { c.b->expand(h, x, post, comb); });
  line("quantise fp8", "256", 2048, 1536, [&] { c.b->quantise(x, quantiser::fp8_32); });

  std::vector<float> fn = normal(24 * 1024);
  stored_matrix stored;
  stored.out = 24;
  stored.in = 1024;
  stored.weight = tensor(fn.data(), dtype::f32, {24, 1024});
  const auto matrix = c.b->load(stored);
  mix_args mix;
  mix.pre = pre, mix.post = post, mix.comb = comb, mix.h = c.make({rows, 4, 256}), mix.fn = matrix.get();
  mix.scale = c.make({3}), mix.base = c.make({24});
  line("mix", "24x1024", 4096 + 98304 / r, 49152, [&] { c.b->mix(mix); });

  step_rows at;
  at.slot = at.first_row = at.table = c.ints({rows}, 0, 1);
  at.position = c.b->allocate(dtype::i64, {rows}, "bench");
  at.floor = c.b->allocate(dtype::i64, {rows}, "bench");
  for (int64_t i = 0; i < rows; ++i) at.position.i64()[i] = 900 + i;
  at.tables = c.ints({1, 16}, 1, 16);
  attention_args a;
  a.q = c.make({rows, 4, 128}), a.o = c.make({rows, 4, 128}), a.step_kv = c.make({rows, 128});
  a.rings = c.make({1, 72, 128}), a.compressed = c.make({16, 64, 128}), a.selected = c.ints({rows, 64}, 7, 900);
  a.sink = c.make({4}), a.window = 64, a.scale = 0.088F;
  line("attention", "4 heads x 128 over 128 rows", 128 * 512, 2.0 * 2 * 4 * 128 * 128, [&] { c.b->attention(a, at); });
  a.rings = c.records({1, 72, record_bytes(quantiser::fp8_32, 128)});
  a.compressed = c.records({16, 64, record_bytes(quantiser::fp4_e4m3_16, 128)});
  line("attention", "4 heads x 128 over 128 records", 64 * (132 + 72), 2.0 * 2 * 4 * 128 * 128,
       [&] { c.b->attention(a, at); });
  index_args s;
  s.q = c.make({rows, 4, 128}), s.weight = c.make({rows, 4}), s.keys = c.make({16, 64, 128});
  s.selected = c.ints({rows, 64}, 0, 1), s.candidate_block = 8;
  line("select_entries", "4 heads x 128 over 900 keys", 900 * 512, 2.0 * 4 * 128 * 900,
       [&] { c.b->select_entries(s, at); });
  s.keys = c.records({16, 64, record_bytes(quantiser::fp4_e8m0_32, 128)});
  line("select_entries", "4 heads x 128 over 900 records", 900 * 68, 2.0 * 4 * 128 * 900,
       [&] { c.b->select_entries(s, at); });
}

// Eight experts 256 -> 128 -> 256 of which each row takes two, f32 as EXL3 decodes to, over 12 layers in turn.
void bench_experts(int64_t rows, vector_level level, int n_threads, const peaks& p) {
  rows_case c{make_host_backend({.n_threads = n_threads}), rows};
  const auto stored = [](const std::vector<float>& w, int64_t out, int64_t in) {
    stored_matrix m;
    m.out = out;
    m.in = in;
    m.weight = tensor(const_cast<float*>(w.data()), dtype::f32, {out, in});
    return m;
  };
  const std::vector<float> w = normal(128 * 256);
  std::vector<std::unique_ptr<expert_set>> layers;
  for (int i = 0; i < 12; ++i) {
    const std::vector<stored_expert> e(8, {stored(w, 128, 256), stored(w, 128, 256), stored(w, 256, 128)});
    layers.push_back(c.b->load_experts(e, 0));
  }
  const tensor x = c.make({rows, 256}), y = c.make({rows, 256}), weights = c.make({rows, 2});
  const tensor ids = c.ints({rows, 2}, 3, 8);
  const double touched = static_cast<double>(std::min<int64_t>(8, 2 * rows)), one = 3.0 * 128 * 256;
  const sample s =
      measure([&](int64_t i) { c.b->experts(y, x, *layers[static_cast<size_t>(i) % 12], ids, weights, 10); });
  print(rows <= 8 ? "experts decode" : "experts prefill", "8 of 256x128 top 2", rows, level, n_threads, s,
        touched * one * 4, 2.0 * 2 * one * static_cast<double>(rows), p);
}

void bench_pool(host_threads& threads, vector_level level) {
  volatile int64_t sink = 0;
  const sample s = measure([&](int64_t) { threads.for_each(threads.size(), [&](int64_t i) { sink = i; }); });
  print("fork and join", "one empty item a thread", 0, level, threads.size(), s, 0, 0, {});
}

} // namespace
} // namespace troupe::bench

int main(int argc, char** argv) {
  using namespace troupe;
  using namespace troupe::bench;
  const int n_threads = argc > 1 ? std::atoi(argv[1]) : 1;
  if (n_threads < 1) {
    std::fprintf(stderr, "usage: bench_kernels [threads >= 1]\n");
    return 2;
  }
  const vector_level best = supported_vector_levels().back();
  host_threads threads(n_threads);
  std::printf("operation,shape,rows,level,threads,median_us,mad_us,min_us,bytes,flops,roofline_percent\n");
  for (const vector_level level : supported_vector_levels()) {
    if (level == vector_level::scalar && best != level) continue; // the twin is not meant to be fast
    const peaks p = measure_peaks(level, threads);
    std::printf("# %s, %d threads: peaks %.1f GB/s, %.1f GFLOP/s\n", name(level), n_threads, p.bytes_per_us / 1e3,
                p.flops_per_us / 1e3);
    for (const auto& [out, in, is_bf16] : {std::tuple{128, 256, true},
                                           {512, 128, true},
                                           {256, 256, true},
                                           {2048, 256, true},
                                           {1280, 384, true},
                                           {128, 256, false},
                                           {256, 128, false},
                                           {24, 1024, false}})
      bench_linear(out, in, is_bf16, level, threads, p);
  }
  bench_pool(threads, best);
  const peaks p = measure_peaks(best, threads);
  for (int64_t rows : {1, 8, 64}) {
    bench_experts(rows, best, n_threads, p);
    bench_rows(rows, best, n_threads, p);
  }
  return 0;
}
