// The weights of one rank, as the backend holds them, and how they are read and split. Spec: model.md section 6.
#pragma once

#include "gpu/backend.h"
#include "model/deepseek_v41/checkpoint.h"
#include "model/deepseek_v41/stored_part.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe::deepseek_v41 {

using matrix_ptr = std::unique_ptr<matrix>;

struct compressor_weights { // owned by kv source layers
  matrix_ptr wkv, wgate;    // wgate: ratio 2 only
  tensor norm;
  matrix_ptr index_wk;
  tensor index_norm;
};
struct indexer_weights { // owned by index source layers; replicated on every rank
  matrix_ptr wq_b, weights_proj;
};
struct attention_weights {
  tensor norm, q_norm, kv_norm; // f32
  tensor sink;                  // (heads of this rank) f32
  matrix_ptr wq_a, wq_b, wkv, wo_b;
  std::vector<matrix_ptr> wo_a; // one for each group of this rank
  std::vector<const matrix*> wo_a_view;
  compressor_weights compressor;
  indexer_weights indexer;
};
struct mix_weights {
  matrix_ptr fn;
  tensor base, scale;
};
struct moe_weights {
  tensor norm;
  matrix_ptr gate;
  tensor bias, bias_vl; // bias_vl is bias where the checkpoint has none
  std::unique_ptr<expert_set> experts;
  matrix_ptr shared_gate, shared_up, shared_down; // empty without a shared expert
  bool shared_is_cut = false;                     // partial sums: added before the all-reduce
};
struct engram_weights {
  matrix_ptr wkv;
  tensor q_weight, k_weight; // (M, D) f32
  found_table table;
};
struct block_weights {
  attention_weights attention;
  mix_weights attention_mix, moe_mix;
  moe_weights moe;
  engram_weights engram; // empty unless role.engram_slot >= 0
  layer_role role;
};
struct draft_weights {
  matrix_ptr main_proj;
  tensor main_norm, norm;
  tensor markov_embed;    // (vocabulary, rank) as stored
  matrix_ptr markov_head; // rows of this rank, as the head
  matrix_ptr confidence_x, confidence_e;
  std::vector<block_weights> stages;
};
struct vision_block_weights {
  tensor norm1, norm2;
  matrix_ptr wqkv, wo, w1, w2;
};
struct vision_weights {
  matrix_ptr patches;
  std::vector<vision_block_weights> blocks;
  tensor norm;
  matrix_ptr aligner_in, aligner_out;
  tensor delimiters; // (3, D) f32: start, newline, end
};

// What this rank holds of things that are cut.
struct rank_share {
  int rank = 0, n_ranks = 1;
  int64_t first_head = 0, heads = 0, first_group = 0, groups = 0;
  int64_t vocabulary_stride = 0;                         // rows of the head on every rank but the last
  int64_t first_vocabulary_row = 0, vocabulary_rows = 0; // of this rank
};

// Reads tensors of a checkpoint that passed require(). Throws checkpoint_error and std::system_error by name.
class weight_loader {
public:
  weight_loader(const checkpoint& from, backend& to);

  const rank_share& share() const { return share_; }
  int64_t vocabulary() const { return c_.vocabulary; }
  std::function<void(double part)> progress; // called after each layer

  tensor embedding(); // rows of this rank, as stored; first row: share().rank * rows
  tensor norm(const std::string& name, int64_t n) { return plain(name, {n}); }
  matrix_ptr head();
  block_weights layer(int32_t);
  draft_weights draft();
  vision_weights vision();

private:
  stored_part read(const std::string& stem, int64_t out, int64_t in, matrix_cut = {}) const;
  matrix_ptr linear(const std::string& stem, int64_t out, int64_t in, matrix_cut = {});
  std::vector<float> floats(const std::string& name, int64_t n) const;
  tensor plain(const std::string& name, std::initializer_list<int64_t> shape);
  tensor upload(std::span<const float>, std::initializer_list<int64_t> shape, const std::string& what);
  matrix_ptr dense(std::span<const float>, int64_t out, int64_t in, const std::string& name);
  attention_weights attention(const std::string& prefix, const layer_role&);
  void output_groups(attention_weights&, const std::string& prefix);
  mix_weights mix(const std::string& prefix);
  moe_weights moe(const std::string& prefix, int32_t n_experts);
  void shared_expert(moe_weights&, const std::string& prefix);
  engram_weights engram(const std::string& prefix, int32_t slot);
  block_weights block(const std::string& prefix, const layer_role&, int32_t n_experts);
  bool can_cut_width(const std::string& expert_stem) const;

  const checkpoint& from_;
  const config& c_;
  backend& to_;
  rank_share share_;
};

} // namespace troupe::deepseek_v41
