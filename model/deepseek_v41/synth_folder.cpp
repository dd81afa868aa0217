// Reading and writing synth.json; handing out the bytes of a recipe.
#include "model/deepseek_v41/synth_folder.h"

#include "storage/check.h"
#include "storage/parallel.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace troupe::deepseek_v41 {
namespace {

constexpr const char* file_name = "synth.json";
// The same settings give other bytes when a law changes: raised then, so that an old file is refused and not
// misunderstood.
constexpr int64_t recipe_version = 1;

class synth_reader {
public:
  explicit synth_reader(const std::filesystem::path& path) : path_(path.string()) {
    std::ifstream in(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (!in) throw std::runtime_error(path_ + ": cannot be read");
    if (const auto e = parser_.parse(simdjson::padded_string(text)).get(top_); e != simdjson::SUCCESS)
      throw std::runtime_error(path_ + ": expected a JSON object, found " + simdjson::error_message(e));
  }
  template <class T> T value(const char* key, const char* expected) {
    simdjson::dom::element e;
    T v{};
    if (top_[key].get(e) != simdjson::SUCCESS) refuse(key, expected, "nothing");
    if (e.get(v) != simdjson::SUCCESS) refuse(key, expected, simdjson::minify(e));
    return v;
  }
  [[noreturn]] void refuse(const std::string& key, const std::string& expected, const std::string& found) const {
    throw std::runtime_error(path_ + ": " + key + ": expected " + expected + ", found " + found.substr(0, 100));
  }

private:
  std::string path_;
  simdjson::dom::parser parser_;
  simdjson::dom::object top_;
};

} // namespace

std::optional<synth_file> read_synth_file(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / file_name;
  if (!std::filesystem::exists(path)) return std::nullopt;
  synth_reader r(path);
  const auto version = r.value<int64_t>("version", "a number");
  if (version != recipe_version) r.refuse("version", std::to_string(recipe_version), std::to_string(version));
  synth_file f;
  f.settings.seed = r.value<uint64_t>("seed", "a whole number");
  f.settings.bits = r.value<std::string_view>("bits", "a text");
  f.settings.expert_skew = r.value<double>("expert_skew", "a number");
  f.settings.outliers = r.value<int64_t>("outliers", "a whole number");
  f.is_virtual = r.value<bool>("virtual", "true or false");
  for (const simdjson::dom::element e : r.value<simdjson::dom::array>("layers", "a list of layer numbers")) {
    int64_t l = 0;
    if (e.get(l) != simdjson::SUCCESS || l < 0 || l > INT32_MAX)
      r.refuse("layers", "layer numbers", simdjson::minify(e));
    f.settings.layers.push_back(static_cast<int32_t>(l));
  }
  return f;
}

std::string synth_file_text(const synth_file& f) {
  const synth_settings& s = f.settings;
  return fmt::format("{{\n  \"version\": {},\n  \"virtual\": {},\n  \"seed\": {},\n  \"bits\": \"{}\",\n"
                     "  \"layers\": [{}],\n  \"expert_skew\": {},\n  \"outliers\": {}\n}}\n",
                     recipe_version, f.is_virtual, s.seed, s.bits, fmt::join(s.layers, ", "), s.expert_skew,
                     s.outliers);
}

// A large range is made by all cores; what loaders read side by side is smaller than that.
void synth_source::read(const tensor_info& t, uint64_t byte_offset, std::span<std::byte> out) const {
  constexpr size_t piece = size_t{8} << 20;
  TROUPE_CHECK(t.offset < made_.size(), "a tensor is read through the source that it came from");
  const synth_tensor& m = made_[t.offset];
  const auto make = [&](size_t first, size_t n) {
    synth_bytes(m.law, m.info.type, m.key, byte_offset + first, out.subspan(first, n));
  };
  if (out.size() < 2 * piece) return make(0, out.size());
  for_each_parallel((out.size() + piece - 1) / piece, n_cores(),
                    [&](size_t i) { make(i * piece, std::min(piece, out.size() - i * piece)); });
}

std::vector<tensor_info> synth_source::tensors() const {
  std::vector<tensor_info> all;
  all.reserve(made_.size());
  for (const synth_tensor& m : made_) {
    all.push_back(m.info);
    all.back().offset = all.size() - 1;
  }
  return all;
}

checkpoint_files open_checkpoint(const std::filesystem::path& folder, const config& c) {
  const std::optional<synth_file> made = read_synth_file(folder);
  if (!made || !made->is_virtual) return checkpoint_files(folder);
  auto source = std::make_shared<synth_source>((folder / file_name).string(), synth_tensors(c, made->settings));
  return {source->tensors(), source};
}

} // namespace troupe::deepseek_v41
