// Which prompts' prefixes are still in KV blocks. It is empty: nothing is stored yet, so every prompt misses. Knows no
// CAF. Design section 5 says what will be kept and under which hash.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace troupe {

class prefix_index {
public:
  // Tokens of the longest stored prefix of `prompt` under `salt`: at most prompt.size() - 1.
  int64_t find(std::span<const int32_t> prompt, std::string_view salt) const;
  int64_t n_entries() const { return 0; }
};

} // namespace troupe
