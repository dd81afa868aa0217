// Encoding: added tokens, then regex pieces, then byte-pair merges. Decoding: bytes, then UTF-8.
#include "model/tokenizer.h"

#include "model/chat_types.h"
#include "model/utf8_stream.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace troupe {
namespace {

byte_pairs make_merges(const tokenizer_file& file, const std::string& name) {
  byte_pairs table(file.byte_ids, file.merges.size());
  int32_t rank = 0;
  for (const merge_rule& m : file.merges) {
    if (!table.add(m.left, m.right, rank, m.joined))
      throw std::runtime_error(name + ": model.merges[" + std::to_string(rank) +
                               "]: expected a pair of its own, found one that is listed before");
    ++rank;
  }
  return table;
}

pretokenizer make_pretokenizer(const tokenizer_file& file, const std::string& name) {
  try {
    return pretokenizer(file.patterns);
  } catch (const std::runtime_error& e) { throw std::runtime_error(name + ": pre_tokenizer: " + e.what()); }
}

string_matcher make_matcher(std::span<const added_token> added) {
  std::vector<std::string> contents;
  for (const added_token& t : added) contents.push_back(t.content);
  return string_matcher(contents);
}

} // namespace

std::shared_ptr<const tokenizer> tokenizer::load(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(path + ": cannot be opened");
  std::string json(std::istreambuf_iterator<char>(in), {});
  if (in.bad()) throw std::runtime_error(path + ": cannot be read");
  return parse(json, path);
}

std::shared_ptr<const tokenizer> tokenizer::parse(std::string_view json, std::string name) {
  return std::shared_ptr<const tokenizer>(new tokenizer(read_tokenizer_file(json, name), name));
}

tokenizer::tokenizer(tokenizer_file file, const std::string& name)
    : pretokenizer_(make_pretokenizer(file, name)), merges_(make_merges(file, name)), added_(std::move(file.added)),
      matcher_(make_matcher(added_)) {
  const size_t n = file.vocabulary.size();
  byte_offsets_.reserve(n + 1);
  spelling_offsets_.reserve(n + 1);
  flags_.reserve(n);
  auto next_added = added_.begin();
  for (size_t id = 0; id < n; ++id) {
    const std::string& spelling = file.vocabulary[id];
    const bool is_added = next_added != added_.end() && next_added->id == static_cast<int32_t>(id);
    const std::string bytes = is_added ? next_added->content : bytes_of_spelling(spelling);
    uint8_t flags = is_utf8(bytes) ? whole_flag : uint8_t{0};
    if (is_added) flags |= added_flag | (next_added++->is_special ? special_flag : uint8_t{0});
    flags_.push_back(flags);
    byte_offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
    spelling_offsets_.push_back(static_cast<uint32_t>(spellings_.size()));
    bytes_ += bytes;
    longest_bytes_ = std::max(longest_bytes_, bytes.size());
    spellings_ += spelling;
    if (spellings_.size() > UINT32_MAX) throw std::runtime_error(name + ": model.vocab: more than 4 GB of spellings");
  }
  byte_offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
  spelling_offsets_.push_back(static_cast<uint32_t>(spellings_.size()));
}

std::vector<int32_t> tokenizer::encode(std::string_view utf8) const {
  const range all{0, utf8.size()};
  return encode_ranges(utf8, {&all, 1}, SIZE_MAX);
}

std::vector<int32_t> tokenizer::encode_plain(std::string_view utf8) const { return encode_ranges(utf8, {}, SIZE_MAX); }

std::vector<int32_t> tokenizer::encode(const rendered_prompt& prompt, bool parse_specials_in_content,
                                       size_t max_tokens) const {
  const std::string text = prompt.text();
  std::vector<range> scanned; // neighbours are one range: a marker may be written in parts
  size_t at = 0;
  for (const prompt_span& s : prompt.spans) {
    const size_t end = at + s.text.size();
    if (s.is_marker || parse_specials_in_content) {
      if (!scanned.empty() && scanned.back().end == at)
        scanned.back().end = end;
      else
        scanned.push_back({at, end});
    }
    at = end;
  }
  return encode_ranges(text, scanned, max_tokens);
}

// Text between two added tokens is one segment, wherever the ranges end.
std::vector<int32_t> tokenizer::encode_ranges(std::string_view text, std::span<const range> scanned,
                                              size_t max_tokens) const {
  std::vector<int32_t> ids;
  if (!is_utf8(text)) { // offsets move, so each part is repaired on its own: its end is the end of a text
    rendered_prompt repaired;
    size_t at = 0;
    const auto add = [&](size_t end, bool is_marker) {
      utf8_stream stream;
      std::string part = stream.push(text.substr(at, end - at));
      stream.finish(part);
      repaired.spans.push_back({std::move(part), is_marker});
      at = end;
    };
    for (const range& r : scanned) add(r.begin, false), add(r.end, true);
    add(text.size(), false);
    return encode(repaired, false, max_tokens);
  }
  // No token is longer than longest_bytes_, so this much text is certain to exceed the limit: the rest is not looked
  // at.
  if (text.size() / longest_bytes_ > max_tokens) {
    size_t end = (max_tokens + 1) * longest_bytes_;
    while (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) ++end;
    text = text.substr(0, end);
  }
  pretokenizer::cutter cutter(pretokenizer_);
  byte_pairs::encoder encoder(merges_);
  std::vector<std::string_view> pieces;
  const auto segment = [&](size_t begin, size_t end) {
    pieces.clear();
    cutter.cut(text.substr(begin, end - begin), pieces);
    for (const std::string_view piece : pieces) {
      encoder.encode(piece, ids);
      if (ids.size() > max_tokens) return;
    }
  };
  size_t done = 0;
  for (const range& r : scanned) {
    for (size_t from = r.begin; from < text.size() && ids.size() <= max_tokens;) {
      const auto m = matcher_.find(text.substr(0, r.end), from);
      if (m.size_bytes == 0) break;
      segment(done, m.begin);
      ids.push_back(added_[static_cast<size_t>(m.pattern)].id);
      done = from = m.begin + m.size_bytes;
    }
  }
  if (ids.size() <= max_tokens) segment(done, text.size());
  return ids;
}

std::string tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  utf8_stream stream;
  for (const int32_t id : ids)
    if (!skip_special || !is_special(id)) stream.push(bytes(id), text);
  stream.finish(text);
  return text;
}

std::optional<int32_t> tokenizer::added_id(std::string_view content) const {
  const auto it = std::find_if(added_.begin(), added_.end(), [&](const auto& t) { return t.content == content; });
  if (it == added_.end()) return std::nullopt;
  return it->id;
}

} // namespace troupe
