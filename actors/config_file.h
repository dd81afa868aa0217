// The part of TOML that the configuration file uses: `key = value` lines, comments, strings, numbers, booleans, lists
// of strings. Strict: what it does not know it refuses by line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct config_line {
  std::string key;
  std::vector<std::string> items; // one value, or the items of a list
  bool is_list = false, is_quoted = false;
  int line = 0;
};

// Throws std::runtime_error "FILE:LINE: ...": a table header, a missing value or `=`, an open string or list, text
// behind a value.
std::vector<config_line> read_config_text(std::string_view text, const std::string& file);

} // namespace troupe
