// The 2.9 bpw recipe over the inventory of names.cpp, so that what is made is what the loader asks for. Real weights
// are not at hand: the laws give each place a deviation that keeps activations near 1 and the features of trained
// weights that kernels have failed on while plain random ones passed.
#include "model/deepseek_v41/synth_recipe.h"

#include "gpu/codebook.h"
#include "model/deepseek_v41/names.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <stdexcept>

namespace troupe::deepseek_v41 {
namespace {

constexpr float outlier_factor = 16;

bool ends_with(const std::string& s, std::string_view end) {
  return s.size() >= end.size() && std::string_view(s).substr(s.size() - end.size()) == end;
}
bool contains(const std::string& s, std::string_view part) { return s.find(part) != std::string::npos; }

class recipe {
public:
  recipe(const config& c, const synth_settings& s) : c_(c), s_(s) {
    make_channels();
    for (const auto& needs : {backbone_needs(c), draft_needs(c), vision_needs(c)})
      for (const tensor_need& n : needs)
        if (!n.optional) add(n); // the pack has no gate.bias_vl
  }
  std::vector<synth_tensor> all;

private:
  void make_channels();
  void add(const tensor_need&);
  void add_plain(const tensor_need&);
  void add_table(const tensor_need&);
  void add_dense(const tensor_need&);
  void add_packed(const tensor_need&, const std::string& stem, int64_t out);
  int rate(const tensor_need&) const;
  double gain(const tensor_need&) const;
  shared_numbers small_numbers(const tensor_need&) const;
  std::vector<float> routing_bias(const std::string& name, int64_t n) const;
  std::vector<float> mix_base(const std::string& name) const;
  void put(const tensor_need&, const std::string& name, dtype, std::vector<int64_t> shape, synth_law);
  double normal(const std::string& name, int64_t i) const {
    return synth_normal(static_cast<uint32_t>(synth_word(synth_key(s_.seed, name), static_cast<uint64_t>(i))));
  }

  const config& c_;
  const synth_settings& s_;
  shared_numbers large_, damped_; // (dim) factors of residual channels; null without outliers
};

// The same few channels of the residual stream are large in everything that writes it, and damped in the norms that
// read it, though not as much: a trained stream has such channels. Quantisers of activations with one scale a block and
// Hadamard blocks that smear them are what this is for.
void recipe::make_channels() {
  if (s_.outliers == 0) return;
  std::vector<float> large(static_cast<size_t>(c_.dim), 1), damped = large;
  std::set<int64_t> chosen;
  const uint64_t key = synth_key(s_.seed, "outlier channels");
  for (uint64_t i = 0; static_cast<int64_t>(chosen.size()) < s_.outliers; ++i)
    chosen.insert(static_cast<int64_t>(synth_word(key, i) % static_cast<uint64_t>(c_.dim)));
  for (const int64_t channel : chosen) {
    large[static_cast<size_t>(channel)] = outlier_factor;
    damped[static_cast<size_t>(channel)] = 1 / std::sqrt(outlier_factor);
  }
  large_ = std::make_shared<const std::vector<float>>(std::move(large));
  damped_ = std::make_shared<const std::vector<float>>(std::move(damped));
}

void recipe::put(const tensor_need& n, const std::string& name, dtype type, std::vector<int64_t> shape, synth_law law) {
  synth_tensor& t = all.emplace_back();
  t.info.name = name;
  t.info.type = type;
  t.info.size_bytes = static_cast<uint64_t>(size_bytes(type));
  for (const int64_t d : shape) t.info.size_bytes *= static_cast<uint64_t>(d);
  t.info.shape = std::move(shape);
  t.law = std::move(law);
  t.key = synth_key(s_.seed, name);
  t.owner = n.owner;
}

void recipe::add(const tensor_need& n) {
  switch (n.what) {
  case tensor_need::kind::plain: return add_plain(n);
  case tensor_need::kind::table: return add_table(n);
  case tensor_need::kind::grouped:
    for (int64_t g = 0; g < n.groups; ++g) add_packed(n, n.stem + ".slice." + std::to_string(g), n.out / n.groups);
    return;
  case tensor_need::kind::matrix:
    // exl3.md 8.3, "Native".
    if (n.label == "gate" || n.label == "weights_proj" || n.label == "markov_head.head" || n.family == "patches" ||
        n.family == "vision" || n.family == "aligner")
      return add_dense(n);
    return add_packed(n, n.stem, n.out);
  }
}

void recipe::add_plain(const tensor_need& n) {
  using kind = synth_law::kind;
  synth_law law;
  dtype type = dtype::bf16;
  const bool of_stream = n.shape.size() == 1 && n.shape[0] == c_.dim;
  if (ends_with(n.stem, "norm.weight") || ends_with(n.stem, "norm1.weight") || ends_with(n.stem, "norm2.weight") ||
      n.label == "q_weight" || n.label == "k_weight") { // positive, of order 1, some twice as large as others
    law.what = kind::scales;
    law.spread = 0.4;
    if (of_stream) law.channels = damped_;
  } else if (contains(n.label, "hc_") && ends_with(n.stem, "_fn")) {
    law.what = kind::normal; // one statistic over all copies: its outputs have deviation 1
    law.level = 1 / std::sqrt(static_cast<double>(n.shape[1]));
    type = dtype::f32;
  } else if (law.numbers = small_numbers(n); law.numbers) {
    law.what = kind::table;
    type = dtype::f32;
  } else {
    // Embeddings and delimiters have the size of what layers add: a token then remains itself in the stream, and rows
    // of one step choose experts of their own. The confidence row reads a stream and sums to deviation 1.
    law.what = kind::normal;
    if (n.label == "confidence_head.proj.weight") law.level = 1 / std::sqrt(static_cast<double>(n.shape[1]));
    if (n.stem == "embed.weight") law.channels = large_;
  }
  put(n, n.stem, type, n.shape, std::move(law));
}

// F32 vectors that are given number by number; null: not one of them.
shared_numbers recipe::small_numbers(const tensor_need& n) const {
  std::vector<float> v;
  if (n.label == "gate.bias") {
    v = routing_bias(n.stem, n.shape[0]);
  } else if (n.label == "attn_sink") { // of the size of the logits they compete with
    for (int64_t i = 0; i < n.shape[0]; ++i) v.push_back(static_cast<float>(normal(n.stem, i)));
  } else if (contains(n.label, "hc_") && ends_with(n.label, "scale")) {
    v = {0.5F, 0.5F, 0.5F};
  } else if (contains(n.label, "hc_") && ends_with(n.label, "base")) {
    v = mix_base(n.stem);
  } else {
    return nullptr;
  }
  return std::make_shared<const std::vector<float>>(std::move(v));
}

// Scores are sqrt(softplus(z)) of z near N(0, 1). Where the best 6 of 384 are cut off, z = 2.2, a bias of 0.13 less
// makes an expert rarer by e: minus 0.13 times the logarithm of its rank (as a harmonic sum) is close to a Zipf law.
// For skew 1 simulation gives 47, 20, 7.3, 2.1 and 0.4 % of the tokens to the experts of rank 1, 4, 16, 64, 256 (1.6 %
// each for skew 0), and 62 distinct experts of 16 tokens in place of 86.
std::vector<float> recipe::routing_bias(const std::string& name, int64_t n) const {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  const uint64_t key = synth_key(s_.seed, name);
  std::sort(order.begin(), order.end(), [key](int64_t a, int64_t b) {
    return synth_word(key, static_cast<uint64_t>(a)) < synth_word(key, static_cast<uint64_t>(b));
  });
  std::vector<float> v(order.size());
  double sum = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    v[static_cast<size_t>(order[rank])] = static_cast<float>(-0.13 * s_.expert_skew * sum);
    sum += 1 / static_cast<double>(rank + 1);
  }
  return v;
}

// Before the sigmoids and the softmax of model.md 2.1: the weights that copies are folded with sum to about 1 over the
// copies, what a layer adds is added about once, and a copy keeps most of itself. With z * 0.5 on top no row of the
// matrix that Sinkhorn balances is a unit vector or uniform: its iterations have something to do.
std::vector<float> recipe::mix_base(const std::string& name) const {
  const int64_t m = c_.copies;
  std::vector<float> v;
  for (int64_t i = 0; i < m; ++i) v.push_back(static_cast<float>(-1.1 + 0.3 * normal(name, i)));
  for (int64_t i = 0; i < m; ++i) v.push_back(static_cast<float>(0.3 * normal(name, m + i)));
  for (int64_t j = 0; j < m; ++j)
    for (int64_t k = 0; k < m; ++k)
      v.push_back(static_cast<float>((j == k ? 2 : 0) + 0.5 * normal(name, 2 * m + j * m + k)));
  return v;
}

void recipe::add_table(const tensor_need& n) {
  put(n, n.stem + ".weight", dtype::f8_e4m3, {n.out, n.in}, {.what = synth_law::kind::codes});
  put(n, n.stem + ".scale", dtype::f8_e8m0, {n.out, n.in / 32}, {.what = synth_law::kind::exponents});
}

// Inputs of deviation 1 give outputs of deviation 1: of the router's z as well.
void recipe::add_dense(const tensor_need& n) {
  synth_law law{.what = synth_law::kind::normal, .level = gain(n) / std::sqrt(static_cast<double>(n.in))};
  put(n, n.stem + ".weight", dtype::bf16, {n.out, n.in}, law);
  law.level = 0.02;
  if (n.bias == bias_rule::needed) put(n, n.stem + ".bias", dtype::bf16, {n.out}, law);
}

// Random words decode to deviation 1 (mul1), so the scale of the matrix is the side vectors', as in real files mostly
// suh's. Both have signs; output channels differ by a lognormal factor, and a few are dead.
void recipe::add_packed(const tensor_need& n, const std::string& stem, int64_t out) {
  constexpr int64_t block = 128;
  if (n.in % block != 0 || out % block != 0)
    throw std::runtime_error(c_.file + ": " + stem + ": expected widths that are multiples of 128, found " +
                             std::to_string(n.in) + " and " + std::to_string(out));
  using kind = synth_law::kind;
  put(n, stem + ".trellis", dtype::i16, {n.in / block * 8, out / block * 8, int64_t{16} * rate(n)}, {});
  put(n, stem + ".suh", dtype::f16, {n.in},
      {.what = kind::scales,
       .has_signs = true,
       .level = gain(n) / std::sqrt(static_cast<double>(n.in)),
       .spread = 0.15});
  const bool writes_stream = n.label == "wo_b" || ends_with(n.label, "w2");
  put(n, stem + ".svh", dtype::f16, {out},
      {.what = kind::scales,
       .has_signs = true,
       .has_zeros = true,
       .spread = 0.3,
       .channels = writes_stream ? large_ : nullptr});
  put(n, stem + ".mul1", dtype::i32, {}, {.what = kind::marker, .mark = mul1_multiplier});
}

// exl3.md 8.3, by the layer's number in the released model.
int recipe::rate(const tensor_need& n) const {
  if (n.family == "head") return 6;
  if (n.stem.starts_with("mtp.")) return 4;
  const int32_t l = s_.layers[std::stoul(n.stem.substr(n.stem.find('.') + 1))];
  if (n.family == "experts") return l >= 18 && l <= 22 ? 2 : 3;
  if (n.family == "shared expert") return l >= 11 && l <= 29 && !(l == 29 && n.label == "w2") ? 4 : 5;
  if (n.family == "engram") return l == 1 ? 5 : 4;
  if (n.label == "wk") return 8;
  return l == 0 && (n.label == "wq_a" || n.label == "wkv") ? 6 : 5;
}

// Deviation of a linear's outputs for inputs of deviation 1. Attention averages its values to about half, the gated
// product of an expert and the mean over experts are smaller than their factors: wo_a and w2 make up for that, so that
// both halves of a layer add about 1 to the stream. wq_b: attention that is neither even nor on one row. Head: logits
// spread as a sampler sees them.
double recipe::gain(const tensor_need& n) const {
  if (n.family == "head") return 2.5;
  if (n.label == "wq_b" || n.label == "wo_a") return 2;
  return ends_with(n.label, "w2") ? 1.5 : 1;
}

} // namespace

std::vector<synth_tensor> synth_tensors(const config& c, const synth_settings& s) {
  if (s.bits != "2.9") throw std::runtime_error("bits: expected 2.9, the one recipe there is, found " + s.bits);
  if (static_cast<int32_t>(s.layers.size()) != c.layers)
    throw std::runtime_error(c.file + ": num_hidden_layers: expected " + std::to_string(s.layers.size()) +
                             ", the layers of the recipe, found " + std::to_string(c.layers));
  if (s.outliers < 0 || s.outliers > c.dim / 2)
    throw std::runtime_error("outliers: expected 0 to " + std::to_string(c.dim / 2) + " channels, found " +
                             std::to_string(s.outliers));
  if (!(s.expert_skew >= 0 && s.expert_skew <= 10))
    throw std::runtime_error("expert_skew: expected 0 to 10, found " + std::to_string(s.expert_skew));
  return std::move(recipe(c, s).all);
}

} // namespace troupe::deepseek_v41
