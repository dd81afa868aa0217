// Text <-> token ids, from the checkpoint's own tokenizer.json. Spec: chat.md section 1.
#pragma once

#include "model/byte_pairs.h"
#include "model/pretokenizer.h"
#include "model/string_matcher.h"
#include "model/tokenizer_file.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct rendered_prompt;

// Immutable and safe to use from many threads at once. Ids outside 0..size()-1 are read as "no token": no bytes, not
// special, not added (the embedding may have more rows than the vocabulary has entries).
class tokenizer {
public:
  // Shared by several actors of the front process, which all outlive one another in no fixed order. Throws
  // std::runtime_error naming the file, the key, what was expected and what was found.
  static std::shared_ptr<const tokenizer> load(const std::string& tokenizer_json_path);
  // The same from memory; `name` stands for the file in messages.
  static std::shared_ptr<const tokenizer> parse(std::string_view json, std::string name);

  // Invalid UTF-8 is encoded as U+FFFD. Adds no token of its own: no BOS, no EOS.
  std::vector<int32_t> encode(std::string_view utf8) const;       // added tokens become their ids
  std::vector<int32_t> encode_plain(std::string_view utf8) const; // added tokens are ordinary text
  // A prompt as a whole (chat.md 2.12): added tokens in content spans count only with `parse_specials_in_content`;
  // those the renderer wrote always do. Stops soon after the result is longer than `max_tokens`.
  std::vector<int32_t> encode(const rendered_prompt& prompt, bool parse_specials_in_content, size_t max_tokens) const;

  // The bytes a token stands for; an added token: its content in UTF-8.
  std::string_view bytes(int32_t id) const { return at(bytes_, byte_offsets_, id); }
  // The vocabulary's spelling (byte-level alphabet).
  std::string_view raw(int32_t id) const { return at(spellings_, spelling_offsets_, id); }
  // Final text: what is not valid UTF-8 becomes U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  bool is_special(int32_t id) const { return (flags(id) & special_flag) != 0; }
  bool is_added(int32_t id) const { return (flags(id) & added_flag) != 0; }
  // The token's bytes are whole characters by themselves.
  bool is_whole_text(int32_t id) const { return (flags(id) & whole_flag) != 0; }
  std::optional<int32_t> added_id(std::string_view content) const;
  std::span<const added_token> added() const { return added_; } // in increasing id order
  int32_t size() const { return static_cast<int32_t>(flags_.size()); }

private:
  struct range {
    size_t begin, end;
  };
  tokenizer(tokenizer_file file, const std::string& name);
  std::vector<int32_t> encode_ranges(std::string_view text, std::span<const range> scanned, size_t max_tokens) const;

  static constexpr uint8_t special_flag = 1, added_flag = 2, whole_flag = 4;
  uint8_t flags(int32_t id) const {
    return static_cast<uint32_t>(id) < flags_.size() ? flags_[static_cast<size_t>(id)] : 0;
  }
  static std::string_view at(const std::string& all, const std::vector<uint32_t>& offsets, int32_t id) {
    if (static_cast<uint32_t>(id) + size_t{1} >= offsets.size()) return {};
    const auto i = static_cast<size_t>(id);
    return std::string_view(all).substr(offsets[i], offsets[i + 1] - offsets[i]);
  }

  pretokenizer pretokenizer_;
  byte_pairs merges_;
  std::vector<added_token> added_;
  string_matcher matcher_;        // pattern i is added_[i]
  std::string bytes_, spellings_; // of all tokens, one after the other; token i is [offsets[i], offsets[i + 1])
  std::vector<uint32_t> byte_offsets_, spelling_offsets_;
  std::vector<uint8_t> flags_;
  size_t longest_bytes_ = 1; // of one token
};

} // namespace troupe
