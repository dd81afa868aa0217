// Where blocks and snapshots are: on the device, in host memory, on disk; who has to move when room is short. What goes
// leaves from the leaves of its tier: of those the ones used last the longest ago, or a snapshot, the one worth least.
#include "actors/prefix_index.h"

#include "storage/check.h"

#include <algorithm>

namespace troupe {

namespace {

constexpr size_t index_of(tier t) { return static_cast<size_t>(t); }

} // namespace

void prefix_index::count_below(node& n, tier t, int32_t change) {
  auto& below = n.n_below[index_of(t)];
  const bool was_leaf = below == 0;
  below += change;
  if (!n.is_in(t) || was_leaf == (below == 0)) return;
  if (was_leaf)
    leaves_[index_of(t)].erase({n.used, &n});
  else
    leaves_[index_of(t)].emplace(n.used, &n);
}

void prefix_index::enter(node& n, tier t) {
  n.in[index_of(t)] = true;
  if (n.n_below[index_of(t)] == 0) leaves_[index_of(t)].emplace(n.used, &n);
  count_below(*n.parent, t, 1);
}

void prefix_index::leave(node& n, tier t) {
  leaves_[index_of(t)].erase({n.used, &n});
  n.in[index_of(t)] = false;
  count_below(*n.parent, t, -1);
}

void prefix_index::enter(snapshot_id id, snapshot& s, tier t) {
  s.in[index_of(t)] = true;
  order_[index_of(t)].emplace(s.rated(t), id);
  count_below(*s.at, t, 1);
}

void prefix_index::leave(snapshot_id id, snapshot& s, tier t) {
  s.in[index_of(t)] = false;
  order_[index_of(t)].erase({s.rated(t), id});
  count_below(*s.at, t, -1);
}

void prefix_index::use(node& n) {
  if (n.used == now_) return;
  const auto before = std::exchange(n.used, now_);
  for (auto& leaves : leaves_)
    if (leaves.erase({before, &n}) > 0) leaves.emplace(now_, &n);
}

void prefix_index::pin_path(node& last) {
  for (node* n = &last; n; n = n->parent) n->pinned = step_;
}

void prefix_index::put_on_device(node& n, block_id b) {
  pool_.keep(b);
  n.block = b;
  enter(n, tier::device);
  if (n.is_in(tier::memory)) release(n, tier::memory);
}

void prefix_index::free_slot(place& p) {
  if (p.is_loading) { // the bytes are on their way: the slot is free when they are there
    loads_.at(p.entry).is_orphan = true;
    p.is_loading = false;
  } else if (p.slot >= 0) {
    free_slots_.push_back(p.slot);
  }
  p.slot = -1;
}

void prefix_index::release(node& n, tier t) {
  if (t == tier::device) pool_.let_go(n.block);
  if (t == tier::memory) free_slot(n);
  if (t == tier::disk) leave_disk(n);
  leave(n, t);
}

void prefix_index::leave_disk(place& p) {
  removes_.push_back(p.entry);
  disk_bytes_ -= p.entry_bytes;
  if (p.is_writing) stores_.at(p.entry).is_orphan = true;
  p.is_writing = false;
  p.entry = {};
}

void prefix_index::release_memory(snapshot_id id, snapshot& s) {
  const bool is_there = !s.is_loading;
  if (s.partial) pool_.let_go(*std::exchange(s.partial, std::nullopt));
  free_slot(s);
  for (const auto t : {tier::device, tier::memory})
    if (s.is_in(t)) leave(id, s, t);
  --n_in_memory_;
  if (is_there) dropped_.push_back(id);
}

void prefix_index::drop(snapshot_id id) {
  const auto found = snapshots_.find(id);
  auto& s = found->second;
  node& n = *s.at;
  if (s.is_in_memory()) release_memory(id, s);
  if (s.is_in(tier::disk)) {
    leave_disk(s);
    leave(id, s, tier::disk);
  }
  pinned_.erase(id);
  if (s.n_names > 0) {
    name_path(s, -s.n_names);
    std::erase_if(names_, [id](const auto& named) { return named.second == id; });
  }
  n.tails.erase(*s.tail);
  snapshots_.erase(found);
  gone(n);
}

void prefix_index::gone(node& n) {
  if (!n.parent && n.is_leaf()) has_empty_root_ = true;
}

// Everything below `n`, and what it holds itself; the node is left to its parent.
void prefix_index::clear_tree(node& n) {
  while (!n.tails.empty()) drop(n.tails.begin()->second);
  for (auto& [key, child] : n.children) clear_tree(*child);
  n.children.clear();
  for (const auto t : {tier::device, tier::memory, tier::disk})
    if (n.is_in(t)) release(n, t);
  if (n.parent) --n_nodes_;
}

void prefix_index::remove(node& n) {
  node& parent = *n.parent;
  clear_tree(n);
  parent.children.erase(parent.children.find(*n.key));
  gone(parent);
}

// The snapshot of the tier that is worth least and can go: to a lower tier, or out of memory.
std::optional<snapshot_id> prefix_index::lowest(tier t, bool leaves_memory) {
  auto& order = order_[index_of(t)];
  for (auto at = order.begin(); at != order.end();) {
    const snapshot_id id = at->second;
    auto& s = snapshots_.at(id);
    const bool is_named = s.n_names > 0 && (t == tier::disk || (leaves_memory && !s.is_safe_on_disk()));
    if (is_named || pinned_.count(id) || s.is_loading || (t == tier::disk && s.is_writing)) {
      ++at;
      continue;
    }
    auto now = s.rated(t);
    now.worth = now.clock + saved_by(s, scale_of(t), now.n_uses);
    if (now.worth <= s.rated(t).worth) return id;
    rate(id, s, scale_of(t), now); // one below it has left since
    at = order.begin();
  }
  return std::nullopt;
}

prefix_index::node* prefix_index::oldest_leaf(tier t) const {
  for (const auto& [used, n] : leaves_[index_of(t)]) {
    if (is_pinned(*n) || n->is_loading) continue;
    if (n->n_names > 0 && (t == tier::disk || (t == tier::memory && !n->is_safe_on_disk()))) continue;
    if (t == tier::device ? !pool_.is_held(n->block) : t == tier::memory || !n->is_writing) return n;
  }
  return nullptr;
}

// Out of host memory: what is on disk stays there.
void prefix_index::evict(snapshot_id id) {
  auto& s = snapshots_.at(id);
  clock_[0] = std::max(clock_[0], s.ratings[0].worth);
  if (s.is_in(tier::disk)) return release_memory(id, s);
  remember(key_of(s));
  drop(id);
}

bool prefix_index::evict_snapshot() {
  const auto hot = lowest(tier::device, true), warm = lowest(tier::memory, true);
  if (!hot && !warm) return false;
  evict(!warm || (hot && snapshots_.at(*hot).ratings[0] < snapshots_.at(*warm).ratings[0]) ? *hot : *warm);
  return true;
}

bool prefix_index::evict_from_memory() {
  if (node* leaf = oldest_leaf(tier::memory)) {
    if (leaf->is_in(tier::disk)) {
      release(*leaf, tier::memory);
    } else {
      remember(leaf->hash);
      remove(*leaf);
    }
    return true;
  }
  const auto id = lowest(tier::memory, true);
  if (id) evict(*id);
  return id.has_value();
}

// -1: all are in use.
int32_t prefix_index::take_slot() {
  while (free_slots_.empty())
    if (limits_.n_slots == 0 || !evict_from_memory()) return -1;
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

// A leaf of the device goes to a slot when something builds on it and there is room, or leaves.
void prefix_index::demote(node& n) {
  int32_t slot = n.is_leaf() ? -1 : take_slot();
  if (slot >= 0 && n.is_leaf()) { // what was below it made room
    free_slots_.push_back(slot);
    slot = -1;
  }
  if (slot >= 0) {
    moves_.push_back({block_move::kind::out, static_cast<int32_t>(n.block), slot});
    n.slot = slot;
    enter(n, tier::memory);
    release(n, tier::device);
  } else if (n.is_in(tier::disk) && !n.is_leaf()) {
    release(n, tier::device);
  } else {
    remember(n.hash);
    remove(n);
  }
}

// The snapshot worth least no longer keeps its path on the device.
bool prefix_index::cool_one() {
  const auto id = lowest(tier::device, false);
  if (!id) return false;
  auto& s = snapshots_.at(*id);
  const int32_t slot = s.partial ? take_slot() : -1;
  if (limits_.n_slots == 0 || (s.partial && slot < 0)) {
    evict(*id);
    return true;
  }
  clock_[0] = std::max(clock_[0], s.ratings[0].worth);
  if (s.partial) {
    moves_.push_back({block_move::kind::out, static_cast<int32_t>(*s.partial), slot});
    pool_.let_go(*std::exchange(s.partial, std::nullopt));
    s.slot = slot;
  }
  enter(*id, s, tier::memory);
  leave(*id, s, tier::device);
  return true;
}

bool prefix_index::free_blocks(int64_t n_blocks) {
  while (pool_.n_free() < n_blocks) {
    node* leaf = oldest_leaf(tier::device);
    if (!leaf) {
      if (cool_one()) continue;
      for (const auto& [used, n] : leaves_[index_of(tier::device)])
        if (!is_pinned(*n)) {
          leaf = n; // held by a sequence: what it stands on may be free to go
          break;
        }
      if (!leaf) return false;
    }
    demote(*leaf);
  }
  return true;
}

void prefix_index::bring_in(const hit& h, std::span<const block_id> fresh) {
  auto& s = snapshots_.at(h.snapshot);
  std::vector<node*> coming;
  for (node* n = s.at; n->parent && !n->is_in(tier::device); n = n->parent) coming.push_back(n);
  TROUPE_CHECK(static_cast<int64_t>(coming.size()) == h.n_in_memory, "a hit's path stays where it was found");
  size_t at = 0;
  for (auto n = coming.rbegin(); n != coming.rend(); ++n, ++at) {
    moves_.push_back({block_move::kind::in, (*n)->slot, static_cast<int32_t>(fresh[at])});
    put_on_device(**n, fresh[at]);
  }
  if (h.has_partial) {
    const auto to = static_cast<int32_t>(fresh[at]);
    if (s.partial) {
      moves_.push_back({block_move::kind::copy, static_cast<int32_t>(*s.partial), to});
    } else {
      moves_.push_back({block_move::kind::in, s.slot, to});
      free_slot(s);
      s.partial = fresh[at];
      pool_.keep(*s.partial);
    }
  }
  if (s.is_in(tier::device)) return;
  enter(h.snapshot, s, tier::device);
  leave(h.snapshot, s, tier::memory);
}

} // namespace troupe
