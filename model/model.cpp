// The list of model families, and what dispatches to them by the config's model type.
#include "model/model.h"

#include "model/deepseek_v41/family.h"

#include <simdjson.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>

namespace troupe {
namespace {

struct family {
  std::string_view model_type;
  model_info (*info)(const std::string& folder);
  std::shared_ptr<const text_side> (*text)(const std::string& folder);
  std::unique_ptr<table_reader> (*tables)(const std::string& folder, int rank, int n_ranks, int32_t max_sequences,
                                          int64_t in_memory_bytes);
  std::unique_ptr<model> (*load)(backend&, const model_options&, const load_progress&);
  state_bytes (*state)(const std::string& folder, cache_form);
};

constexpr std::array families{family{"deepseek_v41", deepseek_v41::read_info, deepseek_v41::load_text,
                                     deepseek_v41::open_engram, deepseek_v41::load_model, deepseek_v41::plan_state}};

// A folder whose config.json names a type, or that has the flat inference/config.json alone, which names none.
const family& family_of(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::path(folder) / "config.json";
  if (!std::filesystem::exists(path)) return families[0]; // its own reader says what is missing
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  simdjson::dom::parser parser;
  simdjson::dom::object top;
  if (const auto e = parser.parse(simdjson::padded_string(text)).get(top); e != simdjson::SUCCESS)
    throw std::runtime_error(path.string() + ": expected a JSON object, found " + simdjson::error_message(e));
  std::string_view type;
  if (top["model_type"].get(type) != simdjson::SUCCESS) {
    if (top["n_layers"].error() == simdjson::SUCCESS) return families[0];
    throw std::runtime_error(path.string() + ": model_type: expected the name of a model family, found nothing");
  }
  for (const family& f : families)
    if (f.model_type == type) return f;
  std::string known;
  for (const family& f : families) known += (known.empty() ? "" : ", ") + std::string(f.model_type);
  throw std::runtime_error(path.string() + ": model_type: expected one of " + known + ", found " +
                           std::string(type.substr(0, 100)));
}

} // namespace

model_info read_model_info(const std::string& folder) { return family_of(folder).info(folder); }
std::shared_ptr<const text_side> load_text_side(const std::string& folder) { return family_of(folder).text(folder); }
std::unique_ptr<table_reader> open_tables(const std::string& folder, int rank, int n_ranks, int32_t max_sequences,
                                          int64_t in_memory_bytes) {
  return family_of(folder).tables(folder, rank, n_ranks, max_sequences, in_memory_bytes);
}
void model::forward_and_sample(std::span<const sequence_rows> rows, record_source& records, const sample_batch& batch,
                               sampled_rows& out, std::span<const draft_wish>) {
  const std::span<const float> logits = forward(rows, records);
  std::vector<float> scratch(logits.begin(), logits.end());
  sample_in_memory(scratch, batch, out);
}

std::unique_ptr<model> load_model(backend& be, const model_options& options, const load_progress& progress) {
  return family_of(options.folder).load(be, options, progress);
}
state_bytes plan_state(const std::string& folder, cache_form form) { return family_of(folder).state(folder, form); }

} // namespace troupe
