// Folder -> model, tables, text side.
#include "model/deepseek_v41/family.h"

#include "model/deepseek_v41/chat.h"
#include "model/deepseek_v41/image_plan.h"
#include "model/deepseek_v41/model_v41.h"
#include "model/deepseek_v41/output_parser.h"
#include "model/deepseek_v41/snapshot.h"
#include "model/deepseek_v41/synth_folder.h"
#include "model/deepseek_v41/tables.h"
#include "model/deepseek_v41/token_map.h"
#include "model/image.h"

#include <simdjson.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace troupe::deepseek_v41 {
namespace {

std::string tokenizer_path(const std::string& folder) {
  return (std::filesystem::path(folder) / "tokenizer.json").string();
}

// Default sampling of generation_config.json, where there is one.
void read_sampling_defaults(model_info& info, const std::string& folder) {
  const std::filesystem::path path = std::filesystem::path(folder) / "generation_config.json";
  if (!std::filesystem::exists(path)) return;
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  simdjson::dom::parser parser;
  simdjson::dom::object top;
  if (const auto e = parser.parse(simdjson::padded_string(text)).get(top); e != simdjson::SUCCESS)
    throw std::runtime_error(path.string() + ": expected a JSON object, found " + simdjson::error_message(e));
  const auto number = [&](const char* key, double low, double high, float& to) {
    simdjson::dom::element e;
    double v = 0;
    if (top[key].get(e) != simdjson::SUCCESS || e.is_null()) return;
    if (e.get(v) != simdjson::SUCCESS || !(v >= low && v <= high))
      throw std::runtime_error(path.string() + ": " + key + ": expected a number from " + std::to_string(low) + " to " +
                               std::to_string(high) + ", found " + simdjson::minify(e));
    to = static_cast<float>(v);
  };
  number("temperature", 0, 100, info.default_temperature);
  number("top_p", 0, 1, info.default_top_p);
}

class text_side_v41 final : public text_side {
public:
  explicit text_side_v41(const std::string& folder)
      : words_(tokenizer::load(tokenizer_path(folder))), markers_(find_markers(*words_)) {
    const config c = read_config(folder);
    const bool is_borrowed = read_synth_file(folder).has_value(); // its tokenizer may be another model's
    self_check(*words_, markers_, c.vocabulary, !is_borrowed);
    const vision_config& v = c.vision;
    if (v.layers == 0) return;
    vision_ = vision_plan_config{.patch = static_cast<int32_t>(v.patch),
                                 .downsample = static_cast<int32_t>(v.downsample),
                                 .max_tokens = static_cast<int32_t>(v.max_tokens),
                                 .min_pixels = v.min_pixels,
                                 .max_wh_ratio = v.max_ratio > 0 ? std::optional(v.max_ratio) : std::nullopt};
  }

  const std::shared_ptr<const tokenizer>& words() const override { return words_; }
  rendered_prompt render(const chat_input& in) const override { return render_chat(in); }
  std::unique_ptr<output_parser> make_parser(const parser_options& options) const override {
    return std::make_unique<output_parser>(words_, markers_, options);
  }
  std::span<const int32_t> suppressed_ids() const override { return markers_.suppressed; }
  int32_t think_end_id() const override { return markers_.think_end; }
  planned_image plan_image(std::span<const std::byte> file) const override {
    if (!vision_) throw image_error("this model takes no images");
    return deepseek_v41::plan_image(decode_image(file), *vision_);
  }

private:
  std::shared_ptr<const tokenizer> words_; // immutable, shared with the actors that decode
  marker_ids markers_;
  std::optional<vision_plan_config> vision_;
};

} // namespace

model_info read_info(const std::string& folder) {
  model_info info = info_of(read_config(folder), folder);
  read_sampling_defaults(info, folder);
  return info;
}

std::shared_ptr<const text_side> load_text(const std::string& folder) {
  return std::make_shared<text_side_v41>(folder);
}

std::unique_ptr<table_reader> open_engram(const std::string& folder, int rank, int n_ranks, int32_t max_sequences,
                                          int64_t in_memory_bytes) {
  const checkpoint from(folder);
  std::vector<int32_t> map;
  if (const engram_config& e = from.settings().engram; !e.layers.empty()) {
    map = compressed_token_map(*tokenizer::load(tokenizer_path(folder)));
    const int64_t found = map.empty() ? 0 : int64_t{*std::max_element(map.begin(), map.end())} + 1;
    if (found != e.compressed_vocabulary)
      throw std::runtime_error(from.settings().file + ": engram_compressed_vocab_size: expected " +
                               std::to_string(found) + ", the compressed ids of its tokenizer, found " +
                               std::to_string(e.compressed_vocabulary));
  }
  return std::make_unique<engram_tables>(from, std::move(map), rank, n_ranks, max_sequences, in_memory_bytes);
}

std::unique_ptr<model> load_model(backend& be, const model_options& options, const load_progress& progress) {
  return std::make_unique<model_v41>(be, options, progress);
}

state_bytes plan_state(const std::string& folder, cache_form form) {
  const config c = read_config(folder);
  const bool draft = c.draft.stages > 0;
  const int64_t block_tokens = model_info{}.block_tokens;
  const cache_plan with_draft = plan_caches(c, form, 1, 1, block_tokens, draft);
  return {.per_block = bytes_per_block(c, form, block_tokens),
          .per_slot = bytes_per_slot(c, with_draft, draft) +
                      (late_context::is_used(draft, form) ? late_context::bytes_per_slot(c, with_draft) : 0),
          .per_snapshot = bytes_per_snapshot(c, form, draft),
          .snapshot_slack = snapshot_slack(c, plan_caches(c, form, 1, 1, block_tokens, false), false),
          .draft_slack = snapshot_slack(c, with_draft, draft)};
}

} // namespace troupe::deepseek_v41
