// The backend on the host: one thread calls it, a small pool helps with the large operations.
#pragma once

#include "gpu/backend.h"
#include "gpu/fast_ops.h"
#include "gpu/host_memory.h"
#include "gpu/host_threads.h"

#include <optional>
#include <vector>

namespace troupe {

class host_backend : public backend {
public:
  explicit host_backend(const host_backend_config& config);
  ~host_backend() override;

  std::string name() const override;
  dtype activation_type() const override { return dtype::f32; }
  cache_form preferred_caches() const override { return host_caches; }
  bool has_row_classes() const override { return false; }

  tensor allocate(dtype, std::initializer_list<int64_t> shape, const std::string& what) override;
  int64_t allocated_bytes() const override { return account_.used_bytes; }
  void upload(tensor to, const void* from, int64_t size_bytes) override;
  void download(void* to, tensor from, int64_t size_bytes) override;
  std::unique_ptr<matrix> load(const stored_matrix&) override;
  std::unique_ptr<expert_set> load_experts(std::span<const stored_expert>, int32_t first) override;

  void embed(tensor y, tensor table, int64_t first_id, tensor ids) override;
  void copy_rows(tensor y, tensor y_rows, tensor x, tensor x_rows) override;
  void arg_max(tensor ids, tensor x, tensor x_rows, tensor y) override;
  void place_anchors(const anchor_args&) override;
  void scatter_entries(tensor cache, tensor x, tensor entries, quantiser how, const step_rows&) override;
  void write_rings(tensor rings, tensor x, const step_rows&) override;

  void rms_norm(tensor y, tensor x, tensor weight, float eps) override;
  void linear(tensor y, tensor x, const matrix&) override;
  void linear_grouped(tensor y, tensor x, std::span<const matrix* const>) override;
  void rope(tensor x, tensor positions, tensor frequencies, bool inverse) override;
  void quantise(tensor x, quantiser) override;
  void add(tensor y, tensor x) override;
  void scale(tensor x, float by) override;

  void mix(const mix_args&) override;
  void fold(tensor x, tensor h, tensor pre) override;
  void expand(tensor h, tensor y, tensor post, tensor comb) override;
  void spread(tensor h, tensor x) override;
  void mean_copies(tensor y, tensor h) override;

  void attention(const attention_args&, const step_rows&) override;
  void compress_pairs(tensor c, tensor u, tensor g, tensor pending, const step_rows&) override;
  void select_entries(const index_args&, const step_rows&) override;

  void route(tensor ids, tensor weights, tensor x, const matrix& gate, tensor bias, tensor bias_vl, tensor vl,
             float scale) override;
  void experts(tensor y, tensor x, const expert_set&, tensor ids, tensor weights, float limit) override;
  void gated_mlp(tensor y, tensor x, const matrix& gate, const matrix& up, const matrix& down, float limit) override;

  void dequant_rows(tensor y, tensor records, engram_format, int64_t width) override;
  void engram_gate(tensor h, tensor kv, tensor q_weight, tensor k_weight, tensor dead, tensor gates,
                   float eps) override;

  void rope_half(tensor x, tensor angles, int64_t heads) override;
  void attention_full(tensor o, tensor q, tensor k, tensor v, float scale) override;
  void gelu(tensor x) override;
  void silu_mul(tensor y, tensor gate_up) override;

  std::unique_ptr<mailbox> make_mailbox(int64_t n_bytes, const std::string& what) override;
  void receive(std::span<const tensor> to, const mailbox& from) override;
  bool runs_ahead() const override { return false; }

  bool can_capture() const override { return true; }
  std::unique_ptr<graph> capture(std::function<void()> work) override;
  void replay(graph&) override;

  int rank() const override;
  int n_ranks() const override;
  void all_reduce_sum(tensor x) override;
  void all_gather(tensor y, tensor x) override;

private:
  vector_level level_;
  collective* group_;
  memory_account account_;
  std::vector<host_memory> blocks_;
  host_threads threads_;
  std::optional<fast_context> fast_; // none: the twins do the work
};

} // namespace troupe
