// Reads tokenizer.json with simdjson and refuses, by name, whatever would make another tokenizer of it.
#include "model/tokenizer_file.h"

#include <algorithm>
#include <initializer_list>
#include <simdjson.h>
#include <stdexcept>
#include <unordered_map>

namespace troupe {
namespace {

using simdjson::dom::element;
using simdjson::dom::element_type;

// The byte-level alphabet: printable Latin-1 stands for itself, the other bytes get the code points from U+0100 up.
constexpr std::array<uint16_t, 256> make_alphabet() {
  std::array<uint16_t, 256> map{};
  uint16_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool is_printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    map[static_cast<size_t>(b)] = is_printable ? static_cast<uint16_t>(b) : next++;
  }
  return map;
}
constexpr auto alphabet = make_alphabet();

std::string describe(element e) {
  std::string s = simdjson::minify(e);
  if (s.size() > 60) s = s.substr(0, 57) + "...";
  return s;
}

class reader {
public:
  explicit reader(const std::string& name) : name_(name) {}

  tokenizer_file read(std::string_view json) {
    simdjson::dom::parser parser;
    const simdjson::padded_string padded(json);
    element root;
    if (const auto error = parser.parse(padded).get(root)) {
      std::string head(json.substr(0, 24));
      for (char& c : head)
        if (c < 32 || c > 126) c = '.';
      throw std::runtime_error(name_ + ": is not JSON (" + simdjson::error_message(error) + "), it begins with '" +
                               head + "'");
    }
    only_keys(root, "top level",
              {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
               "decoder", "model"});
    must_be_null(root, "truncation");
    must_be_null(root, "padding");
    normalizer(root);
    pre_tokenizer(root);
    byte_level(root, "post_processor", true);
    byte_level(root, "decoder", false);
    element model = object(root, "model", "model");
    vocabulary(model);
    added_tokens(root);
    merges(model);
    return std::move(file_);
  }

private:
  [[noreturn]] void refuse(const std::string& key, const std::string& expected, const std::string& found) {
    throw std::runtime_error(name_ + ": " + key + ": expected " + expected + ", found " + found);
  }
  // An absent key reads as null.
  element value(element from, const char* key) {
    element e;
    if (from.at_key(key).get(e) != simdjson::SUCCESS) return null_;
    return e;
  }
  element object(element from, const char* key, const std::string& path) {
    element e = value(from, key);
    if (e.type() != element_type::OBJECT) refuse(path, "an object", describe(e));
    return e;
  }
  simdjson::dom::array array(element from, const char* key, const std::string& path) {
    simdjson::dom::array a;
    const element e = value(from, key);
    if (e.get(a)) refuse(path, "a list", describe(e));
    return a;
  }
  bool boolean(element from, const char* key, const std::string& path, bool fallback) {
    const element e = value(from, key);
    bool b = fallback;
    if (e.type() != element_type::NULL_VALUE && e.get(b)) refuse(path + "." + key, "true or false", describe(e));
    return b;
  }
  std::string_view text(element from, const char* key, const std::string& path) {
    std::string_view s;
    const element e = value(from, key);
    if (e.get(s)) refuse(path + "." + key, "a string", describe(e));
    return s;
  }
  void only_keys(element e, const std::string& path, std::initializer_list<std::string_view> known) {
    simdjson::dom::object o;
    if (e.get(o)) refuse(path, "an object", describe(e));
    for (const auto field : o)
      if (std::find(known.begin(), known.end(), field.key) == known.end())
        refuse(path, "only keys this tokenizer implements", "\"" + std::string(field.key.substr(0, 60)) + "\"");
  }
  void must_be_null(element from, const char* key) {
    const element e = value(from, key);
    if (e.type() != element_type::NULL_VALUE) refuse(key, "null", describe(e));
  }
  void must_be_null_or_empty(element from, const char* key, const std::string& path) {
    const element e = value(from, key);
    std::string_view s;
    if (e.type() != element_type::NULL_VALUE && (e.get(s) || !s.empty())) refuse(path + "." + key, "null", describe(e));
  }
  void must_be_false(element from, const char* key, const std::string& path) {
    if (boolean(from, key, path, false)) refuse(path + "." + key, "false", "true");
  }
  void must_be_type(element e, const std::string& path, std::string_view type) {
    const std::string_view found = text(e, "type", path);
    if (found != type) refuse(path + ".type", "\"" + std::string(type) + "\"", "\"" + std::string(found) + "\"");
  }

  void normalizer(element root) {
    if (value(root, "normalizer").type() == element_type::NULL_VALUE) return;
    const element e = object(root, "normalizer", "normalizer");
    must_be_type(e, "normalizer", "Sequence");
    const auto list = array(e, "normalizers", "normalizer.normalizers");
    if (list.size() != 0) refuse("normalizer.normalizers", "an empty list", describe(list.at(0).value()));
  }

  void pre_tokenizer(element root) {
    const element e = object(root, "pre_tokenizer", "pre_tokenizer");
    must_be_type(e, "pre_tokenizer", "Sequence");
    const auto list = array(e, "pretokenizers", "pre_tokenizer.pretokenizers");
    size_t i = 0;
    for (const element step : list) {
      const std::string path = "pre_tokenizer.pretokenizers[" + std::to_string(i++) + "]";
      if (i == list.size()) {
        must_be_type(step, path, "ByteLevel");
        only_keys(step, path, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
        if (boolean(step, "add_prefix_space", path, true)) refuse(path + ".add_prefix_space", "false", "true");
        if (boolean(step, "use_regex", path, true)) refuse(path + ".use_regex", "false", "true");
        return;
      }
      must_be_type(step, path, "Split");
      only_keys(step, path, {"type", "pattern", "behavior", "invert"});
      if (const auto b = text(step, "behavior", path); b != "Isolated")
        refuse(path + ".behavior", "\"Isolated\"", "\"" + std::string(b) + "\"");
      must_be_false(step, "invert", path);
      const element pattern = object(step, "pattern", path + ".pattern");
      only_keys(pattern, path + ".pattern", {"Regex"});
      file_.patterns.emplace_back(text(pattern, "Regex", path + ".pattern"));
    }
    refuse("pre_tokenizer.pretokenizers", "splits and a ByteLevel at the end", "an empty list");
  }

  // Post-processor and decoder: ByteLevel adds no token and its offsets do not concern us.
  void byte_level(element root, const char* key, bool may_be_null) {
    const element e = value(root, key);
    if (may_be_null && e.type() == element_type::NULL_VALUE) return;
    must_be_type(object(root, key, key), key, "ByteLevel");
  }

  void vocabulary(element model) {
    only_keys(model, "model",
              {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
               "byte_fallback", "ignore_merges", "vocab", "merges"});
    must_be_type(model, "model", "BPE");
    const element dropout = value(model, "dropout");
    if (dropout.type() != element_type::NULL_VALUE) refuse("model.dropout", "null", describe(dropout));
    must_be_null_or_empty(model, "unk_token", "model");
    must_be_null_or_empty(model, "continuing_subword_prefix", "model");
    must_be_null_or_empty(model, "end_of_word_suffix", "model");
    must_be_false(model, "fuse_unk", "model");
    must_be_false(model, "byte_fallback", "model");
    must_be_false(model, "ignore_merges", "model");
    simdjson::dom::object vocab;
    const element e = object(model, "vocab", "model.vocab");
    if (e.get(vocab)) refuse("model.vocab", "an object", describe(e));
    const size_t n = vocab.size() < 0xFFFFFF ? vocab.size() : std::distance(vocab.begin(), vocab.end());
    file_.vocabulary.resize(n);
    ids_.reserve(n);
    std::vector<bool> taken(n);
    for (const auto [spelling, id_value] : vocab) {
      const std::string path = "model.vocab[\"" + std::string(spelling.substr(0, 60)) + "\"]";
      int64_t id = 0;
      if (id_value.get(id)) refuse(path, "an integer", describe(id_value));
      if (id < 0 || id >= static_cast<int64_t>(n))
        refuse(path, "an id below " + std::to_string(n) + ", the number of entries", std::to_string(id));
      if (spelling.empty()) refuse(path, "a spelling that is not empty", "\"\"");
      const auto at = static_cast<size_t>(id);
      if (taken[at]) refuse(path, "an id of its own", std::to_string(id) + ", which another entry has");
      taken[at] = true;
      file_.vocabulary[at] = spelling;
      if (!ids_.emplace(spelling, static_cast<int32_t>(id)).second) refuse(path, "one entry", "two");
    }
    for (int b = 0; b < 256; ++b) {
      const std::string symbol = spelling_of_byte(static_cast<uint8_t>(b));
      const auto it = ids_.find(symbol);
      if (it == ids_.end()) refuse("model.vocab", "the symbol of byte " + std::to_string(b), "no such entry");
      file_.byte_ids[static_cast<size_t>(b)] = it->second;
    }
  }

  void added_tokens(element root) {
    size_t i = 0;
    for (const element e : array(root, "added_tokens", "added_tokens")) {
      const std::string path = "added_tokens[" + std::to_string(i++) + "]";
      only_keys(e, path, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      for (const char* key : {"single_word", "lstrip", "rstrip"}) must_be_false(e, key, path);
      boolean(e, "normalized", path, false); // the normalizer is empty, so the flag has no effect
      int64_t id = -1;
      if (const element v = value(e, "id"); v.get(id)) refuse(path + ".id", "an integer", describe(v));
      if (id < 0 || id > INT32_MAX - 1) refuse(path + ".id", "a token id", std::to_string(id));
      const std::string_view content = text(e, "content", path);
      if (content.empty()) refuse(path + ".content", "text", "\"\"");
      file_.added.push_back({static_cast<int32_t>(id), std::string(content), boolean(e, "special", path, false)});
    }
    std::sort(file_.added.begin(), file_.added.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    for (const added_token& t : file_.added) {
      const auto [it, is_new] = ids_.emplace(t.content, t.id);
      const auto end = static_cast<int32_t>(file_.vocabulary.size());
      if (!is_new && it->second != t.id)
        refuse("added_tokens", "\"" + t.content + "\" at id " + std::to_string(it->second), std::to_string(t.id));
      if (is_new && t.id != end) // so that every id below the size is a token
        refuse("added_tokens", "id " + std::to_string(end) + " as the next one", std::to_string(t.id));
      if (is_new) file_.vocabulary.push_back(t.content);
    }
    for (size_t k = 1; k < file_.added.size(); ++k)
      if (file_.added[k].id == file_.added[k - 1].id)
        refuse("added_tokens", "one entry for each id", "two for " + std::to_string(file_.added[k].id));
  }

  void merges(element model) {
    const auto list = array(model, "merges", "model.merges");
    std::string joined;
    for (const element e : list) {
      const auto path = [&] { return "model.merges[" + std::to_string(file_.merges.size()) + "]"; };
      std::string_view left, right, line;
      simdjson::dom::array pair;
      if (e.get(line) == simdjson::SUCCESS) {
        const size_t space = line.find(' ');
        if (space == line.npos || line.find(' ', space + 1) != line.npos)
          refuse(path(), "two symbols with one space between", describe(e));
        left = line.substr(0, space), right = line.substr(space + 1);
      } else if (e.get(pair) || pair.size() != 2 || pair.at(0).get(left) || pair.at(1).get(right)) {
        refuse(path(), "\"left right\" or [\"left\", \"right\"]", describe(e));
      }
      const auto id = [&](std::string_view symbol) {
        const auto it = ids_.find(std::string(symbol));
        if (it == ids_.end()) refuse(path(), "symbols of the vocabulary", "\"" + std::string(symbol) + "\"");
        return it->second;
      };
      joined.assign(left).append(right);
      file_.merges.push_back({id(left), id(right), id(joined)});
    }
  }

  const std::string& name_;
  tokenizer_file file_;
  std::unordered_map<std::string, int32_t> ids_; // spelling or content -> id
  simdjson::dom::parser null_parser_;
  element null_ = null_parser_.parse(std::string("null")).value();
};

} // namespace

std::string spelling_of_byte(uint8_t byte) {
  const uint16_t c = alphabet[byte];
  if (c < 0x80) return {static_cast<char>(c)};
  return {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
}

std::string bytes_of_spelling(std::string_view spelling) {
  static constexpr auto byte_of = [] {
    std::array<int16_t, 0x200> map{};
    map.fill(-1);
    for (size_t b = 0; b < 256; ++b) map[alphabet[b]] = static_cast<int16_t>(b);
    return map;
  }();
  std::string bytes;
  for (size_t i = 0; i < spelling.size();) {
    const auto b0 = static_cast<uint8_t>(spelling[i]);
    size_t c = b0, n = 1;
    if (b0 >= 0x80) { // every symbol lies below U+0200, so it has one or two bytes
      if (b0 >= 0xE0 || i + 1 == spelling.size()) return std::string(spelling);
      c = static_cast<size_t>(b0 & 0x1F) << 6 | (static_cast<uint8_t>(spelling[i + 1]) & 0x3F);
      n = 2;
    }
    if (c >= byte_of.size() || byte_of[c] < 0) return std::string(spelling);
    bytes += static_cast<char>(byte_of[c]);
    i += n;
  }
  return bytes;
}

tokenizer_file read_tokenizer_file(std::string_view json, const std::string& name) { return reader(name).read(json); }

} // namespace troupe
