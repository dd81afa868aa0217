// Routed experts on the device: EXL3 and unpacked, runs of one to many rows, ranks that own a part.
#include "tests/cuda/stored_samples.h"
#include "tests/cuda/twins.h"

#include <fmt/format.h>

using namespace troupe;
using namespace troupe::test;

namespace {

struct expert_samples {
  std::vector<stored_sample> parts; // gate, up, down of each
  std::vector<stored_expert> experts;
  int64_t dim = 0;
};

expert_samples trellis_experts(stored_matrix::codebook book, int rate, int down_rate, int n, int64_t dim,
                               int64_t width) {
  expert_samples s;
  s.dim = dim;
  s.parts.reserve(static_cast<size_t>(3 * n));
  for (unsigned e = 0; e < static_cast<unsigned>(n); ++e) {
    for (unsigned part = 0; part < 3; ++part)
      s.parts.push_back(part == 2 ? trellis_sample(book, down_rate, width, dim, 100 * e + part)
                                  : trellis_sample(book, rate, dim, width, 100 * e + part));
    const auto* p = &s.parts[3 * e];
    s.experts.push_back({p[0].m, p[1].m, p[2].m});
  }
  return s;
}

expert_samples plain_experts(size_t which, int n, int64_t dim, int64_t width) {
  expert_samples s;
  s.dim = dim;
  s.parts.reserve(static_cast<size_t>(3 * n));
  for (int e = 0; e < n; ++e) {
    for (int part = 0; part < 3; ++part) {
      auto all = part == 2 ? plain_samples(dim, width) : plain_samples(width, dim);
      s.parts.push_back(std::move(all[which]));
    }
    const auto* p = &s.parts[static_cast<size_t>(3 * e)];
    s.experts.push_back({p[0].m, p[1].m, p[2].m});
  }
  return s;
}

// Distinct experts for each row; `few`: all rows choose among the first few, so runs are long.
std::vector<int32_t> choices(int64_t rows, int64_t k, int n, bool few) {
  std::mt19937 random(5);
  std::vector<int32_t> ids;
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<int32_t> all;
    for (int32_t e = 0; e < (few ? static_cast<int>(k) + 1 : n); ++e) all.push_back(e);
    std::shuffle(all.begin(), all.end(), random);
    ids.insert(ids.end(), all.begin(), all.begin() + k);
  }
  return ids;
}

void compare(twins& t, const char* name, const expert_samples& s, int64_t rows, int64_t k, bool few, double bound) {
  const int n = static_cast<int>(s.experts.size());
  const std::vector<int32_t> ids = choices(rows, k, n, few);
  std::vector<float> w = random_floats(rows * k, 3, 0.1F);
  for (float& v : w) v = std::fabs(v) + 0.1F;
  const twin_tensor x = t.floats({rows, s.dim}, 1, 0.5F), y = t.output({rows, s.dim}), i = t.ints({rows, k}, ids),
                    weights = t.make(dtype::f32, {rows, k}, w);
  const auto host = t.host->load_experts(s.experts, 0), device = t.device->load_experts(s.experts, 0);
  t.host->experts(y.host, x.host, *host, i.host, weights.host, 2.0F);
  t.device->experts(y.device, x.device, *device, i.device, weights.device, 2.0F);
  t.near_rms(fmt::format("experts {}, {} rows", name, rows).c_str(), y, bound);
  const std::vector<float> together = t.read_device(y);
  const twin_tensor one = t.output({1, s.dim});
  for (int64_t r = 0; r < rows; r += 4) {
    t.device->experts(one.device, x.device.slice(r, 1), *device, i.device.slice(r, 1), weights.device.slice(r, 1),
                      2.0F);
    const std::vector<float> alone = t.read_device(one);
    CHECK_MESSAGE(std::memcmp(alone.data(), together.data() + r * s.dim, alone.size() * 4) == 0, name << " row " << r);
  }
  // Two ranks that own a part each give the whole in sum.
  const auto low = t.device->load_experts(std::span(s.experts).first(2), 0),
             high = t.device->load_experts(std::span(s.experts).subspan(2), 2);
  const twin_tensor a = t.output({rows, s.dim}), b = t.output({rows, s.dim});
  t.device->experts(a.device, x.device, *low, i.device, weights.device, 2.0F);
  t.device->experts(b.device, x.device, *high, i.device, weights.device, 2.0F);
  t.device->add(a.device, b.device);
  CHECK(relative_error(t.read_device(a), together) < 1e-5);
}

} // namespace

TEST_CASE("cuda experts: EXL3 of every codebook, alone and together") {
  twins t;
  for (const auto book :
       {stored_matrix::codebook::mul1, stored_matrix::codebook::mcg, stored_matrix::codebook::inst3}) {
    const expert_samples s = trellis_experts(book, 6, 8, 7, 256, 384);
    for (const int64_t rows : {1, 3, 17, 30})
      for (const bool few : {false, true}) compare(t, name(book), s, rows, 3, few, 2e-3);
  }
}

TEST_CASE("cuda experts: EXL3 in the prefill class, alone and together") {
  twins t;
  t.device->set_row_classes(all_prefill);
  for (const auto book :
       {stored_matrix::codebook::mul1, stored_matrix::codebook::mcg, stored_matrix::codebook::inst3}) {
    const expert_samples s = trellis_experts(book, 6, 8, 7, 256, 384);
    for (const int64_t rows : {1, 17, 150, 421})
      for (const bool few : {false, true}) compare(t, name(book), s, rows, 3, few, 2e-3);
  }
}

TEST_CASE("cuda experts: prefill with padded and wide widths, and in slabs of a small scratch") {
  twins t, small(4 << 20);
  for (twins* on : {&t, &small}) on->device->set_row_classes(all_prefill);
  expert_samples wide = trellis_experts(stored_matrix::codebook::mul1, 6, 6, 5, 128, 384);
  compare(t, "wide", wide, 90, 3, false, 2e-3);
  compare(small, "wide in slabs", wide, 390, 3, false, 2e-3);
  expert_samples padded = trellis_experts(stored_matrix::codebook::mul1, 5, 7, 5, 384, 256);
  for (stored_expert& e : padded.experts) {
    e.gate.in = e.up.in = e.down.out = 301;
    e.gate.out = e.up.out = e.down.in = 199;
  }
  padded.dim = 301;
  compare(t, "padded", padded, 77, 3, false, 2e-3);
}

TEST_CASE("cuda experts: prefill gives a row the same bits whatever the scratch holds") {
  const expert_samples s = trellis_experts(stored_matrix::codebook::mul1, 6, 8, 7, 256, 384);
  constexpr int64_t rows = 421, k = 3;
  const std::vector<int32_t> ids = choices(rows, k, 5, false); // two experts without rows
  std::vector<float> w = random_floats(rows * k, 3, 0.1F), first;
  for (const int64_t scratch_bytes : {64 << 20, 2 << 20, 1 << 20, 96 << 10}) {
    twins t(scratch_bytes);
    t.device->set_row_classes(all_prefill);
    const twin_tensor x = t.floats({rows, s.dim}, 1, 0.5F), y = t.output({rows, s.dim}), i = t.ints({rows, k}, ids),
                      weights = t.make(dtype::f32, {rows, k}, w);
    const auto set = t.device->load_experts(s.experts, 0);
    t.device->experts(y.device, x.device, *set, i.device, weights.device, 2.0F);
    const std::vector<float> got = t.read_device(y);
    if (first.empty()) first = got;
    CHECK_MESSAGE(std::memcmp(got.data(), first.data(), got.size() * sizeof(float)) == 0, scratch_bytes << " bytes");
  }
}

TEST_CASE("cuda experts: unpacked formats") {
  twins t;
  for (const size_t which : {size_t{1}, size_t{3}, size_t{5}}) {
    const expert_samples s = plain_experts(which, 5, 96, 160);
    compare(t, s.parts[0].m.name.c_str(), s, 9, 2, false, 1e-5);
  }
}

TEST_CASE("cuda experts: a shared expert takes the place of what is there") {
  twins t;
  const expert_samples s = trellis_experts(stored_matrix::codebook::mul1, 10, 10, 1, 256, 256);
  const twin_tensor x = t.floats({5, 256}, 1, 0.5F), y = t.floats({5, 256}, 2);
  for (backend* b : {t.host.get(), t.device.get()}) {
    const auto g = b->load(s.experts[0].gate), u = b->load(s.experts[0].up), d = b->load(s.experts[0].down);
    b->gated_mlp(t.of(*b, y), t.of(*b, x), *g, *u, *d, 3.0F);
  }
  t.near_rms("gated_mlp", y, 2e-3);
}

TEST_CASE("cuda experts: mixed rates in a layer are refused by name") {
  twins t;
  expert_samples s = trellis_experts(stored_matrix::codebook::mul1, 6, 6, 2, 256, 256);
  const stored_sample other = trellis_sample(stored_matrix::codebook::mul1, 8, 256, 256, 9);
  s.experts[1].up = other.m;
  CHECK_THROWS_WITH_AS(t.device->load_experts(s.experts, 0), doctest::Contains(other.m.name.c_str()),
                       std::runtime_error);
}
