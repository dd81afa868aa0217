// Parses and checks safetensors headers. Everything in a header is somebody else's claim until it is checked here.
#include "storage/safetensors_header.h"

#include "storage/file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <optional>
#include <tuple>
#include <unordered_set>

namespace troupe {
namespace {

namespace od = simdjson::ondemand;

constexpr uint64_t length_word_bytes = 8;
// 188245 tensors (the largest public pack) take 25 MiB of JSON in all; ten times that is not a header but damage.
constexpr uint64_t max_header_bytes = uint64_t{256} << 20;
constexpr size_t max_name_bytes = 512;
constexpr size_t max_dims = 16;

class header_parser {
public:
  header_parser(uint64_t header_size, uint64_t file_size, const std::string& file_name)
      : file_name_(file_name), data_begin_(length_word_bytes + header_size), file_size_(file_size) {
    if (header_size > file_size || data_begin_ > file_size)
      refuse(fmt::format("the header is larger than the file: a header of {} bytes needs a file of {}, found {} bytes",
                         header_size, data_begin_, file_size));
  }

  safetensors_header parse(std::string_view json) {
    // The format wants '{' first; without it a leading blank page would pass as a header.
    if (json.empty() || json.front() != '{')
      refuse(fmt::format("the header is not JSON: expected '{{' first, found '{}'", printable(json.substr(0, 24))));
    simdjson::padded_string padded(json);
    od::parser parser;
    od::document document = need(parser.iterate(padded), "an object");
    od::object object = need(document.get_object(), "an object");
    for (auto field_or_error : object) {
      od::field field = need(std::move(field_or_error), "a tensor");
      read_entry(field);
    }
    if (document.current_location().error() != simdjson::OUT_OF_BOUNDS)
      refuse("the header is not JSON: there is text after its end");
    place_in_file();
    return std::move(header_);
  }

private:
  [[noreturn]] void refuse(const std::string& what) const {
    if (current_.empty()) throw checkpoint_error(fmt::format("{}: {}", file_name_, what));
    throw checkpoint_error(fmt::format("{}: tensor '{}': {}{}{}", file_name_, printable(current_), field_,
                                       field_.empty() ? "" : ": ", what));
  }

  // The value of a simdjson result, or a refusal: of a wrong type with `expected` and the token found, else of bad
  // JSON.
  template <class T>
  T need(simdjson::simdjson_result<T>&& result, std::string_view expected, std::string_view found = {}) {
    if (result.error() == simdjson::SUCCESS) return std::move(result).value_unsafe();
    const bool wrong_type = result.error() == simdjson::INCORRECT_TYPE || result.error() == simdjson::NUMBER_ERROR ||
                            result.error() == simdjson::NUMBER_OUT_OF_RANGE;
    if (wrong_type && !found.empty()) refuse(fmt::format("expected {}, found {}", expected, printable(found)));
    refuse(fmt::format("the header is not JSON ({}), expected {}", simdjson::error_message(result.error()), expected));
  }

  static std::string_view token(od::value& value) {
    std::string_view t = value.raw_json_token();
    while (!t.empty() && std::isspace(static_cast<unsigned char>(t.back()))) t.remove_suffix(1);
    return t;
  }

  void read_entry(od::field& field) {
    const std::string_view name = need(field.unescaped_key(), "a name"); // lives in the parser, as long as names_
    current_ = name;
    if (name.empty() || name.size() > max_name_bytes)
      refuse(fmt::format("a name has 1 to {} bytes, found {}", max_name_bytes, name.size()));
    if (!names_.insert(name).second) refuse("the header has this name twice");
    od::value value = field.value();
    const std::string_view found = token(value);
    od::object object = need(value.get_object(), "an object", found);
    if (name == "__metadata__")
      read_metadata(object);
    else
      read_tensor(object);
    current_ = {};
  }

  void read_metadata(od::object& object) {
    for (auto field_or_error : object) {
      od::field field = need(std::move(field_or_error), "a string");
      std::string key(need(field.unescaped_key(), "a name"));
      od::value value = field.value();
      const std::string_view found = token(value);
      header_.metadata.emplace_back(std::move(key), need(value.get_string(), "a string", found));
    }
  }

  // Reads the three members of an entry; `offset` is that inside the data section until place_in_file().
  void read_tensor(od::object& object) {
    std::optional<dtype> type;
    std::optional<std::vector<int64_t>> shape;
    std::optional<std::vector<int64_t>> offsets;
    for (auto field_or_error : object) {
      od::field field = need(std::move(field_or_error), "dtype, shape or data_offsets");
      const std::string_view key = need(field.unescaped_key(), "a name");
      od::value value = field.value();
      if (key == "dtype" && !type)
        type = read_dtype(value);
      else if (key == "shape" && !shape)
        shape = read_whole_numbers(value, "shape", max_dims);
      else if (key == "data_offsets" && !offsets)
        offsets = read_whole_numbers(value, "data_offsets", 2);
      else
        refuse(fmt::format("expected dtype, shape and data_offsets, each once, found '{}'", printable(key)));
    }
    if (!type || !shape || !offsets)
      refuse(fmt::format("{} is missing", !type ? "dtype" : (!shape ? "shape" : "data_offsets")));
    if (offsets->size() != 2) refuse(fmt::format("data_offsets: expected 2 numbers, found {}", offsets->size()));
    add_tensor(*type, std::move(*shape), static_cast<uint64_t>((*offsets)[0]), static_cast<uint64_t>((*offsets)[1]));
  }

  dtype read_dtype(od::value& value) {
    const std::string_view found = token(value);
    const std::string_view text = need(value.get_string(), "a dtype such as \"BF16\"", found);
    const std::optional<dtype> type = to_dtype(text);
    if (!type) refuse(fmt::format("unknown dtype '{}'", printable(text)));
    return *type;
  }

  std::vector<int64_t> read_whole_numbers(od::value& value, std::string_view what, size_t max_count) {
    constexpr std::string_view expected = "a list of whole numbers from 0 to 2^63-1";
    field_ = what;
    std::vector<int64_t> numbers;
    const std::string_view list = token(value);
    od::array array = need(value.get_array(), expected, list);
    for (auto element_or_error : array) {
      od::value element = need(std::move(element_or_error), expected);
      const std::string_view found = token(element);
      const int64_t number = need(element.get_int64(), expected, found);
      if (number < 0) refuse(fmt::format("expected {}, found {}", expected, number));
      if (numbers.size() == max_count) refuse(fmt::format("expected at most {} numbers", max_count));
      numbers.push_back(number);
    }
    field_ = {};
    return numbers;
  }

  void add_tensor(dtype type, std::vector<int64_t> shape, uint64_t begin, uint64_t end) {
    uint64_t size = static_cast<uint64_t>(troupe::size_bytes(type));
    bool overflow = false;
    for (const int64_t n : shape) overflow |= __builtin_mul_overflow(size, static_cast<uint64_t>(n), &size);
    if (overflow || size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      refuse(fmt::format("shape [{}] of {} does not fit in 63 bits", fmt::join(shape, ", "), troupe::name(type)));
    if (end < begin) refuse(fmt::format("data_offsets [{}, {}] run backwards", begin, end));
    if (end - begin != size)
      refuse(fmt::format("{} [{}] takes {} bytes, data_offsets [{}, {}] hold {}", troupe::name(type),
                         fmt::join(shape, ", "), size, begin, end, end - begin));
    header_.tensors.push_back({std::string(current_), type, std::move(shape), 0, begin, size});
  }

  // Sorts the tensors by their bytes and checks that they tile the data section; offsets become absolute.
  void place_in_file() {
    std::vector<tensor_info>& tensors = header_.tensors;
    std::sort(tensors.begin(), tensors.end(), [](const tensor_info& a, const tensor_info& b) {
      return std::tuple(a.offset, a.size_bytes) < std::tuple(b.offset, b.size_bytes);
    });
    header_.data_begin = data_begin_;
    const uint64_t data_size = file_size_ - data_begin_;
    uint64_t covered = 0; // Invariant: bytes [0, covered) of the data belong to one tensor each
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensor_info& t = tensors[i];
      current_ = t.name;
      const uint64_t end = t.offset + t.size_bytes;
      if (t.offset < covered)
        refuse(fmt::format("data_offsets [{}, {}] overlap those of '{}', which end at {}", t.offset, end,
                           printable(tensors[i - 1].name), covered));
      if (t.offset > covered)
        refuse(fmt::format("data_offsets [{}, {}] leave a hole: no tensor owns bytes {} to {}", t.offset, end, covered,
                           t.offset));
      if (end > data_size)
        refuse(
            fmt::format("the file is short or data_offsets [{}, {}] are out of bounds: expected at least {} bytes of "
                        "data, found {} (file of {} bytes, expected at least {})",
                        t.offset, end, end, data_size, file_size_, end + data_begin_));
      covered = end;
      t.offset += data_begin_;
    }
    current_ = {};
    if (covered != data_size)
      refuse(fmt::format("{} bytes at the end belong to no tensor: expected a file of {} bytes, found {}",
                         data_size - covered, data_begin_ + covered, file_size_));
  }

  const std::string& file_name_;
  uint64_t data_begin_;
  uint64_t file_size_;
  std::string_view current_; // the tensor a refusal is about; empty: the file as a whole
  std::string_view field_;   // of that tensor; empty: all of it
  std::unordered_set<std::string_view> names_;
  safetensors_header header_;
};

bool starts_with_ignoring_case(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() && std::equal(lower.begin(), lower.end(), text.begin(), [](char l, char t) {
           return l == std::tolower(static_cast<unsigned char>(t));
         });
}

} // namespace

safetensors_header parse_safetensors_header(std::span<const std::byte> header_json, uint64_t file_size,
                                            const std::string& file_name) {
  const std::string_view json(reinterpret_cast<const char*>(header_json.data()), header_json.size());
  return header_parser(json.size(), file_size, file_name).parse(json);
}

safetensors_header read_safetensors_header(const file& f) {
  const std::string name = f.path().string();
  std::array<char, 128> head_bytes{};
  const size_t n_head = static_cast<size_t>(std::min<uint64_t>(f.size_bytes(), head_bytes.size()));
  f.read(0, std::as_writable_bytes(std::span(head_bytes.data(), n_head)));
  const std::string_view head(head_bytes.data(), n_head);
  if (const std::string_view what = impostor(head); !what.empty())
    throw checkpoint_error(fmt::format("{}: {}; it starts with '{}'", name, what, printable(head.substr(0, 48))));
  if (n_head < length_word_bytes)
    throw checkpoint_error(
        fmt::format("{}: the file is short: expected at least {} bytes, found {}", name, length_word_bytes, n_head));
  uint64_t header_size = 0;
  for (size_t i = length_word_bytes; i-- > 0;)
    header_size = header_size << 8 | static_cast<unsigned char>(head_bytes[i]);
  if (header_size > f.size_bytes() - length_word_bytes)
    throw checkpoint_error(
        fmt::format("{}: the header is larger than the file: its length word says {} bytes, the file "
                    "has {} (the file is short, or no safetensors file)",
                    name, header_size, f.size_bytes()));
  if (header_size > max_header_bytes)
    throw checkpoint_error(
        fmt::format("{}: a header of {} bytes, expected at most {}", name, header_size, max_header_bytes));
  std::vector<std::byte> json(header_size);
  f.read(length_word_bytes, json);
  return parse_safetensors_header(json, f.size_bytes(), name);
}

std::string_view impostor(std::string_view head) {
  if (head.starts_with("version https://git-lfs.github.com/spec/"))
    return "this is a git-lfs pointer file, not the data it stands for (run `git lfs pull`)";
  if (head.starts_with("# xet version") || head.starts_with("/annex/objects/"))
    return "this is a pointer file, not the data it stands for";
  if (head.starts_with("\xEF\xBB\xBF")) head.remove_prefix(3);
  while (!head.empty() && std::isspace(static_cast<unsigned char>(head.front()))) head.remove_prefix(1);
  if (starts_with_ignoring_case(head, "<!doctype") || starts_with_ignoring_case(head, "<html") ||
      starts_with_ignoring_case(head, "<?xml") || starts_with_ignoring_case(head, "<head"))
    return "this is an HTML or XML page, not safetensors data (the download was answered with a web page)";
  return {};
}

std::string printable(std::string_view text) {
  constexpr size_t max_bytes = 200;
  std::string out(text.substr(0, max_bytes));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F || c == '\'') c = '?';
  if (text.size() > max_bytes) out += "...";
  return out;
}

} // namespace troupe
