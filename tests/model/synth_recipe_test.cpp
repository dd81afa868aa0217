// The recipe of synthetic checkpoints: bytes of a seed, names, shapes and rates, roles of chosen layers, arguments.
#include "model/deepseek_v41/synth.h"
#include "model/deepseek_v41/synth_config.h"
#include "tests/model/synth_samples.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

using namespace troupe;
using namespace troupe::deepseek_v41;
using namespace synth_test;

namespace {

std::vector<int32_t> range(int32_t first, int32_t last) {
  std::vector<int32_t> v;
  for (int32_t l = first; l <= last; ++l) v.push_back(l);
  return v;
}
std::vector<int32_t> twenty() {
  std::vector<int32_t> v = range(0, 9);
  for (const int32_t l : range(20, 29)) v.push_back(l);
  return v;
}

} // namespace

TEST_CASE("synth: any byte range of any law equals that part of the whole") {
  const auto numbers = std::make_shared<const std::vector<float>>(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  using kind = synth_law::kind;
  const std::vector<std::pair<synth_law, dtype>> laws{
      {{.what = kind::words}, dtype::i16},
      {{.what = kind::normal, .level = 0.3, .channels = numbers}, dtype::bf16},
      {{.what = kind::normal}, dtype::f32},
      {{.what = kind::scales, .has_signs = true, .has_zeros = true, .spread = 0.5}, dtype::f16},
      {{.what = kind::codes}, dtype::f8_e4m3},
      {{.what = kind::exponents}, dtype::f8_e8m0},
      {{.what = kind::table, .numbers = numbers}, dtype::f32},
      {{.what = kind::marker, .mark = 0x12345678}, dtype::i32}};
  std::mt19937 random(1);
  for (const auto& [law, type] : laws) {
    CAPTURE(static_cast<int>(law.what));
    std::vector<std::byte> whole(law.what == kind::marker ? 4 : 40); // the ten numbers of the table
    synth_bytes(law, type, 99, 0, whole);
    for (int trial = 0; trial < 300; ++trial) {
      const size_t begin = random() % (whole.size() + 1), n = random() % (whole.size() - begin + 1);
      std::vector<std::byte> part(n);
      synth_bytes(law, type, 99, begin, part);
      CHECK(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
  }
}

// Written down, so that a change of a law cannot go unnoticed: old folders would then mean other bytes (raise the
// version in synth_folder.cpp).
TEST_CASE("synth: the bytes of a seed are these, on every machine") {
  CHECK(synth_key(1, "layers.0.attn.wq_a.trellis") == 16496055312807276114U);
  CHECK(synth_word(synth_key(1, "layers.0.attn.wq_a.trellis"), 12345) == 4088741456524579969U);
  const auto bits = [](const synth_law& law, dtype type) {
    uint64_t v = 0;
    synth_bytes(law, type, 7, 800, std::as_writable_bytes(std::span(&v, 1)));
    return v;
  };
  using kind = synth_law::kind;
  CHECK(bits({.what = kind::normal, .level = 0.3}, dtype::bf16) == 4533082568856157985U);
  CHECK(bits({.what = kind::scales, .has_signs = true, .level = 0.02, .spread = 0.3}, dtype::f16) ==
        2810848913085670049U);
  CHECK(bits({.what = kind::codes}, dtype::f8_e4m3) == 17361913631615546083U);
  CHECK(bits({.what = kind::exponents}, dtype::f8_e8m0) == 8608482766754510713U);
}

TEST_CASE(
    "synth: the released shapes are the public pack's: 47,900 packed matrices, 852 native tensors and the tables") {
  const config c = released_config();
  synth_settings s;
  s.layers = range(0, 39);
  size_t n_packed = 0, n_native = 0, n_table = 0;
  uint64_t size = 0;
  for (const synth_tensor& t : synth_tensors(c, s)) {
    const std::string& name = t.info.name;
    const auto ends = [&](const char* end) { return name.ends_with(end); };
    if (has(name, "engram.embed."))
      ++n_table;
    else if (ends(".trellis"))
      ++n_packed;
    else if (!ends(".suh") && !ends(".svh") && !ends(".mul1"))
      ++n_native;
    if (!has(name, "engram.embed.")) size += t.info.size_bytes;
  }
  CHECK(n_packed == 47900);
  CHECK(n_native == 852);
  CHECK(n_table == 4);
  CHECK((size >> 30) == 196); // GiB
}

TEST_CASE("synth: chosen layers keep their roles") {
  const config all = released_config();
  config c = all;
  c.draft = {};
  c.ratios.resize(40);
  const std::vector<int32_t> chosen = twenty();
  const config some = choose_layers(c, chosen);
  CHECK(some.layers == 20);
  CHECK(some.kv_sources == std::vector<int32_t>{2, 8, 10});
  CHECK(some.index_sources == std::vector<int32_t>{2, 8, 10, 14, 18});
  CHECK(some.candidate_source == 10);
  CHECK(some.engram.layers == std::vector<int32_t>{1});
  for (int32_t l = 0; l < 20; ++l) {
    CAPTURE(l);
    const layer_role now = some.role(l), before = all.role(chosen[static_cast<size_t>(l)]);
    CHECK(now.ratio == before.ratio);
    CHECK(now.owns_kv == before.owns_kv);
    CHECK(now.owns_index == before.owns_index);
    CHECK(now.makes_candidates == before.makes_candidates);
    CHECK(now.uses_candidates == before.uses_candidates);
    CHECK((now.engram_slot >= 0) == (before.engram_slot >= 0));
    if (now.ratio > 0) CHECK(chosen[static_cast<size_t>(now.kv_source)] == before.kv_source);
  }
  synth_settings s;
  s.layers = chosen;
  std::map<std::string, int64_t> rate;
  for (const synth_tensor& t : synth_tensors(some, s))
    if (has(t.info.name, ".trellis")) rate[t.info.name] = t.info.shape[2] / 16;
  CHECK(rate["layers.9.ffn.experts.0.w1.trellis"] == 3);
  CHECK(rate["layers.10.ffn.experts.383.w2.trellis"] == 2); // layer 20
  CHECK(rate["layers.12.ffn.experts.0.w3.trellis"] == 2);
  CHECK(rate["layers.13.ffn.experts.0.w3.trellis"] == 3);
  CHECK(rate["layers.19.ffn.shared_experts.w1.trellis"] == 4); // layer 29
  CHECK(rate["layers.19.ffn.shared_experts.w2.trellis"] == 5);
  CHECK(rate["layers.0.attn.wkv.trellis"] == 6);
  CHECK(rate["layers.1.attn.wkv.trellis"] == 5);
  CHECK(rate["layers.10.attn.indexer.wk.trellis"] == 8);
  CHECK(rate["head.trellis"] == 6);
}

TEST_CASE("synth: layers without what they read are refused by number") {
  config c = released_config();
  const auto why = [&](std::vector<int32_t> chosen) { return refusal([&] { choose_layers(c, chosen); }); };
  CHECK(has(why({0, 1, 37, 38, 39}), "layer 37 reads the compressed rows of layer 20"));
  CHECK(has(why(range(0, 20)), "the draft stages read the input of layer 37"));
  c.draft = {};
  CHECK(has(why({0, 1, 3}), "layer 3 reads the compressed rows of layer 2"));
  CHECK(has(why({20, 25}), "layer 25 reads the selection of layer 24"));
  CHECK(has(why({1, 0}), "ascending numbers, found 0 after 1"));
  CHECK(has(why({40}), "from 0 to 39, found 40"));
  CHECK(has(why({}), "at least one"));
  CHECK(why(twenty()) == "accepted");
}

TEST_CASE("synth: a config as text reads back the same") {
  for (const config& c : {released_config(), read_config(tiny_folder)}) {
    const std::string text = config_text(c, "2.9");
    const config back = parse_config(text, "config.json");
    CHECK(config_text(back, "2.9") == text);
    CHECK(back.eps == c.eps);
    CHECK(back.ratios == c.ratios);
    CHECK(back.engram.rows == c.engram.rows);
    CHECK(back.draft.taps == c.draft.taps);
    CHECK(back.vision.layers == c.vision.layers);
    CHECK(back.image_id == c.image_id);
  }
}

TEST_CASE("synth: arguments") {
  const auto parse = [](std::vector<std::string> a) { return parse_synth(a, "t.json"); };
  const synth_options o = parse({"--layers", "0-2,5", "out", "--seed=9", "--disk", "--expert-skew", "0.5", "--draft"});
  CHECK(o.folder == "out");
  CHECK(o.settings.layers == std::vector<int32_t>{0, 1, 2, 5});
  CHECK(o.settings.seed == 9);
  CHECK(o.settings.expert_skew == 0.5);
  CHECK_FALSE(o.is_virtual);
  CHECK(o.with_draft);
  CHECK(o.tokenizer == "t.json");
  CHECK(parse({"out"}).is_virtual);
  const auto why = [&](std::vector<std::string> a) { return refusal([&] { parse(a); }); };
  CHECK(has(why({}), "expected the folder"));
  CHECK(has(why({"a", "b"}), "'b' is no argument"));
  CHECK(has(why({"a", "--seeds", "1"}), "'--seeds' is no argument"));
  CHECK(has(why({"a", "--seed"}), "--seed: expected a value"));
  CHECK(has(why({"a", "--layers", "3-"}), "--layers: expected a number"));
  CHECK(has(why({"a", "--disk", "--virtual"}), "one of --virtual and --disk"));
}
