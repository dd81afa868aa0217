// Forwards every operation to its host form; memory, copies, graphs and collectives are here.
#include "gpu/host_backend.h"

#include "gpu/attention.h"
#include "gpu/collective.h"
#include "gpu/engram_rows.h"
#include "gpu/formats.h"
#include "gpu/linear.h"
#include "gpu/mix.h"
#include "gpu/moe.h"
#include "gpu/norm.h"
#include "gpu/split_linear.h"
#include "gpu/topk.h"
#include "gpu/vision_ops.h"

#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <stdexcept>

namespace troupe {
namespace {

class host_graph final : public graph {
public:
  std::function<void()> work;
};

class host_mailbox final : public mailbox {
public:
  static constexpr int64_t flag_bytes = 64; // a cache line of its own
  explicit host_mailbox(host_memory memory)
      : mailbox(reinterpret_cast<uint32_t*>(memory.data()),
                std::span(memory.data(), static_cast<size_t>(memory.size_bytes())).subspan(flag_bytes)),
        memory_(std::move(memory)) {}

private:
  host_memory memory_;
};

int64_t row_bytes(const tensor& t) { return t.row_elements() * size_bytes(t.type); }

} // namespace

host_backend::host_backend(const host_backend_config& config)
    : level_(config.scalar_only ? vector_level::scalar : supported_vector_levels().back()),
      group_(config.group), account_{config.memory_bytes, 0}, threads_(config.n_threads) {
  const row_kernels* rows = row_kernels_of(level_);
  const attention_kernels* heads = attention_kernels_of(level_);
  if (rows != nullptr && heads != nullptr) fast_.emplace(level_, *rows, *heads, threads_);
}

host_backend::~host_backend() = default;

std::string host_backend::name() const {
  return fmt::format("host {}, {} thread{}", troupe::name(level_), threads_.size(), threads_.size() == 1 ? "" : "s");
}

tensor host_backend::allocate(dtype type, std::initializer_list<int64_t> shape, const std::string& what) {
  tensor t(nullptr, type, shape);
  blocks_.emplace_back(account_, t.size_bytes(), what);
  t.data = blocks_.back().data();
  return t;
}

void host_backend::upload(tensor to, const void* from, int64_t n_bytes) {
  TROUPE_CHECK(n_bytes <= to.size_bytes(), "an upload fits into its tensor");
  if (n_bytes > 0) std::memcpy(to.data, from, static_cast<size_t>(n_bytes));
}

void host_backend::download(void* to, tensor from, int64_t n_bytes) {
  TROUPE_CHECK(n_bytes <= from.size_bytes(), "a download lies inside its tensor");
  if (n_bytes > 0) std::memcpy(to, from.data, static_cast<size_t>(n_bytes));
}

std::unique_ptr<matrix> host_backend::load(const stored_matrix& m) {
  return std::make_unique<host_matrix>(m, account_);
}

std::unique_ptr<expert_set> host_backend::load_experts(std::span<const stored_expert> stored, int32_t first) {
  auto set = std::make_unique<host_expert_set>();
  set->first = first;
  set->n_experts = static_cast<int32_t>(stored.size());
  for (const auto& e : stored) {
    auto& made = set->experts.emplace_back();
    made.gate = std::make_unique<host_matrix>(e.gate, account_);
    made.up = std::make_unique<host_matrix>(e.up, account_);
    made.down = std::make_unique<host_matrix>(e.down, account_);
    set->size_bytes += made.gate->size_bytes + made.up->size_bytes + made.down->size_bytes;
  }
  return set;
}

void host_backend::embed(tensor y, tensor table, int64_t first_id, tensor ids) {
  const int64_t dim = table.row_elements();
  for (int64_t i = 0; i < ids.n_elements(); ++i) {
    const int64_t row = ids.i32()[i] - first_id;
    float* out = y.f32() + i * dim;
    if (row < 0 || row >= table.rows())
      std::memset(out, 0, static_cast<size_t>(dim) * sizeof(float));
    else
      to_f32(out, table.slice(row, 1), "an embedding table");
  }
}

void host_backend::copy_rows(tensor y, tensor y_rows, tensor x, tensor x_rows) {
  TROUPE_CHECK(y.type == x.type && (row_bytes(y) == row_bytes(x) || y.rows() == 0 || x.rows() == 0),
               "rows are copied between tensors of one row type");
  const int64_t n = x_rows ? x_rows.n_elements() : y_rows ? y_rows.n_elements() : x.rows();
  const int64_t bytes = row_bytes(x);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t to = y_rows ? y_rows.i32()[i] : i, from = x_rows ? x_rows.i32()[i] : i;
    TROUPE_CHECK(to >= 0 && to < y.rows() && from >= 0 && from < x.rows(), "copied rows lie inside their tensors");
    std::memcpy(y.data + to * bytes, x.data + from * bytes, static_cast<size_t>(bytes));
  }
}

void host_backend::place_anchors(const anchor_args& a) {
  const int64_t n = a.guesses.n_elements(), block = n > 0 ? a.ids.n_elements() / n : 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t *request = a.requests.i32() + 4 * i, *drawn = a.drawn.i32() + request[0],
                  *drafts = a.step_ids.i32() + request[1] + 1;
    int32_t right = 0;
    while (right < request[2] && drawn[right] == drafts[right]) ++right;
    const int32_t token = std::max(drawn[right], 0);
    a.guesses.i32()[i] = a.ids.i32()[i * block] = token;
    for (int64_t j = 0; j < block; ++j) a.positions.i64()[i * block + j] = request[3] + right + j;
  }
}

void host_backend::arg_max(tensor ids, tensor x, tensor x_rows, tensor y) {
  const int64_t width = y.row_elements();
  TROUPE_CHECK(ids.n_elements() == y.rows() && x_rows.n_elements() >= y.rows() && x.row_elements() == width,
               "every sum has a row of both terms");
  for (int64_t i = 0; i < y.rows(); ++i) {
    const int64_t row = x_rows.i32()[i];
    TROUPE_CHECK(row >= 0 && row < x.rows(), "rows lie inside their tensors");
    const float *a = x.f32() + row * width, *b = y.f32() + i * width;
    int64_t best = 0;
    float most = -HUGE_VALF;
    for (int64_t v = 0; v < width; ++v)
      if (const float sum = a[v] + b[v]; sum > most) most = sum, best = v;
    ids.i32()[i] = static_cast<int32_t>(best);
  }
}

void host_backend::scatter_entries(tensor cache, tensor x, tensor entries, quantiser how, const step_rows& rows) {
  scatter_entries_host(cache, x, entries, how, rows);
}

void host_backend::write_rings(tensor rings, tensor x, const step_rows& rows) { write_rings_host(rings, x, rows); }

void host_backend::rms_norm(tensor y, tensor x, tensor weight, float eps) {
  if (fast_)
    rms_norm_fast(*fast_, y, x, weight, eps);
  else
    rms_norm_host(y, x, weight, eps);
}

void host_backend::linear(tensor y, tensor x, const matrix& m) {
  if (fast_)
    linear_fast(level_, threads_, y, x, m);
  else
    linear_host(y, x, m);
}

void host_backend::linear_grouped(tensor y, tensor x, std::span<const matrix* const> groups) {
  if (fast_)
    linear_grouped_fast(level_, threads_, y, x, groups);
  else
    linear_grouped_host(y, x, groups);
}

void host_backend::rope(tensor x, tensor positions, tensor frequencies, bool inverse) {
  if (fast_)
    rope_fast(*fast_, x, positions, frequencies, inverse);
  else
    rope_host(x, positions, frequencies, inverse);
}

void host_backend::quantise(tensor x, quantiser how) {
  if (fast_)
    quantise_fast(*fast_, x, how);
  else
    quantise_host(x, how);
}

void host_backend::add(tensor y, tensor x) {
  const int64_t n = y.n_elements();
  TROUPE_CHECK(n == x.n_elements(), "tensors of one size are added");
  if (fast_) return fast_->rows.add(y.f32(), x.f32(), n);
  for (int64_t i = 0; i < n; ++i) y.f32()[i] += x.f32()[i];
}

void host_backend::scale(tensor x, float by) {
  if (fast_) return fast_->rows.scale(x.f32(), by, x.n_elements());
  for (int64_t i = 0; i < x.n_elements(); ++i) x.f32()[i] *= by;
}

void host_backend::mix(const mix_args& a) {
  if (fast_)
    mix_fast(*fast_, a);
  else
    mix_host(a);
}

void host_backend::fold(tensor x, tensor h, tensor pre) {
  if (fast_)
    fold_fast(*fast_, x, h, pre);
  else
    fold_host(x, h, pre);
}

void host_backend::expand(tensor h, tensor y, tensor post, tensor comb) {
  if (fast_)
    expand_fast(*fast_, h, y, post, comb);
  else
    expand_host(h, y, post, comb);
}

void host_backend::spread(tensor h, tensor x) { spread_host(h, x); }

void host_backend::mean_copies(tensor y, tensor h) {
  if (fast_)
    mean_copies_fast(*fast_, y, h);
  else
    mean_copies_host(y, h);
}

void host_backend::attention(const attention_args& a, const step_rows& rows) {
  if (fast_)
    attention_fast(*fast_, a, rows);
  else
    attention_host(a, rows);
}

void host_backend::compress_pairs(tensor c, tensor u, tensor g, tensor pending, const step_rows& rows) {
  if (fast_)
    compress_pairs_by(fast_->heads.compress_pair, c, u, g, pending, rows);
  else
    compress_pairs_host(c, u, g, pending, rows);
}

void host_backend::select_entries(const index_args& a, const step_rows& rows) {
  if (fast_)
    select_entries_fast(*fast_, a, rows);
  else
    select_entries_host(a, rows);
}

void host_backend::route(tensor ids, tensor weights, tensor x, const matrix& gate, tensor bias, tensor bias_vl,
                         tensor vl, float by) {
  if (fast_)
    route_fast(*fast_, ids, weights, x, gate, bias, bias_vl, vl, by);
  else
    route_host(ids, weights, x, gate, bias, bias_vl, vl, by);
}

void host_backend::experts(tensor y, tensor x, const expert_set& set, tensor ids, tensor weights, float limit) {
  if (fast_)
    experts_fast(level_, threads_, fast_->moe, y, x, set, ids, weights, limit);
  else
    experts_host(y, x, set, ids, weights, limit);
}

void host_backend::gated_mlp(tensor y, tensor x, const matrix& gate, const matrix& up, const matrix& down,
                             float limit) {
  if (fast_)
    gated_mlp_fast(level_, threads_, fast_->moe, y, x, gate, up, down, limit);
  else
    gated_mlp_host(y, x, gate, up, down, limit);
}

void host_backend::dequant_rows(tensor y, tensor records, engram_format format, int64_t width) {
  dequant_rows_host(y, records, format, width);
}

void host_backend::engram_gate(tensor h, tensor kv, tensor q_weight, tensor k_weight, tensor dead, tensor gates,
                               float eps) {
  if (fast_)
    engram_gate_fast(*fast_, h, kv, q_weight, k_weight, dead, gates, eps);
  else
    engram_gate_host(h, kv, q_weight, k_weight, dead, gates, eps);
}

void host_backend::rope_half(tensor x, tensor angles, int64_t heads) { rope_half_host(x, angles, heads); }

void host_backend::attention_full(tensor o, tensor q, tensor k, tensor v, float by) {
  if (fast_)
    attention_full_fast(*fast_, o, q, k, v, by);
  else
    attention_full_host(o, q, k, v, by);
}

void host_backend::gelu(tensor x) { gelu_host(x); }

void host_backend::silu_mul(tensor y, tensor gate_up) {
  if (fast_)
    silu_mul_fast(*fast_, y, gate_up);
  else
    silu_mul_host(y, gate_up);
}

std::unique_ptr<mailbox> host_backend::make_mailbox(int64_t n_bytes, const std::string& what) {
  return std::make_unique<host_mailbox>(host_memory(account_, host_mailbox::flag_bytes + n_bytes, what));
}

void host_backend::receive(std::span<const tensor> to, const mailbox& from) {
  TROUPE_CHECK(from.is_posted(), "nobody posts while the host runs an operation");
  int64_t at = 0;
  for (const tensor& t : to) {
    const int64_t n_bytes = t.size_bytes();
    TROUPE_CHECK(at + n_bytes <= static_cast<int64_t>(from.bytes().size()), "a mailbox holds all that is received");
    if (n_bytes > 0) std::memcpy(t.data, from.bytes().data() + at, static_cast<size_t>(n_bytes));
    at = mailbox::behind(at, n_bytes);
  }
}

std::unique_ptr<graph> host_backend::capture(std::function<void()> work) {
  auto g = std::make_unique<host_graph>();
  g->work = std::move(work);
  return g;
}

void host_backend::replay(graph& g) { static_cast<host_graph&>(g).work(); }

int host_backend::rank() const { return group_ == nullptr ? 0 : group_->rank(); }

int host_backend::n_ranks() const { return group_ == nullptr ? 1 : group_->n_ranks(); }

void host_backend::all_reduce_sum(tensor x) {
  if (group_ != nullptr && n_ranks() > 1) group_->all_reduce_sum({x.f32(), static_cast<size_t>(x.n_elements())});
}

void host_backend::all_gather(tensor y, tensor x) {
  const auto n = static_cast<size_t>(x.n_elements());
  TROUPE_CHECK(y.n_elements() == x.n_elements() * n_ranks(), "a gather has room for every rank");
  if (group_ != nullptr && n_ranks() > 1)
    group_->all_gather({y.f32(), n * n_ranks()}, {x.f32(), n});
  else
    std::memcpy(y.data, x.data, n * sizeof(float));
}

std::unique_ptr<backend> make_host_backend(const host_backend_config& config) {
  if (config.n_threads < 1)
    throw std::invalid_argument(fmt::format("host backend: {} threads, expected at least 1", config.n_threads));
  return std::make_unique<host_backend>(config);
}

} // namespace troupe
