// What a tokenizer.json says, checked but not yet built into a tokenizer. Spec: chat.md 1.2, 1.5.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct added_token {
  int32_t id = 0;
  std::string content;
  bool is_special = false;
};

struct merge_rule {
  int32_t left = 0, right = 0, joined = 0; // ids; the rank is the place in the list
};

struct tokenizer_file {
  std::vector<std::string> vocabulary; // by id, in the byte-level alphabet; an added token: its content
  std::vector<added_token> added;      // in increasing id order
  std::vector<std::string> patterns;   // the regex splits, in order
  std::vector<merge_rule> merges;      // in rank order
  std::array<int32_t, 256> byte_ids{}; // id of the symbol of each byte
};

// Throws std::runtime_error naming the file (`name`), the key, what was expected and what was found; that includes
// every feature of the format that chat.md 1.2 does not list.
tokenizer_file read_tokenizer_file(std::string_view json, const std::string& name);

// The byte-level alphabet: the printable code point that stands for a byte, as UTF-8.
std::string spelling_of_byte(uint8_t byte);
// The bytes that a vocabulary spelling stands for; a spelling outside the alphabet stands for itself.
std::string bytes_of_spelling(std::string_view spelling);

} // namespace troupe
