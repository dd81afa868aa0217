// Kernels of the CUDA backend on shapes of the real model, with cold weights: medians of graph replays and the part of
// the limit they reach, with the target of each row.
// usage: bench_cuda [--list] [name part ...], e.g. "16384x16384 K=3"
// --list: names and targets of all rows, without a device.
// Weights are rotated through more than 256 MB, so every call reads them from device memory (exl3-peer-speed's method).
#include "bench/cuda_caches.h"
#include "bench/cuda_rows_bench.h"
#include "bench/cuda_targets.h"
#include "bench/cuda_timing.h"
#include "gpu/cuda_backend.h"
#include "gpu/sample.h"
#include "tests/cuda/stored_samples.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::bench;

namespace {

std::vector<std::string> parts; // of names to run; empty: all
bool wanted(const std::string& name) {
  return parts.empty() || std::any_of(parts.begin(), parts.end(),
                                      [&](const std::string& p) { return name.find(p) != std::string::npos; });
}

struct gemv_shape {
  int64_t in, out;
  int rate; // 2 K
  stored_matrix::codebook book = stored_matrix::codebook::mul1;
};

// Inputs and outputs of all shapes, taken once: the backend frees at its end only.
struct activations {
  tensor x, y;
  explicit activations(backend& b)
      : x(b.allocate(dtype::f32, {int64_t{4096} * 16384}, "x")),
        y(b.allocate(dtype::f32, {int64_t{4096} * 32768}, "y")) {
    std::vector<float> values(static_cast<size_t>(x.n_elements()));
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < values.size(); ++i) values[i] = i < 65536 ? normal(random) : values[i - 65536];
    b.upload(x, values.data(), x.size_bytes());
  }
};

void bench_linear(backend& b, const char* kind, const activations& a, const gemv_shape& s,
                  const std::vector<int64_t>& row_counts) {
  const auto name_of = [&](int64_t rows) {
    return text("%s %s %lldx%lld K=%g m=%lld", kind, name(s.book), static_cast<long long>(s.in),
                static_cast<long long>(s.out), s.rate / 2.0, static_cast<long long>(rows));
  };
  if (std::none_of(row_counts.begin(), row_counts.end(), [&](int64_t rows) { return wanted(name_of(rows)); })) return;
  const test::stored_sample sample = test::trellis_sample(s.book, s.rate, s.in, s.out, 1);
  const int64_t bytes = s.in * s.out * s.rate / 16;
  std::vector<std::unique_ptr<matrix>> copies;
  while (static_cast<int64_t>(copies.size()) * bytes < cold_bytes || copies.size() < 2)
    copies.push_back(b.load(sample.m));
  double one_row_us = 0;
  for (const int64_t rows : row_counts) {
    if (!wanted(name_of(rows))) continue;
    std::vector<std::function<void()>> calls;
    const size_t n = rows > 64 ? copies.size() : std::max<size_t>(copies.size(), 24);
    for (size_t i = 0; i < n; ++i) {
      const matrix* m = copies[i % copies.size()].get();
      const tensor in(a.x.f32(), dtype::f32, {rows, s.in}), out(a.y.f32(), dtype::f32, {rows, s.out});
      calls.push_back([&b, m, in, out] { b.linear(out, in, *m); });
    }
    const timing t = time_calls(b, calls, a.y);
    if (rows == 1) one_row_us = t.median_us;
    row(name_of(rows), t, static_cast<double>(s.in * s.out), static_cast<double>(bytes),
        rows == 8 ? one_row_us / 0.9 : 0); // at least 90 % of the rate of one row
    if (rows > 16) std::printf("# %.1f TFLOP/s\n", 2e-6 * static_cast<double>(rows * s.in * s.out) / t.median_us);
  }
}

// 384 experts of the real widths; rows choose distinct experts at random.
void bench_moe(backend& b, int rate, const std::vector<int64_t>& row_counts) {
  constexpr int n_experts = 384, k = 6;
  constexpr int64_t dim = 5120, width = 2304;
  const auto book = stored_matrix::codebook::mul1;
  const auto name_of = [&](int64_t rows) {
    return text("moe 384 top-6 K=%g m=%lld", rate / 2.0, static_cast<long long>(rows));
  };
  if (std::none_of(row_counts.begin(), row_counts.end(), [&](int64_t rows) { return wanted(name_of(rows)); })) return;
  const test::stored_sample gate = test::trellis_sample(book, rate, dim, width, 1),
                            up = test::trellis_sample(book, rate, dim, width, 2),
                            down = test::trellis_sample(book, rate, width, dim, 3);
  const std::vector<stored_expert> experts(n_experts, {gate.m, up.m, down.m});
  const auto set = b.load_experts(experts, 0);
  const int64_t most = *std::max_element(row_counts.begin(), row_counts.end());
  const tensor x = b.allocate(dtype::f32, {most, dim}, "x"), y = b.allocate(dtype::f32, {most, dim}, "y");
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(most * dim));
  for (float& v : values) v = normal(random);
  b.upload(x, values.data(), x.size_bytes());
  for (const int64_t rows : row_counts) {
    if (!wanted(name_of(rows))) continue;
    const int n_calls = rows > 16 ? 4 : 24;
    std::vector<std::function<void()>> calls;
    double hit = 0;
    for (int call = 0; call < n_calls; ++call) {
      const tensor ids = b.allocate(dtype::i32, {rows, k}, "ids"), w = b.allocate(dtype::f32, {rows, k}, "weights");
      std::vector<int32_t> chosen;
      std::vector<bool> used(n_experts);
      for (int64_t r = 0; r < rows; ++r) {
        std::vector<int32_t> all(n_experts);
        for (int e = 0; e < n_experts; ++e) all[static_cast<size_t>(e)] = e;
        std::shuffle(all.begin(), all.end(), random);
        chosen.insert(chosen.end(), all.begin(), all.begin() + k);
        for (int i = 0; i < k; ++i) used[static_cast<size_t>(all[static_cast<size_t>(i)])] = true;
      }
      hit += static_cast<double>(std::count(used.begin(), used.end(), true)) / n_calls;
      b.upload(ids, chosen.data(), ids.size_bytes());
      const std::vector<float> sixth(chosen.size(), 1.0F / k);
      b.upload(w, sixth.data(), w.size_bytes());
      const tensor in = x.slice(0, rows), out = y.slice(0, rows);
      calls.push_back([&b, &set, ids, w, in, out] { b.experts(out, in, *set, ids, w, 10); });
    }
    std::printf("# %.1f of %d experts hit\n", hit, n_experts);
    const double weights = hit * 3 * static_cast<double>(dim * width);
    row(name_of(rows), time_calls(b, calls, y), weights, weights * rate / 16);
  }
}

// Rows as the head leaves them, with the whole of a usual nucleus: normal logits, top_p 0.95 at temperature 1.
void bench_sampler(backend& b, int64_t rows) {
  constexpr int64_t vocabulary = 129280;
  std::vector<float> values(static_cast<size_t>(rows * vocabulary));
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 2.5F);
  for (float& v : values) v = normal(random);
  std::vector<sample_row> rules(static_cast<size_t>(rows));
  for (size_t r = 0; r < rules.size(); ++r) rules[r].top_p = 0.95F, rules[r].seed = r, rules[r].position = 100;
  sample_args a;
  a.logits = b.allocate(dtype::f32, {rows, vocabulary}, "logits");
  a.ids = b.allocate(dtype::i32, {rows}, "ids");
  const auto n_bytes = static_cast<int64_t>(rules.size() * sizeof(sample_row));
  const tensor on_device = b.allocate(dtype::i8, {n_bytes}, "rules");
  b.upload(a.logits, values.data(), a.logits.size_bytes());
  b.upload(on_device, rules.data(), n_bytes);
  a.rows = on_device.as<const sample_row>();
  const std::vector<std::function<void()>> calls(24, [&b, &a] { sample_cuda(a, lane_of(b)); });
  row(text("sampler 129280 top_p m=%lld", static_cast<long long>(rows)), time_calls(b, calls, a.ids),
      static_cast<double>(rows * vocabulary), static_cast<double>(a.logits.size_bytes()));
}

} // namespace

int main(int argc, char** argv) {
  parts.assign(argv + 1, argv + argc);
  if (!parts.empty() && parts[0] == "--list") return bench::print_targets(), 0;
  std::string why;
  if (list_cuda_devices(why).empty()) {
    std::printf("bench_cuda: not run: %s\n", why.c_str());
    return 0;
  }
  const auto b = make_cuda_backend({.scratch_bytes = scratch_of_chunk(8192)});
  std::printf("# %s\nwhat,median us,least us,weights/s,GB/s,%% of 4.2 TB/s,target us\n", b->name().c_str());
  const activations a(*b);
  using book = stored_matrix::codebook;
  const std::vector<gemv_shape> shapes{
      {5120, 2304, 4},   {5120, 2304, 6},   {2304, 5120, 6},   {1280, 32768, 10},  {8192, 5120, 10},
      {16384, 16384, 4}, {16384, 16384, 6}, {16384, 16384, 8}, {16384, 16384, 10}, {16384, 16384, 6, book::mcg},
      {5120, 129280, 12}};
  for (const gemv_shape& s : shapes) bench_linear(*b, "gemv", a, s, {1, 4, 8});
  for (const int64_t rows : {1, 8})
    if (wanted(text("sampler 129280 top_p m=%lld", static_cast<long long>(rows)))) bench_sampler(*b, rows);
  bench_moe(*b, 6, {1, 4, 8, 16});
  bench_caches(*b, wanted);
  const bench::measure_call measure = [&](const std::string& name, const std::function<void()>& call, tensor any,
                                          double bytes) {
    row(name, time_calls(*b, std::vector<std::function<void()>>(4, call), any), 0, bytes);
  };
  bench::bench_rows(*b, 1, 65536, wanted, measure);
  b->set_row_classes(all_prefill);
  bench::bench_rows(*b, 8192, 8192, wanted, measure);
  const auto long_only = [](const std::string& name) {
    return wanted(name) && (name.starts_with("attention m") || name.starts_with("select_entries"));
  };
  bench::bench_rows(*b, 8192, 65536, long_only, measure);
  for (const gemv_shape& s : {gemv_shape{5120, 2304, 6}, gemv_shape{16384, 16384, 6}, gemv_shape{1280, 32768, 10}})
    bench_linear(*b, "gemm", a, s, {64, 1024, 4096});
  bench_moe(*b, 6, {64, 1536, 4096, 8192});
  return 0;
}
