// Prefixes that stay by name: system prompts and the like. A name holds the snapshot and every block on its path.
#include "actors/prefix_index.h"

#include <unordered_set>

namespace troupe {

void prefix_index::name_path(snapshot& s, int32_t change) {
  s.n_names += change;
  for (node* n = s.at; n; n = n->parent) n->n_names += change;
}

// Of all names, and of one more snapshot.
int64_t prefix_index::n_named_blocks(const snapshot* more) const {
  std::unordered_set<const node*> blocks;
  std::unordered_set<const snapshot*> all{more};
  for (const auto& [name, id] : names_) all.insert(&snapshots_.at(id));
  int64_t n = 0;
  for (const auto* s : all) {
    n += !s->tail->empty();
    for (const node* at = s->at; at->parent; at = at->parent) blocks.insert(at);
  }
  return n + static_cast<int64_t>(blocks.size());
}

std::optional<std::string> prefix_index::pin_name(const std::string& name, std::string_view salt,
                                                  std::span<const symbol> prompt) {
  const auto* found = best_anywhere(walk(salt, prompt), prompt, 0);
  if (!found) return "nothing of the prompt is cached: it has to be sent once before it is pinned";
  const snapshot_id id = *found;
  auto& s = snapshots_.at(id);
  if (names_.count(name) == 0 && 2 * static_cast<int64_t>(names_.size() + 1) > limits_.max_snapshots)
    return "pins: expected at most " + std::to_string(limits_.max_snapshots / 2) + ", half of the snapshots";
  const auto before = names_.extract(name); // its blocks do not count twice
  const int64_t n_blocks = n_named_blocks(&s), n_most = limits_.n_slots / 2;
  if (before) names_[name] = before.mapped();
  if (n_blocks > n_most)
    return "pins: expected at most " + std::to_string(n_most) + " blocks in all, half of those in host memory, found " +
           std::to_string(n_blocks);
  unpin_name(name);
  name_path(s, 1);
  names_[name] = id;
  return std::nullopt;
}

void prefix_index::pin_restored(const std::string& name, entry_id entry) {
  for (auto& [id, s] : snapshots_) {
    if (s.entry != entry || names_.count(name) > 0) continue;
    name_path(s, 1);
    names_[name] = id;
  }
}

bool prefix_index::unpin_name(const std::string& name) {
  const auto found = names_.find(name);
  if (found == names_.end()) return false;
  name_path(snapshots_.at(found->second), -1);
  names_.erase(found);
  return true;
}

std::vector<prefix_index::pin> prefix_index::pins() const {
  std::vector<pin> out;
  for (const auto& [name, id] : names_) {
    const auto& s = snapshots_.at(id);
    pin p{name, s.n_tokens, !s.tail->empty(), id, s.is_safe_on_disk() ? s.entry : entry_id{}};
    for (const node* n = s.at; n->parent; n = n->parent) ++p.n_blocks;
    out.push_back(std::move(p));
  }
  return out;
}

} // namespace troupe
