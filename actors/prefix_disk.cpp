// The disk tier as the index sees it: entries on their way there and back, room, and what a restart found.
#include "actors/prefix_index.h"

#include "storage/check.h"

#include <algorithm>

namespace troupe {

namespace {

constexpr int64_t header_bytes = 88; // of a tier file, besides fingerprint, salt and symbols; room is counted with it

} // namespace

bool prefix_index::begin_read(node& n) {
  const int32_t slot = take_slot();
  if (slot < 0) return false;
  n.slot = slot;
  n.is_loading = true;
  enter(n, tier::memory);
  loads_[n.entry] = {&n, {}, false, slot, 0};
  reads_.push_back({n.entry, {}, slot, 0});
  return true;
}

bool prefix_index::begin_read(snapshot_id id, snapshot& s) {
  if (n_in_memory_ >= limits_.max_snapshots && !evict_snapshot()) return false;
  const int32_t slot = s.tail->empty() ? -1 : take_slot();
  if (slot < 0 && !s.tail->empty()) return false;
  s.slot = slot;
  s.is_loading = true;
  std::erase(dropped_, id); // it left in this very step
  ++n_in_memory_;
  enter(id, s, tier::memory);
  loads_[s.entry] = {nullptr, id, false, slot, 0};
  reads_.push_back({s.entry, id, slot, s.n_tokens});
  return true;
}

// Reads root first; when the slots do not suffice, what was begun goes on and the prompt gets what there is.
std::optional<snapshot_id> prefix_index::fetch(std::string_view salt, std::span<const symbol> prompt, int64_t floor) {
  if (prompt.empty() || limits_.disk_bytes == 0) return std::nullopt;
  const auto usable = prompt.first(prompt.size() - 1);
  const path p = walk(salt, usable);
  const auto *near = best_at_hand(p, usable, floor), *far = best_anywhere(p, usable, floor);
  if (!far || (near && snapshots_.at(*near).n_tokens >= snapshots_.at(*far).n_tokens)) return std::nullopt;
  const snapshot_id id = *far;
  auto& s = snapshots_.at(id);
  int64_t n_slots = s.is_in_memory() || s.tail->empty() ? 0 : 1;
  std::vector<node*> missing;
  for (node* n = s.at; n->parent; n = n->parent)
    if (!n->is_in(tier::device) && !n->is_in(tier::memory)) missing.push_back(n);
  n_slots += static_cast<int64_t>(missing.size());
  if (n_slots > limits_.n_slots) return std::nullopt;
  ++now_;
  for (node* n = s.at; n; n = n->parent) use(*n);
  touch(id, s);
  pin_path(*s.at);
  pinned_.insert(id);
  if (!s.is_in_memory() && !begin_read(id, s)) return std::nullopt;
  for (auto n = missing.rbegin(); n != missing.rend(); ++n)
    if (!begin_read(**n)) return std::nullopt;
  return id;
}

bool prefix_index::is_loading(snapshot_id id) const {
  const auto found = snapshots_.find(id);
  if (found == snapshots_.end()) return false;
  if (found->second.is_loading) return true;
  for (const node* n = found->second.at; n->parent; n = n->parent)
    if (n->is_loading) return true;
  return false;
}

void prefix_index::read_done(entry_id entry, bool ok) {
  const auto found = loads_.find(entry);
  if (found == loads_.end()) return;
  const transfer t = found->second;
  loads_.erase(found);
  if (t.is_orphan) {
    if (t.slot >= 0) free_slots_.push_back(t.slot);
    if (!t.at) dropped_.push_back(t.snapshot);
    return;
  }
  if (t.at) {
    t.at->is_loading = false;
    if (ok) return;
    release(*t.at, tier::memory);
    release(*t.at, tier::disk);
    if (t.at->is_nowhere()) remove(*t.at);
    return;
  }
  snapshots_.at(t.snapshot).is_loading = false;
  if (!ok) drop(t.snapshot);
}

int64_t prefix_index::bytes_on_disk(const node& n, size_t n_symbols, bool is_snapshot) const {
  const node* top = &n;
  while (top->parent) top = top->parent;
  const bool has_block = !is_snapshot || n_symbols > 0;
  return header_bytes + static_cast<int64_t>(limits_.fingerprint.size() + top->salt.size() + 8 * n_symbols) +
         (is_snapshot ? limits_.snapshot_bytes : 0) + (has_block ? limits_.block_bytes : 0);
}

// With a snapshot go the blocks behind the one below it. So a long prefix is worth more than a short one, but not by so
// much that it stays while several of its size come and go.
double prefix_index::saved_per_byte(double n_tokens) const {
  const auto block = static_cast<double>(pool_.block_tokens());
  const auto own = static_cast<double>(header_bytes + limits_.snapshot_bytes + limits_.block_bytes);
  const auto of_block = static_cast<double>(header_bytes + limits_.block_bytes) + 8 * block;
  return n_tokens / (own + n_tokens / block * of_block);
}

bool prefix_index::make_disk_room(int64_t n_bytes) {
  if (n_bytes > limits_.disk_bytes) return false;
  while (disk_bytes_ + n_bytes > limits_.disk_bytes) {
    if (node* leaf = oldest_leaf(tier::disk)) {
      release(*leaf, tier::disk);
      if (leaf->is_nowhere()) remove(*leaf);
      continue;
    }
    const auto id = lowest(tier::disk, false);
    if (!id) return false;
    auto& s = snapshots_.at(*id);
    clock_[1] = std::max(clock_[1], s.ratings[1].worth);
    leave_disk(s);
    leave(*id, s, tier::disk);
    if (s.is_nowhere()) drop(*id);
  }
  return true;
}

// `what`: all of the order but the numbers of entry and parent.
void prefix_index::begin_write(place& p, const node& parent, transfer t, tier_write what) {
  const node* top = &parent;
  while (top->parent) top = top->parent;
  p.entry = entry_id{++last_entry_};
  p.is_writing = true;
  p.entry_bytes = t.n_bytes;
  disk_bytes_ += t.n_bytes;
  writing_bytes_ += t.n_bytes;
  stores_[p.entry] = t;
  what.entry = p.entry;
  what.parent = parent.entry;
  what.salt = top->salt;
  writes_.push_back(std::move(what));
}

int64_t prefix_index::write(snapshot_id id) {
  const auto found = snapshots_.find(id);
  if (found == snapshots_.end() || limits_.disk_bytes == 0) return 0;
  auto& s = found->second;
  if (!s.is_in_memory() || s.is_loading || s.is_in(tier::disk)) return 0;
  std::vector<node*> fresh;
  int64_t n_bytes = bytes_on_disk(*s.at, s.tail->size(), true);
  for (node* n = s.at; n->parent; n = n->parent) {
    if (n->is_in(tier::disk)) continue;
    if (!n->is_usable()) return 0;
    fresh.push_back(n);
    n_bytes += bytes_on_disk(*n->parent, n->key->size(), false);
  }
  pin_path(*s.at);
  pinned_.insert(id);
  if (!make_disk_room(n_bytes)) return 0;
  for (auto at = fresh.rbegin(); at != fresh.rend(); ++at) {
    node& n = **at;
    const bool is_on_device = n.is_in(tier::device);
    begin_write(n, *n.parent, {&n, {}, false, -1, bytes_on_disk(*n.parent, n.key->size(), false)},
                {{}, {}, n.n_tokens, 0, {}, *n.key, {}, is_on_device ? static_cast<int32_t>(n.block) : -1, n.slot});
    enter(n, tier::disk);
  }
  begin_write(
      s, *s.at, {nullptr, id, false, -1, bytes_on_disk(*s.at, s.tail->size(), true)},
      {{}, {}, s.n_tokens, s.floor, {}, *s.tail, id, s.partial ? static_cast<int32_t>(*s.partial) : -1, s.slot});
  enter(id, s, tier::disk);
  return n_bytes;
}

void prefix_index::write_done(entry_id entry, bool ok) {
  const auto found = stores_.find(entry);
  if (found == stores_.end()) return;
  const transfer t = found->second;
  stores_.erase(found);
  writing_bytes_ -= t.n_bytes;
  if (t.is_orphan) return; // its removal follows it
  if (t.at) {
    t.at->is_writing = false;
    if (ok) return;
    release(*t.at, tier::disk);
    if (t.at->is_nowhere()) remove(*t.at);
    return;
  }
  auto& s = snapshots_.at(t.snapshot);
  s.is_writing = false;
  if (ok) return;
  leave_disk(s);
  leave(t.snapshot, s, tier::disk);
  if (s.is_nowhere()) drop(t.snapshot);
}

void prefix_index::restore(const stored& e) {
  const auto refuse = [&] { removes_.push_back(e.entry); };
  const auto parent = restored_.find(e.parent);
  const auto block = static_cast<size_t>(pool_.block_tokens());
  if (e.parent != entry_id{} && parent == restored_.end()) return refuse();
  if (e.is_snapshot ? e.symbols.size() >= block : e.symbols.size() != block) return refuse();
  node& above = e.parent == entry_id{} ? root(e.salt) : *parent->second;
  const bool is_sound = above.n_tokens + static_cast<int64_t>(e.symbols.size()) == e.n_tokens && e.n_tokens > 0;
  const int64_t n_bytes = bytes_on_disk(above, e.symbols.size(), e.is_snapshot);
  gone(above);
  if (!is_sound || disk_bytes_ + n_bytes > limits_.disk_bytes) return refuse();
  const auto settle = [&](place& p) {
    p.entry = e.entry;
    p.entry_bytes = n_bytes;
    disk_bytes_ += n_bytes;
  };
  if (e.is_snapshot) {
    const auto known = above.tails.find(std::span(e.symbols));
    if (known != above.tails.end()) return refuse(); // made again meanwhile
    const snapshot_id id{++last_snapshot_};
    auto& s = snapshots_[id];
    s.at = &above;
    s.tail = &above.tails.emplace(e.symbols, id).first->first;
    s.n_tokens = e.n_tokens;
    s.floor = e.floor;
    settle(s);
    enter(id, s, tier::disk);
    touch(id, s);
    return;
  }
  ++now_; // no two leaves of one age: eviction has an order that a replay repeats
  const auto child = above.children.find(std::span(e.symbols));
  node& n = child == above.children.end() ? add_child(above, e.symbols) : *child->second;
  if (n.is_in(tier::disk)) return refuse();
  settle(n);
  enter(n, tier::disk);
  restored_[e.entry] = &n;
}

} // namespace troupe
