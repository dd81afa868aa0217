// Synthetic checkpoints as folders: complete, the same from files as made on reading, with the promised statistics.
#include "model/deepseek_v41/synth.h"

#include "gpu/codebook.h"
#include "gpu/formats.h"
#include "model/deepseek_v41/checkpoint.h"
#include "model/deepseek_v41/stored_part.h"
#include "model/deepseek_v41/synth_tokenizer.h"
#include "model/model.h"
#include "storage/check.h"
#include "tests/model/synth_samples.h"
#include "tests/safetensors_writer.h"
#include "tests/test_device.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

using namespace troupe;
using namespace troupe::deepseek_v41;
using namespace synth_test;
using test::temp_folder;

namespace {

synth_options tiny_options(const std::filesystem::path& folder, bool is_virtual = true) {
  synth_options o;
  o.folder = folder;
  o.like = tiny_folder;
  o.tokenizer = tiny_folder + "/tokenizer.json";
  o.is_virtual = is_virtual;
  o.with_draft = o.with_vision = true;
  o.settings.outliers = 2;
  return o;
}
void make(const synth_options& o) {
  make_synth(o, [](uint64_t, uint64_t) {});
}

// Mean and deviation of the numbers of a tensor.
struct moments {
  double mean = 0, deviation = 0;
  explicit moments(const std::vector<float>& v) {
    for (const float x : v) mean += x / static_cast<double>(v.size());
    for (const float x : v) deviation += (x - mean) * (x - mean) / static_cast<double>(v.size());
    deviation = std::sqrt(deviation);
  }
};

std::vector<float> numbers(const checkpoint& c, const std::string& name) {
  const tensor_info* t = c.find(name);
  REQUIRE_MESSAGE(t != nullptr, name);
  return read_floats(c.files(), *t);
}

std::vector<float> logits_of(const std::string& folder) {
  const auto be = test::make_device(2);
  model_options o;
  o.folder = folder;
  o.max_sequences = 1;
  o.n_blocks = 4;
  o.max_rows = 32;
  const auto weights = load_model(*be, o, nullptr);
  const auto tables = open_tables(folder, 0, 1, 1);
  std::vector<int32_t> ids(32), blocks{2, 0, 1, 3};
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(61 * i + 5);
  sequence_rows s;
  s.tokens = ids;
  s.blocks = blocks;
  s.n_logits = 4;
  std::vector<std::byte> records(ids.size() * static_cast<size_t>(tables->record_bytes_per_token()));
  tables->read({&s, 1}, records);
  const auto found = weights->forward({&s, 1}, records);
  return {found.begin(), found.end()};
}

} // namespace

TEST_CASE("synth: a folder on disk and a virtual one hold the same tensors, complete and all known") {
  const temp_folder to;
  make(tiny_options(to.path() / "made"));
  make(tiny_options(to.path() / "files", false));
  CHECK_FALSE(std::filesystem::exists(to.path() / "made" / "model.safetensors.index.json"));
  for (const char* name : {"made", "files"}) {
    const checkpoint_report report = verify_checkpoint(to.path() / name);
    CHECK_MESSAGE(report.problems.empty(), report.text());
    CHECK(report.unknown.empty());
  }
  const checkpoint made(to.path() / "made"), files(to.path() / "files");
  CHECK(made.files().tensors().size() == files.files().tensors().size());
  size_t n_same = 0;
  for (const tensor_info& t : files.files().tensors()) {
    const tensor_info* other = made.find(t.name);
    n_same += other != nullptr && other->type == t.type && other->shape == t.shape &&
              made.files().read(*other) == files.files().read(t);
  }
  CHECK(n_same == files.files().tensors().size());
  CHECK(load_text_side(to.path() / "made")->words()->size() == 2048);
}

TEST_CASE("synth: a synthetic folder runs: finite logits that spread, the same from disk; another seed, others") {
  const temp_folder to;
  for (const bool is_virtual : {true, false})
    make(tiny_options(to.path() / (is_virtual ? "made" : "files"), is_virtual));
  synth_options other = tiny_options(to.path() / "other");
  other.settings.seed = 2;
  make(other);
  const std::vector<float> logits = logits_of(to.path() / "made");
  CHECK(std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }));
  const moments m(logits);
  CHECK(m.deviation > 1);
  CHECK(m.deviation < 6);
  CHECK(logits == logits_of(to.path() / "files"));
  CHECK(logits != logits_of(to.path() / "other"));
}

TEST_CASE("synth: numbers have the deviations that the recipe promises") {
  const temp_folder to;
  synth_options o = tiny_options(to.path() / "made");
  o.settings.outliers = 4;
  o.settings.expert_skew = 1;
  make(o);
  const checkpoint c(o.folder);
  const std::vector<std::byte> words = c.files().read(*c.find("head.trellis"));
  std::vector<float> decoded;
  for (size_t i = 0; i + 2 <= words.size(); i += 2)
    decoded.push_back(codebook_table(stored_matrix::codebook::mul1)[static_cast<uint16_t>(
        static_cast<unsigned>(words[i]) | static_cast<unsigned>(words[i + 1]) << 8)]);
  const moments of_words(decoded);
  CHECK(std::fabs(of_words.mean) < 0.02);
  CHECK(of_words.deviation == doctest::Approx(1).epsilon(0.02));
  double fourth = 0; // of a normal distribution: 3
  for (const float x : decoded) fourth += std::pow(x, 4) / static_cast<double>(decoded.size());
  CHECK(fourth == doctest::Approx(2.7).epsilon(0.05));

  std::map<std::string, std::pair<double, double>> expected{// mean, deviation
                                                            {"layers.0.attn.wq_b.suh", {0, 2 / std::sqrt(128.0)}},
                                                            {"layers.0.ffn.gate.weight", {0, 1 / std::sqrt(256.0)}},
                                                            {"layers.0.hc_attn_fn", {0, 1 / std::sqrt(1024.0)}},
                                                            {"mtp.2.markov_head.embed.weight", {0, 1}}};
  for (const auto& [name, e] : expected) {
    CAPTURE(name);
    const moments m(numbers(c, name));
    CHECK(std::fabs(m.mean - e.first) < 0.3 * e.second);
    CHECK(m.deviation == doctest::Approx(e.second).epsilon(0.1));
  }
  // Four channels of the stream are large wherever it is written and the same ones everywhere.
  const auto large = [&](const std::string& name) {
    const std::vector<float> v = numbers(c, name);
    std::vector<size_t> at(v.size());
    for (size_t i = 0; i < at.size(); ++i) at[i] = i;
    std::partial_sort(at.begin(), at.begin() + 4, at.end(),
                      [&](size_t a, size_t b) { return std::fabs(v[a]) > std::fabs(v[b]); });
    at.resize(4);
    std::sort(at.begin(), at.end());
    return at;
  };
  CHECK(large("layers.0.attn.wo_b.svh") == large("layers.3.ffn.experts.1.w2.svh"));
  CHECK(large("layers.0.attn.wo_b.svh") == large("layers.7.ffn.shared_experts.w2.svh"));
  // One expert has no handicap, the others one after another more.
  std::vector<float> bias = numbers(c, "layers.2.ffn.gate.bias");
  std::sort(bias.begin(), bias.end(), std::greater<>());
  CHECK(bias[0] == 0);
  CHECK(bias[1] == doctest::Approx(-0.13));
  CHECK(bias[7] == doctest::Approx(-0.13 * (1 + 1.0 / 2 + 1.0 / 3 + 1.0 / 4 + 1.0 / 5 + 1.0 / 6 + 1.0 / 7)));
  CHECK(numbers(c, "layers.3.ffn.gate.bias") != numbers(c, "layers.2.ffn.gate.bias"));
}

TEST_CASE("synth: table rows have deviation 1 and no code that is not a number") {
  const temp_folder to;
  make(tiny_options(to.path() / "made"));
  const checkpoint c(to.path() / "made");
  const found_table t = c.table_at(0);
  const auto codes = c.files().read(*t.weight), scales = c.files().read(*t.scale);
  double squares = 0;
  size_t n_bad = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    const float v = e4m3_to_f32(static_cast<uint8_t>(codes[i])) * e8m0_to_f32(static_cast<uint8_t>(scales[i / 32]));
    n_bad += !std::isfinite(v);
    squares += double{v} * v / static_cast<double>(codes.size());
  }
  CHECK(n_bad == 0);
  CHECK(std::sqrt(squares) == doctest::Approx(1.08).epsilon(0.05));
}

TEST_CASE("synth: the row count of an Engram table is chosen, and the tables are read by it") {
  const temp_folder to;
  synth_options o = tiny_options(to.path() / "made");
  o.engram_rows = 100000;
  make(o);
  const checkpoint c(o.folder);
  CHECK(c.settings().engram.rows[0] >= 100000);
  CHECK(c.settings().engram.rows[0] < 102000);
  CHECK(c.table_at(0).weight->shape[0] == c.settings().engram.rows[0]);
  CHECK(open_tables(o.folder, 0, 1, 1, 0)->record_bytes_per_token() == 2 * 6 * 66);
}

TEST_CASE("synth: a vocabulary beyond the tokenizer's has a text for every id, and the same ids for every text") {
  const std::string path = tiny_folder + "/tokenizer.json";
  const auto small = tokenizer::load(path), large = tokenizer::parse(filled_tokenizer(path, 5000), "filled");
  CHECK(large->size() == 5000);
  for (const char* text : {"Hello, world! 123", "<4999>", "<\xEF\xBD\x9CUser\xEF\xBD\x9C>Hi"})
    CHECK(large->encode(text) == small->encode(text));
  CHECK(large->decode(std::vector<int32_t>{4999, 2048}, false) == "<4999><2048>");
  CHECK(large->added().size() == small->added().size());
  CHECK(filled_tokenizer(path, 2048).size() > 1000);
  CHECK(has(refusal([&] { filled_tokenizer(path, 100); }),
            "at most 100 tokens, the vocabulary of the model, found 2048"));
  // As large as the released one, and not taken for it.
  const temp_folder to;
  synth_options o = tiny_options(to.path() / "made");
  o.vocabulary = 129280;
  make(o);
  CHECK(load_text_side(o.folder)->words()->size() == 129280);
}

TEST_CASE("synth: what cannot be made is refused before a file is written") {
  const temp_folder to;
  const auto why = [&](auto change) {
    synth_options o = tiny_options(to.path() / "made", false);
    change(o);
    const std::string text = refusal([&] { make(o); });
    CHECK_FALSE(std::filesystem::exists(o.folder / "config.json"));
    return text;
  };
  CHECK(has(why([](auto& o) { o.settings.bits = "3.5"; }), "bits: expected 2.9"));
  CHECK(has(why([](auto& o) { o.settings.outliers = 1000; }), "outliers: expected 0 to 128"));
  fault::arm("synth.small_disk");
  CHECK(has(why([](auto&) {}), "the weights take 14745036 bytes, the disk has 1000000: choose fewer --layers"));
  fault::disarm_all();
  CHECK(has(why([](auto& o) { o.vocabulary = 2100; }), "head: expected widths that are multiples of 128"));
  CHECK(has(why([](auto& o) { o.settings.layers = {3}; }), "layer 3 reads the compressed rows of layer 2"));
  test::write_text(to.path() / "mine", "x");
  synth_options o = tiny_options(to.path());
  CHECK(has(refusal([&] { make(o); }), "expected a new or an empty folder"));
  // A folder whose settings and config have come apart.
  o = tiny_options(to.path() / "apart");
  make(o);
  std::filesystem::remove(o.folder / "synth.json");
  test::write_text(o.folder / "synth.json", synth_file_text({{.layers = {0, 1}}, true}));
  CHECK(has(refusal([&] { checkpoint c(o.folder); }),
            "num_hidden_layers: expected 2, the layers of the recipe, found 8"));
}
