// One buffer serves all operations that want rows: the backend frees at its end only.
#include "bench/cuda_rows_bench.h"

#include "bench/cuda_caches.h"
#include "tests/cuda/stored_samples.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace troupe::bench {
namespace {

constexpr int64_t dim = 5120, copies = 4, heads = 64, head_dim = 512, window = 128, ring = 256, top_k = 512;
constexpr int64_t groups = 8; // of heads, for the product of their outputs
constexpr int64_t index_heads = 32, index_dim = 128, ratio = 2, block_tokens = 64, n_experts = 384, experts_a_row = 6;
constexpr int64_t engram_columns = 24, engram_width = 256, engram_bytes = engram_width + engram_width / 32;

class rows_bench {
public:
  rows_bench(backend& b, int64_t rows, int64_t context, const std::function<bool(const std::string&)>& wanted,
             const measure_call& measure)
      : b_(b), n_(rows), context_(context), wanted_(wanted), measure_(measure) {}

  void run() {
    if (wants("attention") || wants("attention of the window") || wants("attention_project")) attention();
    if (wants("select_entries")) select();
    if (wants("mix") || wants("fold_norm") || wants("expand") || wants("expand_fold_norm") || wants("engram_gate"))
      streams();
    if (wants("route")) route();
    if (wants("rms_norm") || wants("rope") || wants("quantise") || wants("write_rings") || wants("dequant_rows") ||
        wants("receive"))
      small();
  }

private:
  std::string name(const char* what) const {
    return std::string(what) + " m=" + std::to_string(n_) + " at " + std::to_string(context_ >> 10) + "k";
  }
  bool wants(const char* what) const { return wanted_(name(what)); }
  void time(const char* what, const std::function<void()>& call, tensor any, double bytes) {
    if (wants(what)) measure_(name(what), call, any, bytes);
  }
  template <class T> tensor with(dtype type, std::initializer_list<int64_t> shape, const std::vector<T>& values) {
    const tensor t = b_.allocate(type, shape, "bench");
    b_.upload(t, values.data(), t.size_bytes());
    return t;
  }
  // Normal numbers, the same 64 K again and again.
  tensor floats(std::initializer_list<int64_t> shape) {
    const tensor t = b_.allocate(dtype::f32, shape, "bench");
    std::vector<float> v(static_cast<size_t>(std::min<int64_t>(t.n_elements(), 1 << 16)));
    std::normal_distribution<float> normal;
    for (float& x : v) x = normal(random_);
    const auto all = static_cast<int64_t>(v.size());
    for (int64_t at = 0; at < t.n_elements(); at += all) {
      const int64_t n = std::min(all, t.n_elements() - at);
      b_.upload(tensor(t.f32() + at, dtype::f32, {n}), v.data(), n * 4);
    }
    return t;
  }
  // One sequence in slot 0, its blocks one after another.
  step_rows rows() {
    std::vector<int32_t> zeros(static_cast<size_t>(n_)), blocks(static_cast<size_t>(n_blocks()));
    std::vector<int64_t> positions(zeros.size()), floor(zeros.size());
    std::iota(positions.begin(), positions.end(), context_ - n_);
    std::iota(blocks.begin(), blocks.end(), 0);
    step_rows r;
    r.slot = r.first_row = r.table = with(dtype::i32, {n_}, zeros);
    r.position = with(dtype::i64, {n_}, positions);
    r.floor = with(dtype::i64, {n_}, floor);
    r.tables = with(dtype::i32, {1, n_blocks()}, blocks);
    return r;
  }
  int64_t n_blocks() const { return (context_ + block_tokens - 1) / block_tokens; }
  tensor window_rings() { return make_cache(b_, b_.preferred_caches(), 1, ring, quantiser::fp8_32, head_dim); }
  tensor entries(quantiser how, int64_t width) {
    return make_cache(b_, b_.preferred_caches(), n_blocks(), block_tokens / ratio, how, width);
  }

  // Chosen entries: among those a row sees, as far as there are enough.
  std::vector<int32_t> chosen() {
    std::vector<int32_t> all;
    for (int64_t r = 0; r < n_; ++r) {
      const int64_t visible = (context_ - n_ + r + 1) / ratio, n = std::min(visible, top_k);
      for (int64_t i = 0; i < top_k; ++i) all.push_back(i < n ? static_cast<int32_t>(i * visible / n) : -1);
    }
    return all;
  }

  void attention() {
    attention_args a;
    a.q = floats({n_, heads, head_dim});
    a.o = b_.allocate(dtype::f32, {n_, heads, head_dim}, "bench");
    a.step_kv = floats({n_, head_dim});
    a.rings = window_rings();
    a.sink = floats({heads});
    b_.quantise(a.step_kv, quantiser::fp8_32);
    a.window = window;
    a.scale = 0.04F;
    const step_rows r = rows();
    const double io = 2.0 * static_cast<double>(a.q.size_bytes());
    time(
        "attention of the window", [&] { b_.attention(a, r); }, a.o, io);
    a.compressed = entries(quantiser::fp4_e4m3_16, head_dim);
    a.selected = with(dtype::i32, {n_, top_k}, chosen());
    time(
        "attention", [&] { b_.attention(a, r); }, a.o, io);
    if (wants("attention_project")) project(a, r);
  }

  // As a layer calls it: queries of prompts come before their rotation.
  void project(const attention_args& a, const step_rows& r) {
    const auto sample = test::trellis_sample(stored_matrix::codebook::mul1, 10, heads * head_dim / groups, 1024, 1);
    std::vector<std::unique_ptr<matrix>> made;
    std::vector<const matrix*> w;
    for (int64_t g = 0; g < groups; ++g) made.push_back(b_.load(sample.m)), w.push_back(made.back().get());
    const tensor z = b_.allocate(dtype::f32, {n_, groups, 1024}, "bench");
    const head_turns turns{floats({32}), n_ > 1};
    time(
        "attention_project", [&] { b_.attention_project(z, a, r, turns, w); }, z,
        static_cast<double>(a.q.size_bytes() + z.size_bytes()));
  }

  void select() {
    index_args a;
    a.q = floats({n_, index_heads, index_dim});
    a.weight = floats({n_, index_heads});
    a.keys = entries(quantiser::fp4_e8m0_32, index_dim);
    b_.quantise(a.q, quantiser::fp4_e8m0_32);
    a.selected = b_.allocate(dtype::i32, {n_, top_k}, "bench");
    a.ratio = ratio;
    const step_rows r = rows();
    time(
        "select_entries", [&] { b_.select_entries(a, r); }, a.selected,
        static_cast<double>(a.q.size_bytes() + a.keys.size_bytes()));
  }

  void streams() {
    std::vector<float> weights(static_cast<size_t>((2 + copies) * copies * copies * dim));
    for (float& w : weights) w = 1e-3F * static_cast<float>(random_() % 17);
    stored_matrix m;
    m.name = "fn", m.out = (2 + copies) * copies, m.in = copies * dim;
    m.weight = tensor(weights.data(), dtype::f32, {m.out, m.in});
    const auto fn = b_.load(m);
    mix_args a;
    a.h = floats({n_, copies, dim});
    a.fn = fn.get();
    a.pre = floats({n_, copies});
    a.post = floats({n_, copies});
    a.comb = floats({n_, copies, copies});
    a.scale = floats({3});
    a.base = floats({m.out});
    const tensor x = floats({n_, dim});
    const auto h = static_cast<double>(a.h.size_bytes()), row = static_cast<double>(x.size_bytes());
    time(
        "mix", [&] { b_.mix(a); }, a.pre, h);
    const tensor norm = floats({dim});
    time(
        "fold_norm", [&] { b_.fold_norm(x, a.h, a.pre, norm, 1e-6F); }, x, h + row);
    time(
        "expand", [&] { b_.expand(a.h, x, a.post, a.comb); }, a.h, 2 * h + row);
    if (wants("expand_fold_norm")) {
      const tensor folded = b_.allocate(dtype::f32, {n_, dim}, "bench");
      time(
          "expand_fold_norm", [&] { b_.expand_fold_norm(a.h, x, {}, a.post, a.comb, folded, a.pre, norm, 1e-6F); }, a.h,
          2 * h + 2 * row);
    }
    if (!wants("engram_gate")) return;
    const tensor kv = floats({n_, copies + 1, dim}), q = floats({copies, dim}), k = floats({copies, dim});
    time(
        "engram_gate", [&] { b_.engram_gate(a.h, kv, q, k, {}, {}, 1e-20F); }, a.h, 3 * h + row);
  }

  void route() {
    std::vector<uint16_t> weights;
    for (int64_t i = 0; i < n_experts * dim; ++i) weights.push_back(static_cast<uint16_t>(0x3C00 + random_() % 256));
    stored_matrix m;
    m.name = "gate", m.out = n_experts, m.in = dim;
    m.weight = tensor(weights.data(), dtype::bf16, {n_experts, dim});
    const auto gate = b_.load(m);
    const tensor x = floats({n_, dim}), bias = floats({n_experts}), w = floats({n_, experts_a_row});
    const tensor ids = b_.allocate(dtype::i32, {n_, experts_a_row}, "bench");
    time(
        "route", [&] { b_.route(ids, w, x, *gate, bias, {}, {}, 1.5F); }, w, static_cast<double>(x.size_bytes()));
  }

  void small() {
    const tensor x = floats({n_, dim}), norm = floats({dim}), q = floats({n_, heads, head_dim});
    const tensor frequencies = floats({32}), rings = window_rings(), kv = floats({n_, head_dim});
    const tensor index_q = floats({n_, index_heads, index_dim});
    const step_rows r = rows();
    const auto bytes = [](tensor t) { return 2.0 * static_cast<double>(t.size_bytes()); };
    time(
        "rms_norm", [&] { b_.rms_norm(x, x, norm, 1e-20F); }, x, bytes(x));
    time(
        "rope", [&] { b_.rope(q, r.position, frequencies, false); }, q, bytes(q) / 8);
    time(
        "quantise", [&] { b_.quantise(index_q, quantiser::fp4_e8m0_32); }, index_q, bytes(index_q));
    time(
        "write_rings", [&] { b_.write_rings(rings, kv, r); }, rings, bytes(kv));
    if (!wants("dequant_rows") && !wants("receive")) return;
    const tensor records = b_.allocate(dtype::u8, {n_, engram_columns, engram_bytes}, "bench");
    const tensor y = b_.allocate(dtype::f32, {n_, engram_columns, engram_width}, "bench");
    time(
        "dequant_rows", [&] { b_.dequant_rows(y, records, engram_format::fp8, engram_width); }, y, bytes(y) / 2);
    // Two layers' records of a step through a mailbox that was posted before: the link of the host bounds it.
    const tensor second = b_.allocate(dtype::u8, {n_, engram_columns, engram_bytes}, "bench");
    const auto mail = b_.make_mailbox(2 * mailbox::behind(0, records.size_bytes()), "bench");
    mail->post();
    const tensor both[] = {records, second};
    time(
        "receive", [&] { b_.receive(both, *mail); }, y, bytes(records) + bytes(second));
  }

  backend& b_;
  int64_t n_, context_;
  const std::function<bool(const std::string&)>& wanted_;
  const measure_call& measure_;
  std::mt19937 random_{7};
};

} // namespace

void bench_rows(backend& b, int64_t rows, int64_t context, const std::function<bool(const std::string&)>& wanted,
                const measure_call& measure) {
  rows_bench(b, rows, context, wanted, measure).run();
}

} // namespace troupe::bench
