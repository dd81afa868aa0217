// Appending JSON to a string: the per-token path of a stream writes with these and nothing else.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace troupe {

// With quotes. `text` is UTF-8; the same as Python's json.dumps(ensure_ascii=False).
void append_json_string(std::string& out, std::string_view text);

template <class Integer> void append_integer(std::string& out, Integer value) {
  char digits[24];
  const auto r = std::to_chars(digits, digits + sizeof digits, value);
  out.append(digits, r.ptr);
}

// Shortest text that reads back as the same number; not finite: -9999.0 (api.md 2.3).
void append_json_float(std::string& out, float value);

// At most `limit` bytes of a client's text for an error message, cut between characters, control bytes replaced.
std::string quote(std::string_view client_text, size_t limit = 100);

} // namespace troupe
