// Aho-Corasick automaton over a fixed set of byte strings: added tokens in a prompt, stop strings in an answer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

class string_matcher {
public:
  static constexpr uint32_t root = 0;

  struct match {
    size_t begin = 0;      // offset in the text
    size_t size_bytes = 0; // 0: no match
    int32_t pattern = -1;  // index in the constructor's list
  };

  // Empty patterns are ignored; of two equal patterns the first keeps its index.
  explicit string_matcher(std::span<const std::string> patterns);

  // One step of the automaton. `depth(state)` is the length of the longest suffix read so far that begins some pattern.
  uint32_t step(uint32_t state, uint8_t byte) const;
  uint32_t depth(uint32_t state) const { return nodes_[state].depth; }
  // The longest pattern that ends in `state`, -1 when none does.
  int32_t longest_ending(uint32_t state) const;

  // Leftmost match at or after `from`, the longest at that place (chat.md 1.3). O(text) whatever the patterns are.
  match find(std::string_view text, size_t from) const;

private:
  struct node {
    uint32_t first_edge = 0, n_edges = 0; // into edges_, sorted by byte
    uint32_t fail = 0;
    uint32_t output = 0; // nearest state on the fail chain (itself first) where a pattern ends; 0: none
    uint32_t depth = 0;
    int32_t pattern = -1;
  };
  struct edge {
    uint8_t byte;
    uint32_t to;
  };
  uint32_t child(uint32_t state, uint8_t byte) const; // 0: none
  void link();

  std::vector<node> nodes_;
  std::vector<edge> edges_;
  uint32_t root_[256] = {}; // children of the root: the state of nearly every byte of text
  std::vector<uint32_t> lengths_;
};

} // namespace troupe
