// Opens the files of a checkpoint, holds the index against what they contain, and reads tensors.
#include "storage/safetensors.h"

#include "storage/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <system_error>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace troupe {
namespace {

namespace fs = std::filesystem;
namespace od = simdjson::ondemand;

constexpr const char* index_name = "model.safetensors.index.json";
constexpr const char* single_name = "model.safetensors";
// The index of the largest public pack (188245 tensors) has 17 MiB.
constexpr uint64_t max_index_bytes = uint64_t{256} << 20;

using weight_map = std::vector<std::pair<std::string, std::string>>; // tensor name, file name

// A file name of the index must stay in the folder: the index is data, and data does not choose which files we open.
void check_file_name(const std::string& index, std::string_view tensor, std::string_view file_name) {
  const bool plain = !file_name.empty() && file_name != "." && file_name != ".." &&
                     file_name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
  if (!plain)
    throw checkpoint_error(fmt::format("{}: tensor '{}': expected a file name inside the folder, found '{}'", index,
                                       printable(tensor), printable(file_name)));
}

// Elements wider than a byte start at even offsets of the data. No more can be asked: the golden checkpoints put F32 at
// multiples of 2, and we read into aligned memory anyhow; an odd offset is a sign of damage in a folder of weights. A
// file opened by its own path may hold anything that the format allows (golden results have F32 at odd offsets).
void check_alignment(const safetensors_header& header, const std::string& file_name) {
  for (const tensor_info& t : header.tensors)
    if (size_bytes(t.type) > 1 && (t.offset - header.data_begin) % 2 != 0)
      throw checkpoint_error(
          fmt::format("{}: tensor '{}': unaligned data_offsets: {} starts at {}, expected an even offset", file_name,
                      printable(t.name), name(t.type), t.offset - header.data_begin));
}

class index_parser {
public:
  explicit index_parser(std::string index) : index_(std::move(index)) {}

  weight_map parse(const std::string& json) {
    od::parser parser;
    const simdjson::padded_string padded(json);
    od::document document = need(parser.iterate(padded), "an object");
    od::object object = need(document.get_object(), "an object");
    bool found = false;
    for (auto field_or_error : object) {
      od::field field = need(std::move(field_or_error), "weight_map");
      if (need(field.unescaped_key(), "a name") != "weight_map") continue;
      if (found) throw checkpoint_error(index_ + ": weight_map is there twice");
      found = true;
      read_map(need(field.value().get_object(), "weight_map to be an object"));
    }
    if (!found) throw checkpoint_error(index_ + ": expected a weight_map, found none");
    if (map_.empty()) throw checkpoint_error(index_ + ": the weight_map is empty");
    return std::move(map_);
  }

private:
  template <class T> T need(simdjson::simdjson_result<T>&& result, std::string_view expected) {
    if (result.error() == simdjson::SUCCESS) return std::move(result).value_unsafe();
    throw checkpoint_error(fmt::format("{}: not the JSON of an index ({}{}{}), expected {}", index_,
                                       simdjson::error_message(result.error()), map_.empty() ? "" : " after ",
                                       map_.empty() ? "" : printable(map_.back().first), expected));
  }

  void read_map(od::object object) {
    std::unordered_set<std::string_view> names; // views into the parser's buffer
    for (auto field_or_error : object) {
      od::field field = need(std::move(field_or_error), "a tensor name and its file");
      const std::string_view name = need(field.unescaped_key(), "a tensor name");
      const std::string_view file_name = need(field.value().get_string(), "the name of a file");
      if (!names.insert(name).second)
        throw checkpoint_error(fmt::format("{}: tensor '{}' is there twice", index_, printable(name)));
      check_file_name(index_, name, file_name);
      map_.emplace_back(name, file_name);
    }
  }

  std::string index_;
  weight_map map_;
};

// "layers.3" of "layers.3.attn.wq_a.weight", "head" of "head.weight": enough to see which part of a model is gone.
std::string part_of(std::string_view name) {
  size_t begin = 0;
  while (begin < name.size()) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view piece = name.substr(begin, end - begin);
    if (!piece.empty() && piece.find_first_not_of("0123456789") == std::string_view::npos)
      return std::string(name.substr(0, end));
    begin = end + 1;
  }
  return std::string(name.substr(0, name.find('.')));
}

// All shards that are not there, each with what it holds, so that one look tells what to fetch.
void refuse_missing_shards(const fs::path& index_path, const std::map<std::string, std::vector<size_t>>& by_file,
                           const weight_map& map) {
  std::string missing;
  size_t n_missing = 0;
  for (const auto& [file_name, entries] : by_file) {
    if (std::error_code error; fs::exists(index_path.parent_path() / file_name, error)) continue;
    ++n_missing;
    std::vector<std::string> parts;
    for (const size_t i : entries) parts.push_back(part_of(map[i].first));
    const auto by_number = [](const std::string& a, const std::string& b) { // layers.9 before layers.10
      return std::tuple(a.size(), std::string_view(a)) < std::tuple(b.size(), std::string_view(b));
    };
    std::sort(parts.begin(), parts.end(), by_number);
    parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
    missing += fmt::format("\n  {}: {} tensors of {}", printable(file_name), entries.size(),
                           printable(fmt::format("{}", fmt::join(parts, ", "))));
  }
  if (n_missing > 0)
    throw checkpoint_error(fmt::format("{}: {} of the {} files that the index names are missing:{}",
                                       index_path.string(), n_missing, by_file.size(), missing));
}

} // namespace

checkpoint_files::checkpoint_files(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) throw checkpoint_error(path.string() + ": no such file or folder");
  if (!fs::is_directory(status))
    open_file(path, false);
  else if (fs::exists(path / index_name, error))
    open_index(path / index_name);
  else if (fs::exists(path / single_name, error))
    open_file(path / single_name, true);
  else
    throw checkpoint_error(fmt::format("{}: expected {} or {}, found neither", path.string(), index_name, single_name));
  index_names();
}

checkpoint_files::checkpoint_files(std::vector<tensor_info> tensors, std::shared_ptr<const tensor_source> source)
    : source_(std::move(source)), tensors_(std::move(tensors)) {
  index_names();
}

// Appends the tensors of one file.
void checkpoint_files::open_file(const fs::path& path, bool needs_alignment) {
  file data(path);
  safetensors_header header = read_safetensors_header(data);
  if (needs_alignment) check_alignment(header, path.string());
  for (tensor_info& t : header.tensors) t.file = files_.size();
  tensors_.insert(tensors_.end(), std::make_move_iterator(header.tensors.begin()),
                  std::make_move_iterator(header.tensors.end()));
  files_.push_back({std::move(data), std::move(header.metadata)});
}

void checkpoint_files::open_index(const fs::path& index_path) {
  const std::string index = index_path.string();
  const file data(index_path);
  if (data.size_bytes() > max_index_bytes)
    throw checkpoint_error(
        fmt::format("{}: an index of {} bytes, expected at most {}", index, data.size_bytes(), max_index_bytes));
  std::string json(data.size_bytes(), '\0');
  data.read(0, std::as_writable_bytes(std::span(json)));
  if (const std::string_view what = impostor(json); !what.empty())
    throw checkpoint_error(fmt::format("{}: {}", index, what));
  const weight_map map = index_parser(index).parse(json);

  std::map<std::string, std::vector<size_t>> by_file; // file name -> entries of `map`
  for (size_t i = 0; i < map.size(); ++i) by_file[map[i].second].push_back(i);
  refuse_missing_shards(index_path, by_file, map);
  std::unordered_map<std::string_view, std::string_view> file_of;
  file_of.reserve(map.size());
  for (const auto& [tensor, file_name] : map) file_of.emplace(tensor, file_name);

  for (const auto& [file_name, entries] : by_file) {
    const size_t first = tensors_.size();
    open_file(index_path.parent_path() / file_name, true);
    for (size_t i = first; i < tensors_.size(); ++i) {
      const auto named = file_of.find(tensors_[i].name);
      if (named == file_of.end())
        throw checkpoint_error(fmt::format("{}: tensor '{}' is in this file but not in the index {}",
                                           files_.back().data.path().string(), printable(tensors_[i].name), index));
      if (named->second != file_name)
        throw checkpoint_error(fmt::format("{}: tensor '{}' is in this file, but the index {} puts it in '{}' "
                                           "(a copy, or a wrong index)",
                                           files_.back().data.path().string(), printable(tensors_[i].name), index,
                                           printable(named->second)));
    }
    const size_t n_named = tensors_.size() - first; // all of them belong here: the header has no name twice
    if (n_named == entries.size()) continue;
    std::unordered_set<std::string_view> present;
    for (size_t i = first; i < tensors_.size(); ++i) present.insert(tensors_[i].name);
    for (const size_t i : entries)
      if (!present.contains(map[i].first))
        throw checkpoint_error(
            fmt::format("{}: expected tensor '{}', which the index {} puts here; {} of {} are missing",
                        files_.back().data.path().string(), printable(map[i].first), index, entries.size() - n_named,
                        entries.size()));
  }
}

void checkpoint_files::index_names() {
  by_name_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
  TROUPE_CHECK(by_name_.size() == tensors_.size(), "a name is in one header once, and the index gives it one file");
}

std::string checkpoint_files::origin(const tensor_info& t) const {
  return source_ ? source_->name() : files_[t.file].data.path().string();
}

const tensor_info* checkpoint_files::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::vector<std::byte> checkpoint_files::read(const tensor_info& t) const {
  std::vector<std::byte> bytes(t.size_bytes);
  read(t, bytes);
  return bytes;
}

void checkpoint_files::read(const tensor_info& t, std::span<std::byte> out) const {
  TROUPE_CHECK(out.size() == t.size_bytes, "a whole tensor is read into a buffer of its size");
  read_range(t, 0, out);
}

void checkpoint_files::read_range(const tensor_info& t, uint64_t byte_offset, std::span<std::byte> out) const {
  TROUPE_CHECK(source_ || t.file < files_.size(), "a tensor_info is read through the checkpoint that it came from");
  TROUPE_CHECK(byte_offset <= t.size_bytes && out.size() <= t.size_bytes - byte_offset, "a range lies in its tensor");
  if (source_)
    source_->read(t, byte_offset, out);
  else
    files_[t.file].data.read(t.offset + byte_offset, out, printable(t.name));
}

void checkpoint_files::drop_cache() const {
  for (const shard& s : files_) s.data.drop_cache();
}

} // namespace troupe
