// Values of model.md section 1; lists of layers, renumbered; JSON by hand, since only these keys are written.
#include "model/deepseek_v41/synth_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

namespace troupe::deepseek_v41 {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::runtime_error("layers: " + what); }

// Old layer number -> new one.
class numbering {
public:
  numbering(const config& from, std::span<const int32_t> chosen) : chosen_(chosen) {
    if (chosen.empty()) refuse("expected at least one, found none");
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i] < 0 || chosen[i] >= from.layers)
        refuse(fmt::format("expected numbers from 0 to {}, found {}", from.layers - 1, chosen[i]));
      if (i > 0 && chosen[i] <= chosen[i - 1])
        refuse(fmt::format("expected ascending numbers, found {} after {}", chosen[i], chosen[i - 1]));
    }
  }
  bool has(int32_t layer) const { return std::binary_search(chosen_.begin(), chosen_.end(), layer); }
  int32_t of(int32_t layer) const {
    return static_cast<int32_t>(std::lower_bound(chosen_.begin(), chosen_.end(), layer) - chosen_.begin());
  }
  // The numbers of those of a list that are chosen.
  std::vector<int32_t> of(const std::vector<int32_t>& layers) const {
    std::vector<int32_t> to;
    for (const int32_t l : layers)
      if (has(l)) to.push_back(of(l));
    return to;
  }

private:
  std::span<const int32_t> chosen_;
};

void check_sources(const config& from, std::span<const int32_t> chosen, const numbering& to) {
  for (const int32_t l : chosen) {
    const layer_role r = from.role(l);
    if (r.ratio == 0) continue;
    const auto needs = [&](int32_t source, const char* what) {
      if (!to.has(source))
        refuse(fmt::format("layer {} reads the {} of layer {}, which is not chosen", l, what, source));
    };
    needs(r.kv_source, "compressed rows");
    needs(r.index_source, "selection");
    if (r.uses_candidates) needs(from.candidate_source, "candidate blocks");
  }
  if (from.draft.stages == 0) return;
  for (const int32_t tap : from.draft.taps)
    if (!to.has(tap)) refuse(fmt::format("the draft stages read the input of layer {}, which is not chosen", tap));
}

std::string list(const std::vector<int32_t>& v) { return fmt::format("[{}]", fmt::join(v, ", ")); }
std::string list(const std::vector<int64_t>& v) { return fmt::format("[{}]", fmt::join(v, ", ")); }

// Lines "key": value of one object, without its braces.
class lines {
public:
  explicit lines(int depth) : indent_(static_cast<size_t>(2 * depth), ' ') {}
  template <class Value> void add(const char* key, const Value& value) {
    text_ += fmt::format("{}{}\"{}\": {}", text_.empty() ? "" : ",\n", indent_, key, value);
  }
  void add(const char* key, const char* value) { add(key, fmt::format("\"{}\"", value)); }
  void add(const char* key, const lines& inner) { add(key, "{\n" + inner.text_ + "\n" + indent_ + "}"); }
  const std::string& text() const { return text_; }

private:
  std::string indent_, text_;
};

lines yarn_lines(const yarn_scaling& y) {
  lines to(3);
  to.add("rope_type", "yarn");
  to.add("factor", y.factor);
  to.add("beta_fast", y.beta_fast);
  to.add("beta_slow", y.beta_slow);
  to.add("original_max_position_embeddings", y.original_context);
  return to;
}

void add_engram(lines& to, const engram_config& e) {
  if (e.layers.empty()) return;
  to.add("engram_layer_ids", list(e.layers));
  to.add("engram_num_embeddings", list(e.rows));
  to.add("engram_max_ngram_size", e.max_ngram);
  to.add("engram_vocab_size", e.vocabulary);
  to.add("engram_n_heads", e.heads);
  to.add("engram_head_dim", e.head_dim);
  to.add("engram_pad_token_id", e.pad_id);
  to.add("engram_compressed_vocab_size", e.compressed_vocabulary);
  std::string all;
  for (const auto& m : e.multipliers) all += (all.empty() ? "" : ", ") + list(m);
  if (!all.empty()) to.add("engram_multipliers", "[" + all + "]");
}

void add_draft(lines& to, const draft_config& d) {
  to.add("num_nextn_predict_layers", d.stages);
  if (d.stages == 0) return;
  to.add("dspark_block_size", d.block);
  to.add("dspark_noise_token_id", d.noise_id);
  to.add("dspark_target_layer_ids", list(d.taps));
  to.add("dspark_markov_rank", d.markov_rank);
  to.add("dspark_n_routed_experts", d.experts);
  to.add("dspark_num_experts_per_tok", d.active_experts);
}

lines text_lines(const config& c) {
  lines to(2);
  to.add("model_type", "deepseek_v41_text");
  to.add("vocab_size", c.vocabulary);
  to.add("hidden_size", c.dim);
  to.add("moe_intermediate_size", c.expert_width);
  to.add("num_hidden_layers", c.layers);
  to.add("num_attention_heads", c.heads);
  to.add("num_key_value_heads", 1);
  to.add("head_dim", c.head_dim);
  to.add("qk_rope_head_dim", c.rope_dim);
  to.add("q_lora_rank", c.q_rank);
  to.add("o_groups", c.o_groups);
  to.add("o_lora_rank", c.o_rank);
  to.add("rms_norm_eps", c.eps);
  to.add("max_position_embeddings", c.context);
  to.add("sliding_window", c.window);
  to.add("compress_ratios", list(c.ratios));
  to.add("kv_source_layer_ids", list(c.kv_sources));
  to.add("index_source_layer_ids", list(c.index_sources));
  to.add("index_n_heads", c.index_heads);
  to.add("index_head_dim", c.index_dim);
  to.add("index_topk", c.index_topk);
  if (c.candidate_source >= 0) to.add("candidate_source_layer_id", c.candidate_source);
  to.add("candidate_topk_blocks", c.candidate_blocks);
  to.add("candidate_block_size", c.candidate_block_size);
  to.add("rope_theta", c.rope_theta);
  to.add("compress_rope_theta", c.compress_rope_theta);
  if (c.yarn.on) to.add("rope_scaling", yarn_lines(c.yarn));
  to.add("n_routed_experts", c.experts);
  to.add("n_shared_experts", c.shared_experts);
  to.add("num_experts_per_tok", c.active_experts);
  to.add("scoring_func", "sqrtsoftplus");
  to.add("topk_method", "noaux_tc");
  to.add("routed_scaling_factor", c.route_scale);
  to.add("swiglu_limit", c.swiglu_limit);
  to.add("hc_mult", c.copies);
  to.add("hc_sinkhorn_iters", c.sinkhorn_iterations);
  to.add("hc_eps", c.hc_eps);
  add_engram(to, c.engram);
  add_draft(to, c.draft);
  return to;
}

lines vision_lines(const vision_config& v) {
  lines to(2);
  to.add("model_type", "deepseek_v41_vision");
  to.add("num_hidden_layers", v.layers);
  to.add("hidden_size", v.hidden);
  to.add("num_attention_heads", v.heads);
  to.add("intermediate_size", v.width);
  to.add("patch_size", v.patch);
  to.add("rope_theta", v.rope_theta);
  to.add("downsample_ratio", v.downsample);
  to.add("max_image_tokens", v.max_tokens);
  to.add("min_pixels", v.min_pixels);
  if (v.max_ratio > 0) to.add("max_wh_ratio", v.max_ratio);
  return to;
}

} // namespace

config released_config() {
  config c;
  c.file = "the released model";
  c.image_id = 129264;
  c.vocabulary = 129280, c.dim = 5120, c.heads = 64, c.head_dim = 512, c.rope_dim = 64, c.q_rank = 1280;
  c.o_groups = 8, c.o_rank = 1024;
  c.layers = 40;
  c.eps = 1e-20F, c.hc_eps = 1e-6F, c.route_scale = 1.5F, c.swiglu_limit = 10;
  c.context = 1048576, c.window = 128;
  c.ratios.assign(2, 0);
  c.ratios.insert(c.ratios.end(), 18, 2);
  c.ratios.insert(c.ratios.end(), 20, 1);
  c.ratios.insert(c.ratios.end(), 3, 0); // draft stages
  c.kv_sources = {2, 8, 14, 20};
  c.index_sources = {2, 8, 14, 20, 24, 28, 32, 36};
  c.index_heads = 32, c.index_dim = 128, c.index_topk = 512;
  c.candidate_source = 20, c.candidate_blocks = 2048, c.candidate_block_size = 8;
  c.rope_theta = 10000, c.compress_rope_theta = 160000;
  c.yarn = {.on = true, .factor = 16, .beta_fast = 32, .beta_slow = 1, .original_context = 65536};
  c.experts = 384, c.shared_experts = 1, c.active_experts = 6;
  c.expert_width = 2304, c.copies = 4;
  c.sinkhorn_iterations = 20;
  c.engram = {.layers = {1, 14},
              .rows = {384006168, 384016682},
              .max_ngram = 4,
              .vocabulary = 16000000,
              .heads = 8,
              .head_dim = 256,
              .compressed_vocabulary = 99092,
              .pad_id = 2,
              .multipliers = {}};
  c.draft = {.stages = 3,
             .block = 5,
             .noise_id = 128799,
             .taps = {37, 38, 39},
             .markov_rank = 256,
             .experts = 128,
             .active_experts = 3};
  c.vision = {.layers = 32,
              .hidden = 1024,
              .heads = 16,
              .width = 2816,
              .patch = 14,
              .downsample = 3,
              .rope_theta = 10000,
              .max_tokens = 1024,
              .min_pixels = 295936,
              .max_ratio = 0};
  return c;
}

config choose_layers(const config& from, std::span<const int32_t> chosen) {
  const numbering to(from, chosen);
  check_sources(from, chosen, to);
  config c = from;
  c.layers = static_cast<int32_t>(chosen.size());
  c.ratios.clear();
  for (const int32_t l : chosen) c.ratios.push_back(from.ratios[static_cast<size_t>(l)]);
  c.ratios.resize(c.ratios.size() + static_cast<size_t>(c.draft.stages), 0);
  c.kv_sources = to.of(from.kv_sources);
  c.index_sources = to.of(from.index_sources);
  c.candidate_source = from.candidate_source >= 0 && to.has(from.candidate_source) ? to.of(from.candidate_source) : -1;
  c.draft.taps = to.of(from.draft.taps);
  c.engram.layers.clear(), c.engram.rows.clear(), c.engram.multipliers.clear();
  for (size_t slot = 0; slot < from.engram.layers.size(); ++slot) {
    if (!to.has(from.engram.layers[slot])) continue;
    c.engram.layers.push_back(to.of(from.engram.layers[slot]));
    c.engram.rows.push_back(from.engram.rows[slot]);
    if (slot < from.engram.multipliers.size()) c.engram.multipliers.push_back(from.engram.multipliers[slot]);
  }
  return c;
}

std::string config_text(const config& c, const std::string& bits) {
  lines packed(2);
  packed.add("quant_method", "exl3");
  packed.add("version", "synthetic");
  packed.add("bits", bits);
  packed.add("head_bits", 6);
  packed.add("codebook", "mul1");
  lines to(1);
  to.add("architectures", std::string(R"(["DeepseekV41ForCausalLM"])"));
  to.add("model_type", "deepseek_v41");
  to.add("bos_token_id", c.bos_id);
  to.add("eos_token_id", c.eos_id);
  to.add("pad_token_id", c.pad_id);
  if (c.image_id >= 0) to.add("image_token_id", c.image_id);
  to.add("text_config", text_lines(c));
  if (c.vision.layers > 0) to.add("vision_config", vision_lines(c.vision));
  to.add("quantization_config", packed);
  return "{\n" + to.text() + "\n}\n";
}

} // namespace troupe::deepseek_v41
