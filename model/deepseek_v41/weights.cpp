// Reading the weights of one rank.
#include "model/deepseek_v41/weights.h"

#include "storage/parallel.h"

#include <algorithm>
#include <stdexcept>

namespace troupe::deepseek_v41 {
namespace {

rank_share plan_share(const checkpoint& from, int rank, int n_ranks) {
  const config& c = from.settings();
  if (c.o_groups % n_ranks != 0)
    throw std::runtime_error(c.file + ": o_groups: expected a multiple of " + std::to_string(n_ranks) +
                             " ranks, found " + std::to_string(c.o_groups));
  rank_share s;
  s.rank = rank;
  s.n_ranks = n_ranks;
  s.groups = c.o_groups / n_ranks;
  s.first_group = s.groups * rank;
  s.heads = c.heads / n_ranks;
  s.first_head = s.heads * rank;
  const int64_t unit = from.matrix_at("head", c.vocabulary, c.dim).cut_unit();
  const int64_t even = (c.vocabulary + n_ranks - 1) / n_ranks;
  s.vocabulary_stride = n_ranks == 1 ? c.vocabulary : (even + unit - 1) / unit * unit;
  s.first_vocabulary_row = std::min(s.vocabulary_stride * rank, c.vocabulary);
  s.vocabulary_rows = std::min(s.vocabulary_stride, c.vocabulary - s.first_vocabulary_row);
  return s;
}

} // namespace

weight_loader::weight_loader(const checkpoint& from, backend& to)
    : from_(from), c_(from.settings()), to_(to), share_(plan_share(from, to.rank(), to.n_ranks())) {}

stored_part weight_loader::read(const std::string& stem, int64_t out, int64_t in, matrix_cut cut) const {
  return read_part(from_.files(), from_.matrix_at(stem, out, in), cut);
}

matrix_ptr weight_loader::linear(const std::string& stem, int64_t out, int64_t in, matrix_cut cut) {
  return to_.load(read(stem, out, in, cut).matrix);
}

std::vector<float> weight_loader::floats(const std::string& name, int64_t n) const {
  const tensor_info* t = from_.find(name);
  if (t == nullptr) throw checkpoint_error(name + ": expected a tensor, found nothing");
  std::vector<float> v = read_floats(from_.files(), *t);
  if (static_cast<int64_t>(v.size()) != n)
    throw checkpoint_error(name + ": expected " + std::to_string(n) + " numbers, found " + std::to_string(v.size()));
  return v;
}

tensor weight_loader::upload(std::span<const float> v, std::initializer_list<int64_t> shape, const std::string& what) {
  const tensor t = to_.allocate(dtype::f32, shape, what);
  to_.upload(t, v.data(), t.size_bytes());
  return t;
}

tensor weight_loader::plain(const std::string& name, std::initializer_list<int64_t> shape) {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return upload(floats(name, n), shape, name);
}

matrix_ptr weight_loader::dense(std::span<const float> v, int64_t out, int64_t in, const std::string& name) {
  stored_matrix m;
  m.name = name;
  m.out = out;
  m.in = in;
  m.weight = tensor(const_cast<float*>(v.data()), dtype::f32, {out, in}); // lent to load, which only reads
  return to_.load(m);
}

tensor weight_loader::embedding() {
  const tensor_info* t = from_.find("embed.weight");
  if (t == nullptr) throw checkpoint_error("embed.weight: expected the token embedding, found nothing");
  const int64_t each = (c_.vocabulary + share_.n_ranks - 1) / share_.n_ranks;
  const int64_t first = std::min(each * share_.rank, c_.vocabulary), n = std::min(each, c_.vocabulary - first);
  std::vector<std::byte> rows(static_cast<size_t>(n * c_.dim * size_bytes(t->type)));
  from_.files().read_range(*t, static_cast<uint64_t>(first * c_.dim * size_bytes(t->type)), rows);
  const tensor table = to_.allocate(t->type, {n, c_.dim}, t->name);
  to_.upload(table, rows.data(), table.size_bytes());
  return table;
}

matrix_ptr weight_loader::head() {
  return linear("head", c_.vocabulary, c_.dim,
                {.out_first = share_.first_vocabulary_row, .out_count = share_.vocabulary_rows});
}

attention_weights weight_loader::attention(const std::string& prefix, const layer_role& role) {
  const std::string p = prefix + "attn.";
  attention_weights w;
  w.norm = plain(prefix + "attn_norm.weight", {c_.dim});
  w.wq_a = linear(p + "wq_a", c_.q_rank, c_.dim);
  w.q_norm = plain(p + "q_norm.weight", {c_.q_rank});
  w.wq_b = linear(p + "wq_b", c_.heads * c_.head_dim, c_.q_rank,
                  {.out_first = share_.first_head * c_.head_dim, .out_count = share_.heads * c_.head_dim});
  w.wkv = linear(p + "wkv", c_.head_dim, c_.dim);
  w.kv_norm = plain(p + "kv_norm.weight", {c_.head_dim});
  const std::vector<float> sinks = floats(p + "attn_sink", c_.heads);
  w.sink = upload(std::span(sinks).subspan(static_cast<size_t>(share_.first_head), static_cast<size_t>(share_.heads)),
                  {share_.heads}, p + "attn_sink");
  output_groups(w, p);
  w.wo_b = linear(p + "wo_b", c_.dim, c_.o_groups * c_.o_rank,
                  {.in_first = share_.first_group * c_.o_rank, .in_count = share_.groups * c_.o_rank});
  if (role.owns_kv) {
    compressor_weights& k = w.compressor;
    k.wkv = linear(p + "compressor.wkv", c_.head_dim, c_.dim);
    if (role.ratio == 2) k.wgate = linear(p + "compressor.wgate", c_.head_dim, c_.dim);
    k.norm = plain(p + "compressor.norm.weight", {c_.head_dim});
    k.index_wk = linear(p + "indexer.wk", c_.index_dim, c_.head_dim);
    k.index_norm = plain(p + "indexer.k_norm.weight", {c_.index_dim});
  }
  if (role.owns_index) {
    w.indexer.wq_b = linear(p + "indexer.wq_b", c_.index_heads * c_.index_dim, c_.q_rank);
    w.indexer.weights_proj = linear(p + "indexer.weights_proj", c_.index_heads, c_.dim);
  }
  return w;
}

void weight_loader::output_groups(attention_weights& w, const std::string& p) {
  const int64_t in = c_.heads / c_.o_groups * c_.head_dim;
  const bool sliced = from_.has_slices(p + "wo_a");
  for (int64_t g = share_.first_group; g < share_.first_group + share_.groups; ++g)
    w.wo_a.push_back(
        sliced ? linear(p + "wo_a.slice." + std::to_string(g), c_.o_rank, in)
               : linear(p + "wo_a", c_.o_groups * c_.o_rank, in, {.out_first = g * c_.o_rank, .out_count = c_.o_rank}));
  for (const matrix_ptr& m : w.wo_a) w.wo_a_view.push_back(m.get());
}

mix_weights weight_loader::mix(const std::string& prefix) {
  const int64_t n = c_.mix_outputs(), in = c_.copies * c_.dim;
  mix_weights w;
  w.fn = dense(floats(prefix + "fn", n * in), n, in, prefix + "fn");
  w.base = plain(prefix + "base", {n});
  w.scale = plain(prefix + "scale", {3});
  return w;
}

bool weight_loader::can_cut_width(const std::string& stem) const {
  int64_t unit = 1;
  for (const char* part : {"w1", "w3"})
    unit = std::max(unit, from_.matrix_at(stem + part, c_.expert_width, c_.dim).cut_unit());
  unit = std::max(unit, from_.matrix_at(stem + "w2", c_.dim, c_.expert_width).cut_unit());
  return c_.expert_width % (unit * share_.n_ranks) == 0;
}

moe_weights weight_loader::moe(const std::string& prefix, int32_t n_experts) {
  const std::string p = prefix + "ffn.";
  moe_weights w;
  w.norm = plain(prefix + "ffn_norm.weight", {c_.dim});
  w.gate =
      to_.load(read_part(from_.files(), from_.matrix_at(p + "gate", n_experts, c_.dim, bias_rule::none), {}).matrix);
  w.bias = plain(p + "gate.bias", {n_experts});
  w.bias_vl = from_.find(p + "gate.bias_vl") != nullptr ? plain(p + "gate.bias_vl", {n_experts}) : w.bias;
  const auto stem = [&](int32_t e) { return p + "experts." + std::to_string(e) + "."; };
  bool by_width = share_.n_ranks > 1;
  for (int32_t e = 0; e < n_experts && by_width; ++e) by_width = can_cut_width(stem(e));
  const int64_t width = by_width ? c_.expert_width / share_.n_ranks : c_.expert_width;
  const int64_t from = by_width ? share_.rank * width : 0;
  const int32_t first = by_width ? 0 : n_experts * share_.rank / share_.n_ranks;
  const int32_t last = by_width ? n_experts : n_experts * (share_.rank + 1) / share_.n_ranks;
  std::vector<stored_part> parts(static_cast<size_t>(3 * (last - first)));
  const auto read_one = [&](size_t i) {
    const std::string e = stem(first + static_cast<int32_t>(i / 3));
    parts[i] = i % 3 == 0   ? read(e + "w1", c_.expert_width, c_.dim, {.out_first = from, .out_count = width})
               : i % 3 == 1 ? read(e + "w3", c_.expert_width, c_.dim, {.out_first = from, .out_count = width})
                            : read(e + "w2", c_.dim, c_.expert_width, {.in_first = from, .in_count = width});
  };
  // Nearly all bytes of a model, 5 GB a layer: one thread would take as long as the copies to the device, or longer.
  for_each_parallel(parts.size(), std::max(1U, n_cores() / static_cast<unsigned>(share_.n_ranks)), read_one);
  std::vector<stored_expert> experts;
  for (size_t i = 0; i < parts.size(); i += 3)
    experts.push_back({parts[i].matrix, parts[i + 1].matrix, parts[i + 2].matrix});
  w.experts = to_.load_experts(experts, first);
  if (c_.shared_experts > 0) shared_expert(w, p + "shared_experts.");
  return w;
}

void weight_loader::shared_expert(moe_weights& w, const std::string& stem) {
  w.shared_is_cut = share_.n_ranks > 1 && can_cut_width(stem);
  const int64_t width = w.shared_is_cut ? c_.expert_width / share_.n_ranks : c_.expert_width;
  const int64_t from = w.shared_is_cut ? share_.rank * width : 0;
  w.shared_gate = linear(stem + "w1", c_.expert_width, c_.dim, {.out_first = from, .out_count = width});
  w.shared_up = linear(stem + "w3", c_.expert_width, c_.dim, {.out_first = from, .out_count = width});
  w.shared_down = linear(stem + "w2", c_.dim, c_.expert_width, {.in_first = from, .in_count = width});
}

engram_weights weight_loader::engram(const std::string& prefix, int32_t slot) {
  const std::string p = prefix + "engram.";
  engram_weights w;
  w.wkv = linear(p + "wkv", (c_.copies + 1) * c_.dim, c_.engram.columns() * c_.engram.head_dim);
  w.q_weight = plain(p + "q_weight", {c_.copies, c_.dim});
  w.k_weight = plain(p + "k_weight", {c_.copies, c_.dim});
  w.table = from_.table_at(slot);
  return w;
}

block_weights weight_loader::block(const std::string& prefix, const layer_role& role, int32_t n_experts) {
  block_weights w;
  w.role = role;
  w.attention = attention(prefix, role);
  w.attention_mix = mix(prefix + "hc_attn_");
  w.moe_mix = mix(prefix + "hc_ffn_");
  w.moe = moe(prefix, n_experts);
  return w;
}

block_weights weight_loader::layer(int32_t l) {
  const layer_role role = c_.role(l);
  block_weights w = block(layer_prefix(l), role, c_.experts);
  if (role.engram_slot >= 0) w.engram = engram(layer_prefix(l), role.engram_slot);
  if (progress) progress(static_cast<double>(l + 1) / (c_.layers + c_.draft.stages));
  return w;
}

draft_weights weight_loader::draft() {
  const draft_config& d = c_.draft;
  draft_weights w;
  for (int32_t s = 0; s < d.stages; ++s) w.stages.push_back(block(stage_prefix(s), layer_role{}, d.experts));
  const std::string first = stage_prefix(0), last = stage_prefix(d.stages - 1);
  w.main_proj = linear(first + "main_proj", c_.dim, static_cast<int64_t>(d.taps.size()) * c_.dim);
  w.main_norm = plain(first + "main_norm.weight", {c_.dim});
  w.norm = plain(last + "norm.weight", {c_.dim});
  w.markov_embed = plain(last + "markov_head.embed.weight", {c_.vocabulary, d.markov_rank});
  // Rows as the head's: both are added before the gather. A form that cannot be cut there is refused by name.
  w.markov_head = linear(last + "markov_head.head", c_.vocabulary, d.markov_rank,
                         {.out_first = share_.first_vocabulary_row, .out_count = share_.vocabulary_rows});
  const std::string confidence = last + "confidence_head.proj.weight";
  const std::vector<float> proj = floats(confidence, c_.dim + d.markov_rank);
  const auto dim = static_cast<size_t>(c_.dim);
  w.confidence_x = dense(std::span(proj).first(dim), 1, c_.dim, confidence);
  w.confidence_e = dense(std::span(proj).subspan(dim), 1, d.markov_rank, confidence);
  return w;
}

vision_weights weight_loader::vision() {
  const vision_config& v = c_.vision;
  vision_weights w;
  w.patches = linear("vision.patch_embed.proj", v.hidden, 3 * v.patch * v.patch);
  for (int32_t b = 0; b < v.layers; ++b) {
    const std::string p = "vision.blocks." + std::to_string(b) + ".";
    vision_block_weights& block = w.blocks.emplace_back();
    block.norm1 = plain(p + "norm1.weight", {v.hidden});
    block.norm2 = plain(p + "norm2.weight", {v.hidden});
    block.wqkv = linear(p + "attn.wqkv", 3 * v.hidden, v.hidden);
    block.wo = linear(p + "attn.wo", v.hidden, v.hidden);
    block.w1 = linear(p + "mlp.w1", 2 * v.width, v.hidden);
    block.w2 = linear(p + "mlp.w2", v.hidden, v.width);
  }
  w.norm = plain("vision.norm.weight", {v.hidden});
  w.aligner_in = linear("aligner.w1", c_.dim, v.hidden * v.downsample * v.downsample);
  w.aligner_out = linear("aligner.w2", c_.dim, c_.dim);
  std::vector<float> rows;
  for (const char* name : {"image_start", "image_newline", "image_end"}) {
    const std::vector<float> row = floats(name, c_.dim);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  w.delimiters = upload(rows, {3, c_.dim}, "image delimiters");
  return w;
}

} // namespace troupe::deepseek_v41
