// What a deepseek_v41 checkpoint's config files say: every size, id and layer role of the family.
// Spec: model.md section 1, both spellings (nested config.json, flat inference/config.json).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::deepseek_v41 {

struct yarn_scaling {
  bool on = false;
  double factor = 1, beta_fast = 32, beta_slow = 1;
  int64_t original_context = 0;
};

struct engram_config {
  std::vector<int32_t> layers; // empty: no Engram
  std::vector<int64_t> rows;   // per slot; a slot is an index into `layers`
  int64_t max_ngram = 0, vocabulary = 0, heads = 0, head_dim = 0, compressed_vocabulary = 0;
  int32_t pad_id = 2;
  std::vector<std::vector<int64_t>> multipliers; // [slot][lookback]; empty: the files give none        engram.md 3
  int64_t columns() const { return (max_ngram - 1) * heads; }
};

struct draft_config {
  int32_t stages = 0, block = 0, noise_id = 0;
  std::vector<int32_t> taps; // backbone layers whose input is tapped
  int64_t markov_rank = 0;
  int32_t experts = 0, active_experts = 0;
};

struct vision_config {
  int32_t layers = 0; // 0: no tower
  int64_t hidden = 0, heads = 0, width = 0, patch = 0, downsample = 1;
  double rope_theta = 10000;
  int64_t max_tokens = 0, min_pixels = 0;
  double max_ratio = 0; // 0: no limit (null in the file)
};

// Derived, never written in a file (model.md section 1, "Layer roles").
struct layer_role {
  int64_t ratio = 0;      // 0: window only
  int32_t kv_source = -1; // backbone layer whose compressed rows and index keys are read
  int32_t index_source = -1;
  bool owns_kv = false, owns_index = false;
  bool makes_candidates = false, uses_candidates = false;
  int32_t engram_slot = -1, tap = -1;
};

struct config {
  std::string file; // where it came from, for messages
  int32_t bos_id = 0, eos_id = 1, pad_id = 2, image_id = -1;
  int64_t vocabulary = 0, dim = 0, heads = 0, head_dim = 0, rope_dim = 0, q_rank = 0, o_groups = 0, o_rank = 0;
  int32_t layers = 0;
  float eps = 0, hc_eps = 0, route_scale = 1, swiglu_limit = 0;
  int64_t context = 0, window = 0;
  std::vector<int32_t> ratios; // layers + draft stages
  std::vector<int32_t> kv_sources, index_sources;
  int64_t index_heads = 0, index_dim = 0, index_topk = 0;
  int32_t candidate_source = -1;
  int64_t candidate_blocks = 0, candidate_block_size = 1;
  double rope_theta = 10000, compress_rope_theta = 10000;
  yarn_scaling yarn;
  int32_t experts = 0, shared_experts = 0, active_experts = 0;
  int64_t expert_width = 0, copies = 0;
  int32_t sinkhorn_iterations = 0;
  engram_config engram;
  draft_config draft;
  vision_config vision;

  layer_role role(int32_t layer) const;
  int32_t last_kv_source() const { return kv_sources.empty() ? -1 : kv_sources.back(); }
  int32_t mix_outputs() const { return static_cast<int32_t>((2 + copies) * copies); }
};

// Reads folder/config.json, or folder/inference/config.json where that is absent. Throws std::runtime_error naming
// file, key, expected and found.
config read_config(const std::filesystem::path& folder);
// `text` is the JSON itself, `file` its name for messages; ids of a flat file that it lacks keep their defaults.
config parse_config(std::string_view text, const std::string& file);

// Rotation frequencies of one kind of layer, rope_dim / 2 of them (model.md 2.2): window-only layers take rope_theta,
// compressed layers compress_rope_theta and YaRN.
std::vector<float> rope_frequencies(const config&, bool compressed);

} // namespace troupe::deepseek_v41
