// The inventory of model-tensors.md section 1, as a function of the config.
#include "model/deepseek_v41/names.h"

namespace troupe::deepseek_v41 {
namespace {

// Adds needs of one owner under one prefix.
class inventory {
public:
  inventory(std::vector<tensor_need>& to, std::string owner, std::string prefix)
      : to_(to), owner_(std::move(owner)), prefix_(std::move(prefix)) {}

  tensor_need& matrix(const char* family, const std::string& path, const std::string& label, int64_t out, int64_t in) {
    tensor_need& n = named(family, path, label);
    n.what = tensor_need::kind::matrix;
    n.out = out;
    n.in = in;
    return n;
  }
  tensor_need& plain(const char* family, const std::string& path, const std::string& label,
                     std::vector<int64_t> shape) {
    tensor_need& n = named(family, path, label);
    n.shape = std::move(shape);
    return n;
  }

private:
  tensor_need& named(const char* family, const std::string& path, const std::string& label) {
    tensor_need& n = to_.emplace_back();
    n.family = family;
    n.owner = owner_;
    n.stem = prefix_ + path + label;
    n.label = label;
    return n;
  }

  std::vector<tensor_need>& to_;
  std::string owner_, prefix_;
};

void add_attention(inventory& all, const config& c) {
  const char* family = "attention";
  all.plain(family, "", "attn_norm.weight", {c.dim});
  all.plain(family, "attn.", "attn_sink", {c.heads});
  all.matrix(family, "attn.", "wq_a", c.q_rank, c.dim);
  all.plain(family, "attn.", "q_norm.weight", {c.q_rank});
  all.matrix(family, "attn.", "wq_b", c.heads * c.head_dim, c.q_rank);
  all.matrix(family, "attn.", "wkv", c.head_dim, c.dim);
  all.plain(family, "attn.", "kv_norm.weight", {c.head_dim});
  tensor_need& grouped = all.matrix(family, "attn.", "wo_a", c.o_groups * c.o_rank, c.heads / c.o_groups * c.head_dim);
  grouped.what = tensor_need::kind::grouped;
  grouped.groups = c.o_groups;
  all.matrix(family, "attn.", "wo_b", c.dim, c.o_groups * c.o_rank);
}

void add_streams(inventory& all, const config& c) {
  const int64_t n = c.mix_outputs();
  for (const std::string half : {"hc_attn_", "hc_ffn_"}) {
    all.plain("hyper-connections", "", half + "fn", {n, c.copies * c.dim});
    all.plain("hyper-connections", "", half + "base", {n});
    all.plain("hyper-connections", "", half + "scale", {3});
  }
}

void add_experts(inventory& all, const config& c, int32_t n_experts) {
  all.plain("router", "", "ffn_norm.weight", {c.dim});
  all.matrix("router", "ffn.", "gate", n_experts, c.dim).bias = bias_rule::none;
  all.plain("router", "ffn.", "gate.bias", {n_experts});
  all.plain("router", "ffn.", "gate.bias_vl", {n_experts}).optional = true;
  const auto expert = [&](const char* family, const std::string& path, const std::string& label) {
    all.matrix(family, path, label + "w1", c.expert_width, c.dim);
    all.matrix(family, path, label + "w2", c.dim, c.expert_width);
    all.matrix(family, path, label + "w3", c.expert_width, c.dim);
  };
  for (int32_t e = 0; e < n_experts; ++e) expert("experts", "ffn.experts.", std::to_string(e) + ".");
  if (c.shared_experts > 0) expert("shared expert", "ffn.shared_experts.", "");
}

void add_compressor_and_indexer(inventory& all, const config& c, const layer_role& r) {
  if (r.owns_kv) {
    all.matrix("compressor", "attn.compressor.", "wkv", c.head_dim, c.dim);
    if (r.ratio == 2) all.matrix("compressor", "attn.compressor.", "wgate", c.head_dim, c.dim);
    all.plain("compressor", "attn.compressor.", "norm.weight", {c.head_dim});
    all.matrix("indexer", "attn.indexer.", "wk", c.index_dim, c.head_dim);
    all.plain("indexer", "attn.indexer.", "k_norm.weight", {c.index_dim});
  }
  if (r.owns_index) {
    all.matrix("indexer", "attn.indexer.", "wq_b", c.index_heads * c.index_dim, c.q_rank);
    all.matrix("indexer", "attn.indexer.", "weights_proj", c.index_heads, c.dim);
  }
}

void add_engram(inventory& all, const config& c, int32_t slot) {
  const engram_config& e = c.engram;
  tensor_need& table = all.matrix("engram", "engram.", "embed", e.rows[static_cast<size_t>(slot)], e.head_dim);
  table.what = tensor_need::kind::table;
  all.matrix("engram", "engram.", "wkv", (c.copies + 1) * c.dim, e.columns() * e.head_dim);
  all.plain("engram", "engram.", "q_weight", {c.copies, c.dim});
  all.plain("engram", "engram.", "k_weight", {c.copies, c.dim});
}

} // namespace

std::string layer_prefix(int32_t layer) { return "layers." + std::to_string(layer) + "."; }
std::string stage_prefix(int32_t stage) { return "mtp." + std::to_string(stage) + "."; }

std::vector<tensor_need> backbone_needs(const config& c) {
  std::vector<tensor_need> all;
  inventory model(all, "the model", "");
  model.plain("embedding", "", "embed.weight", {c.vocabulary, c.dim});
  model.plain("head", "", "norm.weight", {c.dim});
  model.matrix("head", "", "head", c.vocabulary, c.dim);
  for (int32_t l = 0; l < c.layers; ++l) {
    inventory layer(all, "layer " + std::to_string(l), layer_prefix(l));
    const layer_role r = c.role(l);
    add_attention(layer, c);
    add_compressor_and_indexer(layer, c, r);
    add_streams(layer, c);
    if (r.engram_slot >= 0) add_engram(layer, c, r.engram_slot);
    add_experts(layer, c, c.experts);
  }
  return all;
}

std::vector<tensor_need> draft_needs(const config& c) {
  std::vector<tensor_need> all;
  const draft_config& d = c.draft;
  for (int32_t s = 0; s < d.stages; ++s) {
    inventory stage(all, "draft stage " + std::to_string(s), stage_prefix(s));
    add_attention(stage, c);
    add_streams(stage, c);
    add_experts(stage, c, d.experts);
    if (s == 0) {
      stage.matrix("draft input", "", "main_proj", c.dim, static_cast<int64_t>(d.taps.size()) * c.dim);
      stage.plain("draft input", "", "main_norm.weight", {c.dim});
    }
    if (s == d.stages - 1) {
      stage.plain("draft heads", "", "norm.weight", {c.dim});
      stage.plain("draft heads", "", "markov_head.embed.weight", {c.vocabulary, d.markov_rank});
      stage.matrix("draft heads", "", "markov_head.head", c.vocabulary, d.markov_rank);
      stage.plain("draft heads", "", "confidence_head.proj.weight", {1, c.dim + d.markov_rank});
    }
  }
  return all;
}

std::vector<tensor_need> vision_needs(const config& c) {
  std::vector<tensor_need> all;
  const vision_config& v = c.vision;
  if (v.layers == 0) return all;
  inventory tower(all, "the vision tower", "");
  tower.matrix("patches", "vision.", "patch_embed.proj", v.hidden, 3 * v.patch * v.patch).bias = bias_rule::needed;
  tower.plain("patches", "vision.", "norm.weight", {v.hidden});
  for (int32_t b = 0; b < v.layers; ++b) {
    inventory block(all, "vision block " + std::to_string(b), "vision.blocks." + std::to_string(b) + ".");
    block.plain("vision", "", "norm1.weight", {v.hidden});
    block.matrix("vision", "", "attn.wqkv", 3 * v.hidden, v.hidden).bias = bias_rule::needed;
    block.matrix("vision", "", "attn.wo", v.hidden, v.hidden).bias = bias_rule::needed;
    block.plain("vision", "", "norm2.weight", {v.hidden});
    block.matrix("vision", "", "mlp.w1", 2 * v.width, v.hidden);
    block.matrix("vision", "", "mlp.w2", v.hidden, v.width);
  }
  const int64_t cell = v.hidden * v.downsample * v.downsample;
  tower.matrix("aligner", "aligner.", "w1", c.dim, cell).bias = bias_rule::needed;
  tower.matrix("aligner", "aligner.", "w2", c.dim, c.dim).bias = bias_rule::needed;
  for (const char* name : {"image_start", "image_end", "image_newline"}) tower.plain("delimiters", "", name, {c.dim});
  return all;
}

} // namespace troupe::deepseek_v41
