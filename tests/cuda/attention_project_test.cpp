// Attention with the grouped product of its outputs on the device: against its parts there, and against the host.
#include "gpu/cuda_lane.h"
#include "tests/cuda/attention_world.h"
#include "tests/cuda/stored_samples.h"

namespace troupe::test {
namespace {

constexpr int64_t n_groups = 8, n_turned = 32;

// A world and what makes z of its outputs.
struct projection {
  world w;
  twin_tensor frequencies;
  std::vector<std::unique_ptr<matrix>> host, device;
  std::vector<const matrix*> on_host, on_device;
  int64_t out;

  explicit projection(const shape& s, int64_t scratch_bytes = 64 << 20, int64_t width = 256)
      : w(s, scratch_bytes), out(width) {
    std::vector<float> f;
    for (int64_t i = 0; i < n_turned; ++i) f.push_back(std::pow(10000.0F, -static_cast<float>(i) / n_turned));
    frequencies = w.t.make(dtype::f32, {n_turned}, f);
    for (unsigned g = 0; g < n_groups; ++g) {
      const auto one = trellis_sample(stored_matrix::codebook::mul1, 6, s.heads * s.dim / n_groups, out, 40 + g);
      host.push_back(w.t.host->load(one.m)), device.push_back(w.t.device->load(one.m));
      on_host.push_back(host.back().get()), on_device.push_back(device.back().get());
    }
  }
  attention_args args(backend& b, const world::step& at, const twin_tensor& o, const twin_tensor& q) {
    attention_args a = w.args(b, at, o);
    a.q = w.t.of(b, q);
    return a;
  }
  std::span<const matrix* const> matrices(backend& b) const { return &b == w.t.host.get() ? on_host : on_device; }
  // In one call. `turned`: rotation took place before it.
  void together(backend& b, const world::step& at, const twin_tensor& z, bool turned = false) {
    const twin_tensor o = w.t.output({at.n_rows, w.s.heads, w.s.dim}), q = queries(at);
    if (turned) b.rope(w.t.of(b, q), w.t.of(b, at.position), w.t.of(b, frequencies), false);
    b.attention_project(w.t.of(b, z), args(b, at, o, q), at.of(w.t, b), {w.t.of(b, frequencies), !turned}, matrices(b));
  }
  void apart(backend& b, const world::step& at, const twin_tensor& z) {
    const twin_tensor o = w.t.output({at.n_rows, w.s.heads, w.s.dim}), q = queries(at);
    const tensor position = w.t.of(b, at.position), f = w.t.of(b, frequencies), out_rows = w.t.of(b, o);
    b.rope(w.t.of(b, q), position, f, false);
    b.attention(args(b, at, o, q), at.of(w.t, b));
    b.rope(out_rows, position, f, true);
    b.linear_grouped(w.t.of(b, z), out_rows.reshape({at.n_rows, n_groups, w.s.heads * w.s.dim / n_groups}),
                     matrices(b));
  }
  twin_tensor output(const world::step& at) { return w.t.output({at.n_rows, n_groups, out}); }
  // A copy: rotation is in place.
  twin_tensor queries(const world::step& at) {
    return w.t.make(dtype::f32, {at.n_rows, w.s.heads, w.s.dim}, w.t.read_device(w.q.slice(at.before, at.n_rows)));
  }
  // z of runs [first, first + n) in a step of their own, on the device.
  std::vector<float> project(size_t first, size_t n, std::span<const row_run> classes = all_prefill) {
    w.t.device->set_row_classes(classes);
    const world::step at = w.step_of(first, n);
    const twin_tensor z = output(at);
    together(*w.t.device, at, z);
    return w.t.read_device(z);
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

const std::vector<shape> projected{
    {"records, one row", 64, 512, 128, 512, seen::causal, sequences(1, 1900, 1), key_form::records},
    {"records, chunks", 64, 512, 128, 512, seen::causal, {{0, 0, 40}, {1, 700, 3}, {2, 1200, 30}}, key_form::records},
    {"records, far", 64, 512, 128, 0, seen::causal, {{0, 900000, 9}, {1, 130, 150}}, key_form::records},
    {"records, draft blocks", 64, 512, 128, 0, seen::draft_block, {{0, 200, 6}, {1, 3, 5}}, key_form::records},
    {"records, blind", 64, 512, 128, 64, seen::causal, {{0, 0, 3, 6}}, key_form::records},
    {"floats", 64, 512, 128, 30, seen::causal, {{0, 90, 9}}, key_form::rounded},
    {"narrow", 16, 256, 20, 8, seen::causal, {{0, 0, 3}, {1, 70, 9}}, key_form::records},
};

TEST_CASE("cuda attention_project: one call has the bits of its parts, with queries turned in it or before") {
  for (const shape& s : projected) {
    projection p(s);
    const world::step all = p.w.step_of(0, s.runs.size());
    for (const bool prompts : {false, true}) {
      backend& b = *p.w.t.device;
      b.set_row_classes(prompts ? std::span<const row_run>(all_prefill) : std::span<const row_run>());
      const twin_tensor parts = p.output(all), one = p.output(all), turned = p.output(all);
      p.apart(b, all, parts), p.together(b, all, one), p.together(b, all, turned, true);
      const std::vector<float> want = p.w.t.read_device(parts);
      CHECK_MESSAGE(same_bits(p.w.t.read_device(one), want), s.what);
      CHECK_MESSAGE(same_bits(p.w.t.read_device(turned), want), s.what << ", queries turned before");
    }
  }
}

// f16 outputs of attention, 2^-10 off (attention_test.cpp), and f16 operands of products (gemm_test.cpp).
TEST_CASE("cuda attention_project: outputs of prompts are near the host's") {
  for (const shape& s : projected) {
    projection p(s);
    const world::step all = p.w.step_of(0, s.runs.size());
    const twin_tensor z = p.output(all);
    p.w.t.device->set_row_classes(all_prefill);
    p.together(*p.w.t.host, all, z), p.together(*p.w.t.device, all, z);
    p.w.t.near_rms((std::string("attention_project, ") + s.what).c_str(), z, 1e-3 + 0x1p-10);
  }
}

TEST_CASE(
    "cuda attention_project: a sequence alone, and in slabs of a small scratch, has the bits it has among others") {
  projection p(projected[1]), small(projected[1], 3 << 20); // slabs of 40 rows
  const auto together = p.project(0, 3);
  CHECK(same_bits(small.project(0, 3), together));
  std::vector<float> alone;
  for (size_t i = 0; i < 3; ++i) {
    const auto one = p.project(i, 1);
    alone.insert(alone.end(), one.begin(), one.end());
  }
  CHECK(same_bits(alone, together));
}

TEST_CASE("cuda attention_project: rows of both classes share a step") {
  const shape s{"mixed", 64, 512, 128, 100, seen::causal, {{0, 300, 40}, {1, 90, 7}}, key_form::records};
  projection p(s);
  const auto decode = p.project(0, 2, {}), prompt = p.project(0, 2);
  constexpr row_run mixed[] = {{row_class::prefill, 21}, {row_class::decode, 3}, {row_class::prefill, 17}};
  const auto both = p.project(0, 2, mixed);
  const auto width = static_cast<size_t>(n_groups * p.out);
  for (size_t r = 0; r < 47; ++r) {
    const auto& want = r < 21 || (r >= 24 && r < 41) ? prompt : decode;
    CHECK_MESSAGE(std::memcmp(both.data() + r * width, want.data() + r * width, width * sizeof(float)) == 0,
                  "row " << r);
  }
}

// Of keys of extreme magnitude, so that a row's power of two moves.
TEST_CASE("cuda attention_project: outputs of any magnitude have the bits of the parts") {
  for (const float key_by : {0x1p-8F, 0x1p13F}) {
    const shape s{"extreme keys", 64, 512, 128, 100, seen::causal, sequences(3, 900, 2), key_form::records, 1, key_by};
    projection p(s);
    const world::step all = p.w.step_of(0, 3);
    p.w.t.device->set_row_classes(all_prefill);
    const twin_tensor parts = p.output(all), one = p.output(all);
    p.apart(*p.w.t.device, all, parts), p.together(*p.w.t.device, all, one);
    CHECK_MESSAGE(same_bits(p.w.t.read_device(one), p.w.t.read_device(parts)), key_by);
  }
}

} // namespace
} // namespace troupe::test
