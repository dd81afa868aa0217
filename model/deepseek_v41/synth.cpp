// Sizes and roles, then the small files, then the weights where they are wanted.
#include "model/deepseek_v41/synth.h"

#include "model/deepseek_v41/chat.h"
#include "model/deepseek_v41/engram.h"
#include "model/deepseek_v41/synth_config.h"
#include "model/deepseek_v41/synth_tokenizer.h"
#include "model/deepseek_v41/token_map.h"
#include "model/tokenizer.h"
#include "storage/check.h"
#include "storage/safetensors_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace troupe::deepseek_v41 {
namespace {

namespace fs = std::filesystem;

// The config of the chosen layers, but for what the tokenizer decides.
config plan_config(const synth_options& o) {
  config c = o.like.empty() ? released_config() : read_config(o.like);
  if (!o.with_draft) c.draft = {};
  if (!o.with_vision) c.vision = {};
  if (o.with_draft && c.draft.stages == 0)
    throw std::runtime_error("synth: --draft: " + c.file + " has no draft stages");
  if (o.with_vision && c.vision.layers == 0)
    throw std::runtime_error("synth: --vision: " + c.file + " has no vision tower");
  c.ratios.resize(static_cast<size_t>(c.layers + c.draft.stages));
  c = choose_layers(c, o.settings.layers);
  if (o.experts) {
    c.experts = static_cast<int32_t>(*o.experts);
    c.draft.experts = std::min(c.draft.experts, c.experts);
    c.active_experts = std::min(c.active_experts, c.experts);
    c.draft.active_experts = std::min(c.draft.active_experts, c.draft.experts);
  }
  if (o.vocabulary) c.vocabulary = *o.vocabulary;
  return c;
}

// Ids that have a meaning, and the tables whose hashes start from compressed ids.
void fit_to_tokenizer(config& c, const synth_options& o, const tokenizer& words) {
  const marker_ids m = find_markers(words);
  c.bos_id = m.bos, c.eos_id = m.eos, c.pad_id = m.pad, c.image_id = m.image;
  c.draft.noise_id = static_cast<int32_t>(std::min<int64_t>(c.draft.noise_id, c.vocabulary - 1));
  engram_config& e = c.engram;
  if (e.layers.empty()) return;
  e.pad_id = m.pad;
  const std::vector<int32_t> map = compressed_token_map(words);
  e.compressed_vocabulary = int64_t{*std::max_element(map.begin(), map.end())} + 1;
  // Which row a token reads does not matter, its rows are random: multipliers by the rule of engram.md 3, but drawn
  // from our own generator.
  const int64_t bound = INT64_MAX / e.compressed_vocabulary / 2;
  e.multipliers.assign(e.layers.size(), {});
  for (size_t slot = 0; slot < e.layers.size(); ++slot)
    for (int64_t back = 0; back < e.max_ngram; ++back)
      e.multipliers[slot].push_back(
          2 * static_cast<int64_t>(synth_word(synth_key(o.settings.seed, "multipliers " + std::to_string(slot)),
                                              static_cast<uint64_t>(back)) %
                                   static_cast<uint64_t>(bound)) +
          1);
  if (o.engram_rows) e.vocabulary = std::max<int64_t>(2, *o.engram_rows / e.columns());
  const auto primes = engram_primes(e);
  for (size_t slot = 0; slot < e.layers.size(); ++slot)
    e.rows[slot] = std::accumulate(primes[slot].begin(), primes[slot].end(), int64_t{0});
}

// A file for each owner, in the order of the tensors.
std::vector<shard_plan> plan_shards(const synth_source& source) {
  std::vector<shard_plan> shards;
  std::string owner;
  for (const tensor_info& t : source.tensors()) {
    if (shards.empty() || source.owner(t) != owner) shards.emplace_back();
    owner = source.owner(t);
    shards.back().tensors.push_back(t);
  }
  for (size_t i = 0; i < shards.size(); ++i)
    shards[i].file_name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  return shards;
}

void make_folder(const fs::path& folder) {
  if (fs::exists(folder) && !(fs::is_directory(folder) && fs::is_empty(folder)))
    throw std::runtime_error(folder.string() + ": expected a new or an empty folder, found something in it");
  fs::create_directories(folder);
}

void check_space(const fs::path& folder, uint64_t n_bytes) {
  fs::path at = fs::absolute(folder);
  while (!fs::exists(at)) at = at.parent_path();
  const uint64_t available = fault::at("synth.small_disk") ? 1000000 : fs::space(at).available;
  if (n_bytes > available)
    throw std::runtime_error(fmt::format("{}: the weights take {} bytes, the disk has {}: choose fewer --layers or "
                                         "--engram-rows, or --virtual",
                                         folder.string(), n_bytes, available));
}

std::string report_text(const config& c, const synth_options& o, const synth_report& r) {
  std::string s = fmt::format("{}: {} layers, {} tensors, {} bytes of weights, {}\n", o.folder.string(), c.layers,
                              r.n_tensors, r.weight_bytes,
                              o.is_virtual ? "made when they are read" : fmt::format("{} on disk", r.on_disk_bytes));
  for (size_t slot = 0; slot < c.engram.layers.size(); ++slot)
    s += fmt::format("  Engram table of layer {}: {} rows\n", c.engram.layers[slot], c.engram.rows[slot]);
  return s;
}

} // namespace

synth_report make_synth(const synth_options& given, const std::function<void(uint64_t, uint64_t)>& wrote) {
  synth_options o = given;
  if (o.settings.layers.empty()) {
    o.settings.layers.resize(
        static_cast<size_t>(o.like.empty() ? released_config().layers : read_config(o.like).layers));
    std::iota(o.settings.layers.begin(), o.settings.layers.end(), 0);
  }
  config c = plan_config(o);
  const std::string words = filled_tokenizer(o.tokenizer, c.vocabulary);
  fit_to_tokenizer(c, o, *tokenizer::parse(words, o.tokenizer));
  const std::string text = config_text(c, o.settings.bits);
  c = parse_config(text, (o.folder / "config.json").string()); // a config that a reader refuses is not written
  const synth_source source("synth", synth_tensors(c, o.settings));
  synth_report r;
  for (const tensor_info& t : source.tensors()) ++r.n_tensors, r.weight_bytes += t.size_bytes;
  std::vector<shard_plan> shards;
  if (!o.is_virtual) shards = plan_shards(source);
  for (const shard_plan& s : shards) r.on_disk_bytes += size_bytes(s);
  check_space(o.folder, r.on_disk_bytes);
  make_folder(o.folder);
  write_new_file(o.folder / "config.json", text);
  write_new_file(o.folder / "generation_config.json", "{\"do_sample\": true, \"temperature\": 1.0, \"top_p\": 0.95}\n");
  write_new_file(o.folder / "tokenizer.json", words);
  write_new_file(o.folder / "synth.json", synth_file_text({o.settings, o.is_virtual}));
  uint64_t done = 0;
  for (const shard_plan& s : shards)
    write_shard(o.folder, s, source, [&](uint64_t n) { wrote(done += n, r.on_disk_bytes); });
  if (!o.is_virtual) write_index(o.folder, shards); // last: without it the folder is no checkpoint
  r.text = report_text(c, o, r);
  return r;
}

} // namespace troupe::deepseek_v41
