// Forwards every operation to its device form; memory, copies, graphs and collectives are here.
#include "gpu/cuda_backend.h"

#include "gpu/collective.h"
#include "gpu/cuda_check.cuh"
#include "gpu/cuda_load.h"
#include "gpu/cuda_ops.h"
#include "gpu/cuda_owned.cuh"
#include "gpu/cuda_parking.h"
#include "gpu/host_copies.h"
#include "gpu/mix_rows.h"
#include "gpu/moe_cuda.h"
#include "gpu/plain_gemm.h"
#include "gpu/row_sampler.h"
#include "gpu/trellis_gemv.h"

#include <algorithm>
#include <set>
#include <utility>

namespace troupe {
namespace {

constexpr int64_t n_lane_counters = 1 << 23;     // u32: among them sums of byte products, of 64 rows with any matrix
constexpr int64_t side_scratch_bytes = 64 << 20; // side work is of few rows

// Rows [first, first + n) of f32 rows of `width`, whatever the shape says.
tensor rows_of(tensor t, int64_t first, int64_t n, int64_t width) {
  return tensor(t.f32() + first * width, dtype::f32, {n, width});
}

class cuda_backend final : public backend {
public:
  explicit cuda_backend(const cuda_backend_config& c)
      : device_(c.device), group_(c.group), stream_(c.device), side_stream_(c.device),
        memory_(c.device, c.memory_bytes), copies_(c.device) {
    cudaDeviceProp properties;
    cuda_check(cudaGetDeviceProperties(&properties, device_), "cudaGetDeviceProperties");
    name_ = "cuda " + std::to_string(device_) + ", " + properties.name;
    lane_.on = stream_.get();
    lane_.n_multiprocessors = properties.multiProcessorCount;
    lane_.multiprocessor_shared_bytes = static_cast<int32_t>(properties.sharedMemPerMultiprocessor);
    lane_.block_shared_bytes = static_cast<int32_t>(properties.sharedMemPerBlockOptin);
    lane_.most_cluster = byte_form_cluster();
    lane_.has_wgmma = lane_.has_few_attention = lane_.has_prompt_attention =
        properties.major == 9 && properties.minor == 0;
    lane_.scratch_bytes = c.scratch_bytes;
    lane_.scratch = memory_.take(c.scratch_bytes, "scratch (of chunk_tokens rows)", lane_.on);
    lane_.n_counters = n_lane_counters;
    lane_.counters = reinterpret_cast<uint32_t*>(memory_.take(n_lane_counters * 4, "counters", lane_.on));
    side_lane_ = lane_;
    side_lane_.on = side_stream_.get();
    side_lane_.scratch_bytes = std::min(c.scratch_bytes, side_scratch_bytes);
    side_lane_.scratch = memory_.take(side_lane_.scratch_bytes, "scratch of side work", lane_.on);
    side_lane_.counters = reinterpret_cast<uint32_t*>(memory_.take(n_lane_counters * 4, "counters", lane_.on));
    cuda_check(cudaStreamSynchronize(lane_.on), "backend: its memory is zero before any stream uses it");
  }
  ~cuda_backend() override {
    cudaSetDevice(device_);
    cudaStreamSynchronize(stream_.get());
    cudaStreamSynchronize(side_stream_.get());
  }

  std::string name() const override { return name_; }
  dtype activation_type() const override { return dtype::f32; }
  cache_form preferred_caches() const override { return cuda_caches; }

  tensor allocate(dtype type, std::initializer_list<int64_t> shape, const std::string& what) override {
    tensor t(nullptr, type, shape);
    t.data = memory_.take(t.size_bytes(), what, lane().on);
    return t;
  }
  int64_t allocated_bytes() const override { return memory_.used_bytes(); }
  void upload(tensor to, const void* from, int64_t n_bytes) override {
    TROUPE_CHECK(n_bytes <= to.size_bytes(), "an upload fits into its tensor");
    TROUPE_CHECK(!is_capturing_, "a graph would read the bytes again when others lie there");
    copies_.to_device(to.data, from, n_bytes, lane().on, "upload");
  }
  void download(void* to, tensor from, int64_t n_bytes) override {
    TROUPE_CHECK(n_bytes <= from.size_bytes(), "a download lies inside its tensor");
    copies_.to_host(to, from.data, n_bytes, lane().on, "download: a fault of the work before it");
  }
  void begin_download(tensor from, int64_t n_bytes) {
    TROUPE_CHECK(n_bytes <= from.size_bytes(), "a download lies inside its tensor");
    copies_.begin_to_host(from.data, n_bytes, lane().on, "download");
  }
  void end_download(void* to, int64_t n_bytes) {
    copies_.collect(to, n_bytes, "download: a fault of the work before it");
  }
  std::unique_ptr<matrix> load(const stored_matrix& m) override {
    auto made = load_cuda_matrix(m, memory_, copies_, lane().on);
    note(variant_of(m), has_classes(view_of(*made)));
    return made;
  }
  std::unique_ptr<expert_set> load_experts(std::span<const stored_expert> experts, int32_t first) override {
    auto made = load_cuda_experts(experts, first, memory_, copies_, lane().on);
    if (!experts.empty()) note(variant_of(experts[0]), lane_.has_wgmma && made->is_trellis);
    return made;
  }

  void set_row_classes(std::span<const row_run> runs) override { runs_.assign(runs.begin(), runs.end()); }

  void embed(tensor y, tensor table, int64_t first_id, tensor ids) override {
    embed_cuda(y, table, first_id, ids, lane());
  }
  void copy_rows(tensor y, tensor y_rows, tensor x, tensor x_rows) override {
    copy_rows_cuda(y, y_rows, x, x_rows, lane());
  }
  void arg_max(tensor ids, tensor x, tensor x_rows, tensor y) override { arg_max_cuda(ids, x, x_rows, y, lane()); }
  void place_anchors(const anchor_args& a) override { place_anchors_cuda(a, lane()); }
  void scatter_entries(tensor cache, tensor x, tensor entries, quantiser how, const step_rows& rows) override {
    scatter_entries_cuda(cache, x, entries, how, rows, lane());
  }
  void write_rings(tensor rings, tensor x, const step_rows& rows) override { write_rings_cuda(rings, x, rows, lane()); }
  void rms_norm(tensor y, tensor x, tensor weight, float eps) override { rms_norm_cuda(y, x, weight, eps, lane()); }
  void linear(tensor y, tensor x, const matrix& m) override {
    const matrix_view& w = view_of(m);
    each_run(x.n_elements() / m.in, has_classes(w), [&](int64_t first, int64_t n, const cuda_lane& on) {
      linear_cuda(rows_of(y, first, n, m.out), rows_of(x, first, n, m.in), w, n, m.in, m.out, on);
    });
  }
  void linears(std::span<const tensor> y, tensor x, std::span<const matrix* const> w) override {
    if (w.empty()) return;
    std::vector<linear_call> calls;
    for (size_t i = 0; i < w.size(); ++i) calls.push_back({&view_of(*w[i]), x.f32(), y[i].f32(), w[i]->in, w[i]->out});
    run_linears(calls, x.n_elements() / w[0]->in);
  }
  void linear_grouped(tensor y, tensor x, std::span<const matrix* const> groups) override {
    run_linears(grouped_calls(y, x, groups), x.rows());
  }
  void rope(tensor x, tensor positions, tensor frequencies, bool inverse) override {
    rope_cuda(x, positions, frequencies, inverse, lane());
  }
  void quantise(tensor x, quantiser how) override { quantise_cuda(x, how, lane()); }
  void add(tensor y, tensor x) override { add_cuda(y, x, lane()); }
  void scale(tensor x, float by) override { scale_cuda(x, by, lane()); }

  void mix(const mix_args& a) override {
    const matrix_view& fn = view_of(*a.fn);
    each_run(a.h.rows(), has_classes(fn) || mix_rows_serve(fn), [&](int64_t first, int64_t n, const cuda_lane& on) {
      mix_args part = a;
      part.pre = a.pre.slice(first, n);
      part.post = a.post.slice(first, n);
      part.comb = a.comb.slice(first, n);
      part.h = a.h.slice(first, n);
      mix_cuda(part, fn, on);
    });
  }
  void fold(tensor x, tensor h, tensor pre) override { fold_cuda(x, h, pre, lane()); }
  void fold_norm(tensor x, tensor h, tensor pre, tensor weight, float eps) override {
    fold_norm_cuda(x, h, pre, weight, eps, lane());
  }
  void expand(tensor h, tensor y, tensor post, tensor comb) override { expand_cuda(h, y, {}, post, comb, lane()); }
  void expand_sum(tensor h, tensor y, tensor also, tensor post, tensor comb) override {
    expand_cuda(h, y, also, post, comb, lane());
  }
  void expand_fold_norm(tensor h, tensor y, tensor also, tensor post, tensor comb, tensor x, tensor pre, tensor weight,
                        float eps) override {
    expand_fold_norm_cuda(h, y, also, post, comb, x, pre, weight, eps, lane());
  }
  void spread(tensor h, tensor x) override { spread_cuda(h, x, lane()); }
  void mean_copies(tensor y, tensor h) override { mean_copies_cuda(y, h, lane()); }

  void attention(const attention_args& a, const step_rows& rows) override {
    each_run(a.q.rows(), true,
             [&](int64_t first, int64_t n, const cuda_lane& on) { attention_cuda(a, rows, first, n, on); });
  }
  void attention_project(tensor z, const attention_args& a, const step_rows& rows, const head_turns& turns,
                         std::span<const matrix* const> w) override {
    each_run(a.q.rows(), true, [&](int64_t first, int64_t n, const cuda_lane& on) {
      attention_project_cuda(z, a, rows, turns, w, first, n, on);
    });
  }
  void compress_pairs(tensor c, tensor u, tensor g, tensor pending, const step_rows& rows) override {
    compress_pairs_cuda(c, u, g, pending, rows, lane());
  }
  void select_entries(const index_args& a, const step_rows& rows) override { select_entries_cuda(a, rows, lane()); }

  void route(tensor ids, tensor weights, tensor x, const matrix& gate, tensor bias, tensor bias_vl, tensor vl,
             float by) override {
    each_slab(ids.rows(), view_of(gate), [&](int64_t first, int64_t n, tensor score, const cuda_lane& rest) {
      linear_cuda(score, x.slice(first, n), view_of(gate), n, gate.in, gate.out, rest);
      route_cuda(ids.slice(first, n), weights.slice(first, n), score, bias, bias_vl, vl ? vl.slice(first, n) : vl, by,
                 rest);
    });
  }
  void experts(tensor y, tensor x, const expert_set& set, tensor ids, tensor weights, float limit) override {
    const auto& own = static_cast<const cuda_expert_set&>(set);
    each_run(ids.rows(), lane_.has_wgmma && own.is_trellis, [&](int64_t first, int64_t n, const cuda_lane& on) {
      experts_cuda(y.slice(first, n), x.slice(first, n), own, ids.slice(first, n), weights.slice(first, n), limit, on);
    });
  }
  void gated_mlp(tensor y, tensor x, const matrix& gate, const matrix& up, const matrix& down, float limit) override {
    const matrix_view &g = view_of(gate), &u = view_of(up), &d = view_of(down);
    const bool split = has_classes(g) || has_classes(u) || has_classes(d);
    each_run(x.n_elements() / gate.in, split, [&](int64_t first, int64_t n, const cuda_lane& on) {
      gated_mlp_cuda(rows_of(y, first, n, down.out), rows_of(x, first, n, gate.in), g, u, d, limit, on);
    });
  }

  void dequant_rows(tensor y, tensor records, engram_format format, int64_t width) override {
    dequant_rows_cuda(y, records, format, width, lane());
  }
  void engram_gate(tensor h, tensor kv, tensor q_weight, tensor k_weight, tensor dead, tensor gates,
                   float eps) override {
    engram_gate_cuda(h, kv, q_weight, k_weight, dead, gates, eps, lane());
  }
  void rope_half(tensor x, tensor angles, int64_t heads) override { rope_half_cuda(x, angles, heads, lane()); }
  void attention_full(tensor o, tensor q, tensor k, tensor v, float by) override {
    attention_full_cuda(o, q, k, v, by, lane());
  }
  void gelu(tensor x) override { gelu_cuda(x, lane()); }
  void silu_mul(tensor y, tensor gate_up) override { silu_mul_cuda(y, gate_up, lane()); }

  std::unique_ptr<row_sampler> make_sampler(int64_t vocabulary, int64_t max_rows) override {
    return make_cuda_sampler(*this, vocabulary, max_rows);
  }
  // As a branch of a captured graph, and of few rows, whose kernels leave most of the device idle; prompts fill it.
  void beside(const std::function<void()>& work) override {
    const auto is_prompt = [](const row_run& r) { return r.rows == row_class::prefill; };
    if (!is_capturing_ || is_beside_ || std::any_of(runs_.begin(), runs_.end(), is_prompt)) return work();
    is_beside_ = true;
    cuda_check(cudaEventRecord(fork_.get(), lane().on), "beside");
    cuda_check(cudaStreamWaitEvent(side_lane_.on, fork_.get(), 0), "beside");
    std::swap(lane_, side_lane_);
    const auto back = [this] {
      std::swap(lane_, side_lane_);
      is_beside_ = false;
    };
    try {
      work();
    } catch (...) {
      back();
      throw;
    }
    back();
    cuda_check(cudaEventRecord(join_.get(), side_lane_.on), "beside");
    has_side_work_ = true;
  }
  void meet() override {
    if (std::exchange(has_side_work_, false)) cuda_check(cudaStreamWaitEvent(lane().on, join_.get(), 0), "meet");
  }
  std::unique_ptr<mailbox> make_mailbox(int64_t n_bytes, const std::string& what) override {
    return make_cuda_mailbox(n_bytes, what, lane());
  }
  void receive(std::span<const tensor> to, const mailbox& from) override { receive_cuda(to, from, lane()); }
  bool runs_ahead() const override { return true; }
  bool can_capture() const override { return n_ranks() == 1; }
  std::unique_ptr<graph> capture(std::function<void()> work) override {
    cudaGraph_t recorded = nullptr;
    cuda_check(cudaStreamBeginCapture(lane().on, cudaStreamCaptureModeThreadLocal), "capture");
    is_capturing_ = true;
    try {
      work();
    } catch (...) {
      is_capturing_ = has_side_work_ = false;
      cudaStreamEndCapture(lane_.on, &recorded);
      if (recorded != nullptr) cudaGraphDestroy(recorded);
      throw;
    }
    meet(); // a graph ends in one stream
    is_capturing_ = false;
    cuda_check(cudaStreamEndCapture(lane_.on, &recorded), "capture");
    auto made = std::make_unique<cuda_graph>();
    const cudaError_t e = cudaGraphInstantiate(&made->ready, recorded, 0);
    cudaGraphDestroy(recorded);
    cuda_check(e, "cudaGraphInstantiate");
    return made;
  }
  void replay(graph& g) override {
    clock_.time(lane().on, [&] { cuda_check(cudaGraphLaunch(static_cast<cuda_graph&>(g).ready, lane_.on), "replay"); });
  }
  double replayed_us() { return clock_.us(); }

  int rank() const override { return group_ == nullptr ? 0 : group_->rank(); }
  int n_ranks() const override { return group_ == nullptr ? 1 : group_->n_ranks(); }
  void all_reduce_sum(tensor x) override {
    if (n_ranks() == 1) return;
    meeting_.resize(static_cast<size_t>(x.n_elements()));
    download(meeting_.data(), x, x.size_bytes());
    group_->all_reduce_sum(meeting_);
    upload(x, meeting_.data(), x.size_bytes());
  }
  void all_gather(tensor y, tensor x) override {
    TROUPE_CHECK(y.n_elements() == x.n_elements() * n_ranks(), "a gather has room for every rank");
    if (n_ranks() == 1) {
      cuda_check(
          cudaMemcpyAsync(y.data, x.data, static_cast<size_t>(x.size_bytes()), cudaMemcpyDeviceToDevice, lane().on),
          "all_gather");
      return;
    }
    const auto n = static_cast<size_t>(x.n_elements());
    meeting_.resize(n * (static_cast<size_t>(n_ranks()) + 1));
    const std::span<float> all(meeting_), own = all.last(n);
    download(own.data(), x, x.size_bytes());
    group_->all_gather(all.first(all.size() - n), own);
    upload(y, meeting_.data(), y.size_bytes());
  }

  // Every use makes the device current on the thread that calls: the rank's thread need not be the one that loaded.
  const cuda_lane& lane() const {
    cuda_check(cudaSetDevice(device_), "cudaSetDevice");
    return lane_;
  }

  int32_t device() const { return device_; }
  std::vector<weight_variant> variants() const { return {variants_.begin(), variants_.end()}; }
  bool park(const parkable& form) {
    take_out_of_use(form, side_lane_);
    return take_out_of_use(form, lane_);
  }

private:
  void note(weight_variant v, bool has_prefill_form) {
    variants_.insert(v);
    v.rows = row_class::prefill;
    if (has_prefill_form) variants_.insert(v);
  }

  // Products with other matrices are the same in both classes.
  bool has_classes(const matrix_view& m) const {
    return (lane_.has_wgmma && m.is_trellis) || (lane_.has_plain_gemm && plain_gemm_serves(m));
  }

  // Those of a row class together.
  void run_linears(std::span<const linear_call> calls, int64_t n_rows) {
    const bool split = std::any_of(calls.begin(), calls.end(), [&](const linear_call& c) { return has_classes(*c.w); });
    each_run(n_rows, split, [&](int64_t first, int64_t n, const cuda_lane& on) {
      std::vector<linear_call> part(calls.begin(), calls.end());
      for (linear_call& c : part) {
        c.x += first * c.x_stride;
        c.y += first * c.y_stride;
      }
      linears_cuda(part, n, on);
    });
  }

  // Calls f(first row, rows, lane of their class) for each run of rows; once for all where classes are the same.
  template <class F> void each_run(int64_t n_rows, bool split, const F& f) {
    cuda_lane on = lane();
    int64_t first = 0;
    for (size_t i = 0; split && i < runs_.size() && first < n_rows; ++i) {
      const int64_t n = std::min(runs_[i].n, n_rows - first);
      on.rows = runs_[i].rows;
      if (n > 0) f(first, n, on);
      first += n;
    }
    on.rows = row_class::decode;
    if (first < n_rows) f(first, n_rows - first, on);
  }

  // Calls f(first row, rows, f32 (rows, m.out) of scratch, lane of their class with the rest of it) for slabs of runs.
  template <class F> void each_slab(int64_t n_rows, const matrix_view& m, const F& f) {
    const int64_t row_bytes = int64_t{m.out} * 4, slab = lane_.scratch_bytes / 4 / row_bytes;
    TROUPE_CHECK(slab > 0, "the scratch of a lane holds a row of any matrix");
    each_run(n_rows, has_classes(m), [&](int64_t begin, int64_t count, const cuda_lane& on) {
      for (int64_t done = 0; done < count; done += slab) {
        const int64_t n = std::min(slab, count - done), used = (n * row_bytes + 255) / 256 * 256;
        cuda_lane rest = on;
        rest.scratch += used;
        rest.scratch_bytes -= used;
        f(begin + done, n, tensor(on.scratch, dtype::f32, {n, m.out}), rest);
      }
    });
  }

  int32_t device_;
  collective* group_;
  std::string name_;
  own_stream stream_, side_stream_;
  own_event fork_{cudaEventDisableTiming}, join_{cudaEventDisableTiming}; // they only order streams
  replay_clock clock_;
  cuda_memory memory_;
  host_copies copies_;
  cuda_lane lane_, side_lane_; // lane_: of the calls; exchanged while side work is called
  bool is_capturing_ = false, is_beside_ = false, has_side_work_ = false;
  std::vector<row_run> runs_;
  std::set<weight_variant> variants_;
  std::vector<float> meeting_; // host memory for collectives, reused
};

} // namespace

const cuda_lane& lane_of(backend& b) { return dynamic_cast<cuda_backend&>(b).lane(); }

void begin_download(backend& b, tensor from, int64_t n_bytes) {
  dynamic_cast<cuda_backend&>(b).begin_download(from, n_bytes);
}
void end_download(backend& b, void* to, int64_t n_bytes) { dynamic_cast<cuda_backend&>(b).end_download(to, n_bytes); }
int32_t device_of(backend& b) { return dynamic_cast<cuda_backend&>(b).device(); }
double replayed_us(backend& b) { return dynamic_cast<cuda_backend&>(b).replayed_us(); }
std::vector<weight_variant> loaded_variants(backend& b) { return dynamic_cast<cuda_backend&>(b).variants(); }

bool park(backend& b, const parkable& form) { return dynamic_cast<cuda_backend&>(b).park(form); }

std::unique_ptr<backend> make_cuda_backend(const cuda_backend_config& config) {
  return std::make_unique<cuda_backend>(config);
}

} // namespace troupe
