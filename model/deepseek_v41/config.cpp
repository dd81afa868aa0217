// Config files -> config, checked key by key.
#include "model/deepseek_v41/config.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <numbers>
#include <optional>
#include <stdexcept>

namespace troupe::deepseek_v41 {
namespace {

namespace dom = simdjson::dom;

// One object of a config file; every read names file, key, expected and found.
class section {
public:
  section(dom::object o, std::string file, std::string path) : o_(o), file_(std::move(file)), path_(std::move(path)) {}

  std::optional<dom::element> find(const std::string& key) const {
    dom::element e;
    if (o_[key].get(e) != simdjson::SUCCESS || e.is_null()) return std::nullopt;
    return e;
  }
  int64_t integer(const std::string& key, int64_t low, std::optional<int64_t> otherwise = {}) const {
    const auto e = present(key, "an integer", otherwise.has_value());
    if (!e) return *otherwise;
    int64_t v = 0;
    if (e->get(v) != simdjson::SUCCESS || v < low || v > most)
      fail(key, "an integer of at least " + std::to_string(low), simdjson::minify(*e));
    return v;
  }
  double real(const std::string& key, std::optional<double> otherwise = {}) const {
    const auto e = present(key, "a number", otherwise.has_value());
    if (!e) return *otherwise;
    double v = 0;
    if (e->get(v) != simdjson::SUCCESS || !std::isfinite(v) || v < 0)
      fail(key, "a number that is not negative", simdjson::minify(*e));
    return v;
  }
  std::vector<int32_t> integers(const std::string& key, bool required) const {
    std::vector<int32_t> list;
    const auto e = present(key, "a list of integers", !required);
    dom::array items;
    if (!e) return list;
    if (e->get(items) != simdjson::SUCCESS) fail(key, "a list of integers", simdjson::minify(*e));
    for (const dom::element item : items) {
      int64_t v = 0;
      if (item.get(v) != simdjson::SUCCESS || v < 0 || v > INT32_MAX) fail(key, "integers", simdjson::minify(item));
      list.push_back(static_cast<int32_t>(v));
    }
    return list;
  }
  std::optional<section> inner(const std::string& key) const {
    const auto e = find(key);
    dom::object o;
    if (!e || e->get(o) != simdjson::SUCCESS) return std::nullopt;
    return section(o, file_, path_ + key + ".");
  }
  [[noreturn]] void fail(const std::string& key, const std::string& expected, const std::string& found) const {
    throw std::runtime_error(file_ + ": " + path_ + key + ": expected " + expected + ", found " + found.substr(0, 200));
  }

private:
  static constexpr int64_t most = int64_t{1} << 40;

  std::optional<dom::element> present(const std::string& key, const std::string& what, bool optional) const {
    auto e = find(key);
    if (!e && !optional) fail(key, what, "nothing");
    return e;
  }

  dom::object o_;
  std::string file_, path_;
};

// The two spellings of one key.
struct spelling {
  bool nested;
  std::string operator()(const char* nested_key, const char* flat_key) const { return nested ? nested_key : flat_key; }
};

int32_t small(int64_t v) { return static_cast<int32_t>(std::min<int64_t>(v, INT32_MAX)); }

void read_sizes(config& c, const section& s, spelling key) {
  c.vocabulary = s.integer("vocab_size", 1);
  c.dim = s.integer(key("hidden_size", "dim"), 1);
  c.layers = small(s.integer(key("num_hidden_layers", "n_layers"), 1));
  c.heads = s.integer(key("num_attention_heads", "n_heads"), 1);
  c.head_dim = s.integer("head_dim", 1);
  c.rope_dim = s.integer(key("qk_rope_head_dim", "rope_head_dim"), 2);
  c.q_rank = s.integer("q_lora_rank", 1);
  c.o_groups = s.integer("o_groups", 1);
  c.o_rank = s.integer("o_lora_rank", 1);
  c.eps = static_cast<float>(s.real(key("rms_norm_eps", "norm_eps")));
  c.window = s.integer(key("sliding_window", "window_size"), 1);
  c.index_heads = s.integer("index_n_heads", 1);
  c.index_dim = s.integer("index_head_dim", 1);
  c.index_topk = s.integer("index_topk", 1);
  c.rope_theta = s.real("rope_theta");
  c.compress_rope_theta = s.real("compress_rope_theta", c.rope_theta);
  c.experts = small(s.integer("n_routed_experts", 1));
  c.shared_experts = small(s.integer("n_shared_experts", 0));
  c.active_experts = small(s.integer(key("num_experts_per_tok", "n_activated_experts"), 1));
  c.expert_width = s.integer(key("moe_intermediate_size", "moe_inter_dim"), 1);
  c.route_scale = static_cast<float>(s.real(key("routed_scaling_factor", "route_scale")));
  c.swiglu_limit = static_cast<float>(s.real("swiglu_limit", 0));
  c.copies = s.integer("hc_mult", 1);
  c.sinkhorn_iterations = small(s.integer("hc_sinkhorn_iters", 1));
  c.hc_eps = static_cast<float>(s.real("hc_eps"));
}

void read_roles(config& c, const section& s, spelling key) {
  c.draft.stages = small(s.integer(key("num_nextn_predict_layers", "n_mtp_layers"), 0, 0));
  c.ratios = s.integers("compress_ratios", true);
  c.kv_sources = s.integers(key("kv_source_layer_ids", "kv_source_layers"), false);
  c.index_sources = s.integers(key("index_source_layer_ids", "index_source_layers"), false);
  c.candidate_source = small(s.integer(key("candidate_source_layer_id", "candidate_source_layer"), -1, -1));
  c.candidate_blocks = s.integer("candidate_topk_blocks", 1, 1);
  c.candidate_block_size = s.integer("candidate_block_size", 1, 1);
}

void read_yarn(config& c, const section& s, bool nested) {
  const auto from = nested ? s.inner("rope_scaling") : std::optional(s);
  if (!from || !from->find(nested ? "factor" : "rope_factor")) return;
  c.yarn.on = true;
  c.yarn.factor = from->real(nested ? "factor" : "rope_factor");
  c.yarn.beta_fast = from->real("beta_fast", 32);
  c.yarn.beta_slow = from->real("beta_slow", 1);
  c.yarn.original_context = from->integer(nested ? "original_max_position_embeddings" : "original_seq_len", 1);
}

void read_engram(config& c, const section& s, bool nested) {
  engram_config& e = c.engram;
  e.layers = s.integers("engram_layer_ids", false);
  if (e.layers.empty()) return;
  for (const int32_t n : s.integers("engram_num_embeddings", true)) e.rows.push_back(n);
  e.max_ngram = s.integer("engram_max_ngram_size", 2);
  e.vocabulary = s.integer("engram_vocab_size", 2);
  e.heads = s.integer("engram_n_heads", 1);
  e.head_dim = s.integer("engram_head_dim", 1);
  e.pad_id = small(s.integer(nested ? "engram_pad_token_id" : "engram_pad_id", 0));
  e.compressed_vocabulary = s.integer("engram_compressed_vocab_size", 1);
  const auto given = s.find("engram_multipliers");
  dom::array slots;
  if (!given) return;
  if (given->get(slots) != simdjson::SUCCESS) s.fail("engram_multipliers", "a list of lists", simdjson::minify(*given));
  for (const dom::element slot : slots) {
    dom::array values;
    if (slot.get(values) != simdjson::SUCCESS) s.fail("engram_multipliers", "a list", simdjson::minify(slot));
    auto& list = e.multipliers.emplace_back();
    for (const dom::element v : values) {
      int64_t m = 0;
      if (v.get(m) != simdjson::SUCCESS || m <= 0)
        s.fail("engram_multipliers", "positive integers", simdjson::minify(v));
      list.push_back(m);
    }
  }
}

void read_draft(config& c, const section& s, spelling key) {
  if (c.draft.stages == 0) return;
  c.draft.block = small(s.integer("dspark_block_size", 1));
  c.draft.noise_id = small(s.integer("dspark_noise_token_id", 0));
  c.draft.taps = s.integers("dspark_target_layer_ids", true);
  c.draft.markov_rank = s.integer("dspark_markov_rank", 1);
  c.draft.experts = small(s.integer("dspark_n_routed_experts", 1));
  c.draft.active_experts = small(s.integer(key("dspark_num_experts_per_tok", "dspark_n_activated_experts"), 1));
}

void read_vision(vision_config& v, const section& s, const std::string& prefix) {
  v.layers = small(s.integer(prefix + "num_hidden_layers", 0, 0));
  if (v.layers == 0) return;
  v.hidden = s.integer(prefix + "hidden_size", 1);
  v.heads = s.integer(prefix + "num_attention_heads", 1);
  v.width = s.integer(prefix + "intermediate_size", 1);
  v.patch = s.integer(prefix + "patch_size", 1);
  v.rope_theta = s.real(prefix + "rope_theta", 10000);
  v.downsample = s.integer(prefix + "downsample_ratio", 1);
  v.max_tokens = s.integer(prefix + "max_image_tokens", 4);
  v.min_pixels = s.integer(prefix + "min_pixels", 0, 0);
  v.max_ratio = s.real(prefix + "max_wh_ratio", 0);
}

void expect(bool holds, const config& c, const std::string& key, const std::string& expected,
            const std::string& found) {
  if (!holds) throw std::runtime_error(c.file + ": " + key + ": expected " + expected + ", found " + found);
}

std::string list(const std::vector<int32_t>& v) {
  std::string s = "[";
  for (const int32_t i : v) s += (s.size() > 1 ? ", " : "") + std::to_string(i);
  return s + "]";
}

void expect_layers(const config& c, const std::string& key, const std::vector<int32_t>& ids) {
  const bool ascending = std::is_sorted(ids.begin(), ids.end(), std::less_equal<>());
  expect(ascending && (ids.empty() || ids.back() < c.layers), c, key,
         "ascending layer numbers below " + std::to_string(c.layers), list(ids));
}

void check_roles(config& c) {
  expect(static_cast<int64_t>(c.ratios.size()) >= c.layers, c, "compress_ratios",
         std::to_string(c.layers) + " entries or more", std::to_string(c.ratios.size()));
  c.ratios.resize(static_cast<size_t>(c.layers + c.draft.stages), 0); // some copies carry the backbone only
  expect_layers(c, "kv_source_layer_ids", c.kv_sources);
  expect_layers(c, "index_source_layer_ids", c.index_sources);
  expect_layers(c, "engram_layer_ids", c.engram.layers);
  expect_layers(c, "dspark_target_layer_ids", c.draft.taps);
  for (int32_t l = 0; l < c.layers + c.draft.stages; ++l) {
    const int32_t ratio = c.ratios[static_cast<size_t>(l)];
    expect(ratio <= (l < c.layers ? 2 : 0), c, "compress_ratios", l < c.layers ? "0, 1 or 2" : "0 for draft stages",
           std::to_string(ratio) + " at " + std::to_string(l));
    if (ratio == 0) continue;
    const layer_role r = c.role(l);
    expect(r.kv_source >= 0 && c.ratios[static_cast<size_t>(r.kv_source)] == ratio, c, "kv_source_layer_ids",
           "a source of ratio " + std::to_string(ratio) + " for layer " + std::to_string(l), list(c.kv_sources));
    expect(r.index_source >= r.kv_source, c, "index_source_layer_ids",
           "a source between " + std::to_string(r.kv_source) + " and layer " + std::to_string(l),
           list(c.index_sources));
  }
  for (const auto* sources : {&c.kv_sources, &c.index_sources})
    for (const int32_t l : *sources)
      expect(c.ratios[static_cast<size_t>(l)] > 0, c, "compress_ratios",
             "a ratio for source layer " + std::to_string(l), "0");
  const int32_t from = c.candidate_source;
  expect(from < 0 || (from < c.layers && c.role(from).owns_index), c, "candidate_source_layer_id", "an index source",
         std::to_string(from));
  for (int32_t l = from + 1; from >= 0 && l < c.layers; ++l)
    expect(!c.role(l).uses_candidates || c.role(l).kv_source == c.role(from).kv_source, c, "candidate_source_layer_id",
           "the key source of layer " + std::to_string(l), std::to_string(from));
}

void check_sizes(const config& c) {
  const auto number = [](int64_t v) { return std::to_string(v); };
  expect(c.rope_dim % 2 == 0 && c.rope_dim <= c.head_dim && c.rope_dim <= c.index_dim, c, "qk_rope_head_dim",
         "an even number up to head_dim and index_head_dim", number(c.rope_dim));
  expect(c.head_dim % 32 == 0 && c.head_dim <= 1024, c, "head_dim", "a multiple of 32 up to 1024", number(c.head_dim));
  expect(c.index_dim % 32 == 0 && c.index_dim <= 1024, c, "index_head_dim", "a multiple of 32 up to 1024",
         number(c.index_dim));
  expect(c.heads % c.o_groups == 0, c, "o_groups", "a divisor of " + number(c.heads) + " heads", number(c.o_groups));
  expect(c.copies <= 8, c, "hc_mult", "at most 8", number(c.copies));
  expect(c.active_experts <= c.experts, c, "num_experts_per_tok", "at most " + number(c.experts),
         number(c.active_experts));
  expect(c.shared_experts <= 1, c, "n_shared_experts", "0 or 1", number(c.shared_experts));
  expect(c.bos_id < c.vocabulary && c.eos_id < c.vocabulary && c.pad_id < c.vocabulary && c.image_id < c.vocabulary, c,
         "token ids", "ids below " + number(c.vocabulary), "a larger one");
  const engram_config& e = c.engram;
  expect(e.rows.size() == e.layers.size(), c, "engram_num_embeddings",
         number(static_cast<int64_t>(e.layers.size())) + " entries", number(static_cast<int64_t>(e.rows.size())));
  expect(e.layers.empty() || e.head_dim % 32 == 0, c, "engram_head_dim", "a multiple of 32", number(e.head_dim));
  expect(e.multipliers.empty() || e.multipliers.size() == e.layers.size(), c, "engram_multipliers",
         "one list per layer", number(static_cast<int64_t>(e.multipliers.size())));
  for (const auto& m : e.multipliers)
    expect(static_cast<int64_t>(m.size()) == e.max_ngram, c, "engram_multipliers", number(e.max_ngram) + " per layer",
           number(static_cast<int64_t>(m.size())));
  const draft_config& d = c.draft;
  expect(d.stages == 0 || (!d.taps.empty() && d.noise_id < c.vocabulary && d.active_experts <= d.experts), c,
         "dspark_*", "taps, a noise id of the vocabulary, no more active experts than there are", "otherwise");
  const vision_config& v = c.vision;
  expect(v.layers == 0 || (v.hidden % v.heads == 0 && v.hidden / v.heads % 4 == 0 && v.hidden / v.heads <= 1024), c,
         "vision_config.hidden_size", "heads of a multiple of 4", number(v.hidden));
}

} // namespace

config parse_config(std::string_view text, const std::string& file) {
  dom::parser parser;
  dom::object top;
  if (const auto e = parser.parse(simdjson::padded_string(text)).get(top); e != simdjson::SUCCESS)
    throw std::runtime_error(file + ": expected a JSON object, found " + simdjson::error_message(e));
  const section root(top, file, "");
  const auto nested = root.inner("text_config");
  const section& s = nested ? *nested : root;
  const spelling key{nested.has_value()};
  config c;
  c.file = file;
  read_sizes(c, s, key);
  read_roles(c, s, key);
  read_yarn(c, s, key.nested);
  read_engram(c, s, key.nested);
  read_draft(c, s, key);
  const auto vision = root.inner("vision_config");
  if (nested && vision) read_vision(c.vision, *vision, "");
  if (!nested) read_vision(c.vision, root, "vision_");
  const int64_t scaled = static_cast<int64_t>(c.yarn.factor * static_cast<double>(c.yarn.original_context));
  c.context = s.integer(key("max_position_embeddings", "max_seq_len"), 1,
                        nested ? std::nullopt : std::optional(std::max<int64_t>(scaled, 1)));
  c.bos_id = small(root.integer("bos_token_id", 0, 0));
  c.eos_id = small(root.integer("eos_token_id", 0, 1));
  c.pad_id = small(root.integer("pad_token_id", 0, c.engram.layers.empty() ? 2 : c.engram.pad_id));
  c.image_id = small(root.integer("image_token_id", -1, -1));
  check_roles(c);
  check_sizes(c);
  return c;
}

config read_config(const std::filesystem::path& folder) {
  std::filesystem::path path = folder / "config.json";
  if (!std::filesystem::exists(path) && std::filesystem::exists(folder / "inference" / "config.json"))
    path = folder / "inference" / "config.json";
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) throw std::runtime_error(path.string() + ": expected the model's config file, found none that can be read");
  return parse_config(text, path.string());
}

layer_role config::role(int32_t layer) const {
  layer_role r;
  if (layer >= layers) return r; // draft stages see their window only
  r.ratio = ratios[static_cast<size_t>(layer)];
  const auto position = [](const std::vector<int32_t>& v, int32_t id) {
    const auto at = std::find(v.begin(), v.end(), id);
    return at == v.end() ? -1 : static_cast<int32_t>(at - v.begin());
  };
  r.engram_slot = position(engram.layers, layer);
  r.tap = position(draft.taps, layer);
  if (r.ratio == 0) return r;
  for (const int32_t l : kv_sources)
    if (l <= layer) r.kv_source = l;
  for (const int32_t l : index_sources)
    if (l <= layer) r.index_source = l;
  r.owns_kv = r.kv_source == layer;
  r.owns_index = r.index_source == layer;
  r.makes_candidates = layer == candidate_source;
  r.uses_candidates = r.owns_index && candidate_source >= 0 && layer > candidate_source;
  return r;
}

std::vector<float> rope_frequencies(const config& c, bool compressed) {
  const double r = static_cast<double>(c.rope_dim), base = compressed ? c.compress_rope_theta : c.rope_theta;
  const auto n = static_cast<size_t>(c.rope_dim / 2);
  std::vector<float> f(n);
  const auto corner = [&](double beta) {
    return r * std::log(static_cast<double>(c.yarn.original_context) / (beta * 2 * std::numbers::pi)) /
           (2 * std::log(base));
  };
  for (size_t p = 0; p < n; ++p)
    f[p] = 1.0F / std::pow(static_cast<float>(base), static_cast<float>(2 * p) / static_cast<float>(r));
  if (!compressed || !c.yarn.on) return f;
  const double low = std::max(std::floor(corner(c.yarn.beta_fast)), 0.0);
  const double high = std::min(std::ceil(corner(c.yarn.beta_slow)), r - 1);
  for (size_t p = 0; p < n; ++p) {
    const auto g =
        static_cast<float>(std::clamp((static_cast<double>(p) - low) / std::max(high - low, 0.001), 0.0, 1.0));
    f[p] = f[p] / static_cast<float>(c.yarn.factor) * g + f[p] * (1.0F - g);
  }
  return f;
}

} // namespace troupe::deepseek_v41
