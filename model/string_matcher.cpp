// Aho-Corasick: a trie in sorted edge lists, fail links by breadth-first walk.
#include "model/string_matcher.h"

#include <algorithm>
#include <map>
#include <utility>

namespace troupe {

string_matcher::string_matcher(std::span<const std::string> patterns) {
  std::vector<std::map<uint8_t, uint32_t>> children(1);
  nodes_.emplace_back();
  for (size_t i = 0; i < patterns.size(); ++i) {
    lengths_.push_back(static_cast<uint32_t>(patterns[i].size()));
    uint32_t at = root;
    for (char c : patterns[i]) {
      const auto next = static_cast<uint32_t>(nodes_.size());
      const auto [it, is_new] = children[at].try_emplace(static_cast<uint8_t>(c), next);
      const uint32_t to = it->second;
      if (is_new) {
        children.emplace_back();
        nodes_.emplace_back().depth = nodes_[at].depth + 1;
      }
      at = to;
    }
    if (at != root && nodes_[at].pattern < 0) nodes_[at].pattern = static_cast<int32_t>(i);
  }
  for (size_t n = 0; n < nodes_.size(); ++n) {
    nodes_[n].first_edge = static_cast<uint32_t>(edges_.size());
    nodes_[n].n_edges = static_cast<uint32_t>(children[n].size());
    for (const auto& [byte, to] : children[n]) edges_.push_back({byte, to});
  }
  for (const auto& [byte, to] : children[root]) root_[byte] = to;
  link();
}

void string_matcher::link() {
  std::vector<uint32_t> order{root};
  for (size_t i = 0; i < order.size(); ++i) {
    const uint32_t at = order[i];
    for (uint32_t e = 0; e < nodes_[at].n_edges; ++e) {
      const edge& out = edges_[nodes_[at].first_edge + e];
      // A fail link is shorter than its state, so everything it needs was linked before.
      if (at != root) nodes_[out.to].fail = step(nodes_[at].fail, out.byte);
      node& to = nodes_[out.to];
      to.output = to.pattern >= 0 ? out.to : nodes_[to.fail].output;
      order.push_back(out.to);
    }
  }
}

uint32_t string_matcher::child(uint32_t state, uint8_t byte) const {
  const node& n = nodes_[state];
  const auto first = edges_.begin() + n.first_edge, last = first + n.n_edges;
  const auto it = std::lower_bound(first, last, byte, [](const edge& e, uint8_t b) { return e.byte < b; });
  return it != last && it->byte == byte ? it->to : 0;
}

uint32_t string_matcher::step(uint32_t state, uint8_t byte) const {
  while (state != root) {
    if (const uint32_t to = child(state, byte)) return to;
    state = nodes_[state].fail;
  }
  return root_[byte];
}

int32_t string_matcher::longest_ending(uint32_t state) const {
  const uint32_t out = nodes_[state].output;
  return out == 0 ? -1 : nodes_[out].pattern;
}

string_matcher::match string_matcher::find(std::string_view text, size_t from) const {
  match best;
  uint32_t state = root;
  for (size_t i = from; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    state = state == root ? root_[byte] : step(state, byte);
    if (state == root && best.size_bytes == 0) continue;
    // No pattern that began at or before the best one is still alive.
    if (best.size_bytes != 0 && i + 1 - nodes_[state].depth > best.begin) return best;
    const int32_t ended = longest_ending(state);
    if (ended < 0) continue;
    const size_t size = lengths_[static_cast<size_t>(ended)], begin = i + 1 - size;
    if (best.size_bytes == 0 || begin < best.begin || (begin == best.begin && size > best.size_bytes))
      best = {begin, size, ended};
  }
  return best;
}

} // namespace troupe
