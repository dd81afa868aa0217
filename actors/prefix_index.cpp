// Finding, adding and evicting. Eviction weighs by GreedyDual: a snapshot is worth what the last evicted one was worth
// when it was touched, plus the tokens that would have to be computed again without it.
#include "actors/prefix_index.h"

#include "storage/check.h"

#include <xxhash.h>

#include <algorithm>

namespace troupe {

namespace {

constexpr size_t max_remembered = 4096; // evicted keys, for explain()
constexpr symbol image_bit = symbol{1} << 63;

uint64_t chained(uint64_t seed, std::span<const symbol> s) {
  return XXH3_64bits_withSeed(s.data(), s.size_bytes(), seed);
}

size_t common(std::span<const symbol> a, std::span<const symbol> b) {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin()).first -
                             a.begin());
}

// The longest key that `rest` begins with. Keys that begin `rest` sort before it, the longest one last; what sorts
// between them differs from `rest` later than the key ends, which says where to look next.
template <class Map> typename Map::const_iterator longest_prefix(const Map& map, std::span<const symbol> rest) {
  for (auto at = map.upper_bound(rest); at != map.begin(); at = map.upper_bound(rest)) {
    --at;
    const size_t n = common(at->first, rest);
    if (n == at->first.size()) return at;
    rest = rest.first(n);
  }
  return map.end();
}

template <class Map> size_t longest_common(const Map& map, std::span<const symbol> rest) {
  const auto at = map.lower_bound(rest);
  size_t n = at == map.end() ? 0 : common(at->first, rest);
  if (at != map.begin()) n = std::max(n, common(std::prev(at)->first, rest));
  return n;
}

} // namespace

void append_symbols(std::vector<symbol>& to, std::span<const int32_t> tokens, int64_t start,
                    std::span<const image_place> images) {
  const size_t first = to.size();
  for (const auto t : tokens) to.push_back(static_cast<uint32_t>(t));
  const int64_t end = start + static_cast<int64_t>(tokens.size());
  for (const auto& i : images) {
    const int64_t n = int64_t{i.grid_h} * (i.grid_w + 1) + 2;
    for (int64_t p = std::max(i.start, start); p < std::min(i.start + n, end); ++p) {
      const uint64_t what[] = {i.hash, static_cast<uint64_t>(i.grid_h), static_cast<uint64_t>(i.grid_w),
                               static_cast<uint64_t>(p - i.start)};
      to[first + static_cast<size_t>(p - start)] = image_bit | XXH3_64bits(what, sizeof what);
    }
  }
}

prefix_index::prefix_index(prefix_limits limits, block_pool& pool) : limits_(std::move(limits)), pool_(pool) {}
prefix_index::~prefix_index() = default; // the pool goes with it

prefix_index::node& prefix_index::root(std::string_view salt) {
  const auto found = roots_.find(salt);
  if (found != roots_.end()) return *found->second;
  auto fresh = std::make_unique<node>();
  const std::string key = limits_.fingerprint + '\0' + std::string(salt);
  fresh->hash = XXH3_64bits(key.data(), key.size());
  return *roots_.emplace(salt, std::move(fresh)).first->second;
}

prefix_index::path prefix_index::walk(std::string_view salt, std::span<const symbol> symbols) const {
  path p{{}, symbols};
  const auto found = roots_.find(salt);
  if (found == roots_.end()) return p;
  const auto block = static_cast<size_t>(pool_.block_tokens());
  for (node* at = found->second.get();;) {
    p.nodes.push_back(at);
    if (p.rest.size() < block) return p;
    const auto child = at->children.find(p.rest.first(block));
    if (child == at->children.end()) return p;
    at = child->second.get();
    p.rest = p.rest.subspan(block);
  }
}

const snapshot_id* prefix_index::best(const path& p, std::span<const symbol> prompt, int64_t floor) const {
  for (size_t i = p.nodes.size(); i-- > 0;) {
    const node& n = *p.nodes[i];
    std::span<const symbol> rest = prompt.subspan(static_cast<size_t>(n.n_tokens));
    if (i + 1 < p.nodes.size()) rest = rest.first(static_cast<size_t>(pool_.block_tokens()) - 1);
    for (auto at = longest_prefix(n.tails, rest); at != n.tails.end();) {
      const auto& s = snapshots_.at(at->second);
      if (s.n_tokens > 0 && (s.n_tokens <= floor || s.floor <= floor)) return &at->second;
      if (at->first.empty()) break;
      at = longest_prefix(n.tails, rest.first(at->first.size() - 1));
    }
  }
  return nullptr;
}

int64_t prefix_index::common_beyond(const node& n, std::span<const symbol> rest) {
  return static_cast<int64_t>(std::max(longest_common(n.children, rest), longest_common(n.tails, rest)));
}

int64_t prefix_index::longest(std::string_view salt, std::span<const symbol> prompt, int64_t floor) const {
  if (prompt.empty()) return 0;
  const auto usable = prompt.first(prompt.size() - 1);
  const auto* found = best(walk(salt, usable), usable, floor);
  return found ? snapshots_.at(*found).n_tokens : 0;
}

prefix_index::hit prefix_index::find(std::string_view salt, std::span<const symbol> prompt, int64_t floor) {
  hit out;
  if (prompt.empty()) return out;
  const auto usable = prompt.first(prompt.size() - 1); // at least one token is computed, for its logits
  const path p = walk(salt, usable);
  if (p.nodes.empty()) return out;
  const node& last = *p.nodes.back();
  out.n_common = last.n_tokens + common_beyond(last, prompt.subspan(static_cast<size_t>(last.n_tokens)));
  const auto* found = best(p, usable, floor);
  if (!found) return out;
  const snapshot_id id = *found;
  auto& s = snapshots_.at(id);
  out.n_tokens = s.n_tokens;
  out.floor = s.floor;
  out.snapshot = id;
  out.partial = s.partial;
  ++now_;
  for (node* n : p.nodes) {
    if (n->n_tokens > s.n_tokens) break;
    n->used = now_; // none of them is a leaf: a child or the snapshot hangs on each
    if (n->parent) out.blocks.push_back(n->block);
  }
  touch(id, s);
  pinned_.insert(id);
  return out;
}

void prefix_index::commit(std::string_view salt, std::span<const symbol> symbols, std::span<const block_id> blocks) {
  const auto block = static_cast<size_t>(pool_.block_tokens());
  if (symbols.size() < block) return;
  root(salt);
  path p = walk(salt, symbols);
  ++now_;
  for (node* at = p.nodes.back(); p.rest.size() >= block; p.rest = p.rest.subspan(block)) {
    const auto key = p.rest.first(block);
    leaves_.erase({at->used, at});
    const auto child = at->children.emplace(content(key.begin(), key.end()), std::make_unique<node>()).first;
    node& n = *child->second;
    n.parent = at;
    n.key = &child->first;
    n.hash = chained(at->hash, key);
    n.n_tokens = at->n_tokens + static_cast<int64_t>(block);
    n.block = blocks[static_cast<size_t>(at->n_tokens) / block];
    n.used = now_;
    pool_.keep(n.block);
    ++n_nodes_;
    evicted_.erase(n.hash);
    at = &n;
    leaf_changed(n);
  }
}

std::optional<snapshot_id> prefix_index::add_snapshot(std::string_view salt, std::span<const symbol> symbols,
                                                      std::span<const block_id> blocks, int64_t floor) {
  if (symbols.empty() || limits_.max_snapshots <= 0) return std::nullopt;
  commit(salt, symbols, blocks);
  root(salt);
  const auto known = [&](const node& n, std::span<const symbol> rest) { return n.tails.find(rest); };
  path p = walk(salt, symbols);
  if (const auto at = known(*p.nodes.back(), p.rest); at != p.nodes.back()->tails.end()) {
    auto& s = snapshots_.at(at->second);
    touch(at->second, s);
    if (s.floor <= floor) return std::nullopt;
    drop(at->second); // the new one holds more rows of the late layers
  }
  if (n_snapshots() >= limits_.max_snapshots && !evict_snapshot()) return std::nullopt;
  node& n = *p.nodes.back();
  const snapshot_id id{++last_snapshot_};
  leaves_.erase({n.used, &n});
  const auto at = n.tails.emplace(content(p.rest.begin(), p.rest.end()), id).first;
  auto& s = snapshots_[id];
  s.at = &n;
  s.tail = &at->first;
  s.n_tokens = static_cast<int64_t>(symbols.size());
  s.floor = std::min(floor, s.n_tokens);
  if (!p.rest.empty()) {
    s.partial = blocks[static_cast<size_t>(n.n_tokens / pool_.block_tokens())];
    pool_.keep(*s.partial);
  }
  evicted_.erase(chained(n.hash, p.rest) + 1);
  touch(id, s);
  pinned_.insert(id);
  return id;
}

double prefix_index::cost(const snapshot& s) const {
  std::span<const symbol> rest = *s.tail;
  int64_t below = 0;
  if (!rest.empty()) {
    const auto at = longest_prefix(s.at->tails, rest.first(rest.size() - 1));
    if (at != s.at->tails.end()) below = snapshots_.at(at->second).n_tokens;
  }
  for (const node* n = s.at; below == 0 && n->parent; n = n->parent) {
    const auto at = longest_prefix(n->parent->tails, std::span<const symbol>(*n->key));
    if (at != n->parent->tails.end()) below = snapshots_.at(at->second).n_tokens;
  }
  return static_cast<double>(s.n_tokens - below);
}

void prefix_index::touch(snapshot_id id, snapshot& s) {
  order_.erase({s.worth, id});
  s.clock = clock_;
  s.worth = clock_ + cost(s);
  order_.emplace(s.worth, id);
}

bool prefix_index::evict_snapshot() {
  for (auto at = order_.begin(); at != order_.end();) {
    const snapshot_id id = at->second;
    if (pinned_.count(id)) {
      ++at;
      continue;
    }
    auto& s = snapshots_.at(id);
    const double worth = s.clock + cost(s);
    if (worth > s.worth) { // one below it has left since
      order_.erase(at);
      s.worth = worth;
      order_.emplace(worth, id);
      at = order_.begin();
      continue;
    }
    clock_ = std::max(clock_, s.worth);
    remember(chained(s.at->hash, *s.tail) + 1);
    drop(id);
    return true;
  }
  return false;
}

void prefix_index::drop(snapshot_id id) {
  const auto found = snapshots_.find(id);
  auto& s = found->second;
  node& n = *s.at;
  order_.erase({s.worth, id});
  pinned_.erase(id);
  if (s.partial) pool_.let_go(*s.partial);
  n.tails.erase(*s.tail);
  snapshots_.erase(found);
  dropped_.push_back(id);
  leaf_changed(n);
}

void prefix_index::remember(uint64_t key) {
  if (!evicted_.insert(key).second) return;
  evicted_order_.push_back(key);
  if (evicted_order_.size() <= max_remembered) return;
  evicted_.erase(evicted_order_.front());
  evicted_order_.pop_front();
}

void prefix_index::leaf_changed(node& n) {
  if (!n.is_leaf()) return;
  if (n.parent)
    leaves_.emplace(n.used, &n);
  else
    has_empty_root_ = true;
}

void prefix_index::unpin_all() {
  pinned_.clear();
  if (std::exchange(has_empty_root_, false)) // salts come and go
    std::erase_if(roots_, [](const auto& r) { return r.second->is_leaf(); });
}

void prefix_index::surrender(block_id b, int64_t n_tokens) {
  std::vector<snapshot_id> gone;
  for (const auto& [id, s] : snapshots_)
    if (s.partial == b && s.n_tokens >= n_tokens) gone.push_back(id);
  std::sort(gone.begin(), gone.end());
  for (const auto id : gone) drop(id);
}

// Everything below `n`, and its own block; the node itself is left to its parent.
void prefix_index::clear_tree(node& n) {
  while (!n.tails.empty()) drop(n.tails.begin()->second);
  for (auto& [key, child] : n.children) clear_tree(*child);
  n.children.clear();
  leaves_.erase({n.used, &n});
  if (!n.parent) return;
  pool_.let_go(n.block);
  --n_nodes_;
}

void prefix_index::remove(node& n) {
  node& parent = *n.parent;
  clear_tree(n);
  parent.children.erase(parent.children.find(*n.key));
  leaf_changed(parent);
}

void prefix_index::forget(std::string_view salt, std::span<const symbol> symbols, int64_t n_tokens) {
  const path p = walk(salt, symbols);
  if (p.nodes.empty()) return;
  size_t i = 0;
  while (i + 1 < p.nodes.size() && p.nodes[i + 1]->n_tokens <= n_tokens) ++i;
  node& last = *p.nodes[i]; // sound as a whole
  const auto rest = symbols.subspan(static_cast<size_t>(last.n_tokens));
  if (i + 1 < p.nodes.size()) remove(*p.nodes[i + 1]);
  std::vector<snapshot_id> gone;
  for (const auto& [tail, id] : last.tails) {
    const auto n_same = static_cast<int64_t>(common(tail, rest));
    if (n_same == static_cast<int64_t>(tail.size()) && last.n_tokens + n_same > n_tokens) gone.push_back(id);
  }
  for (const auto id : gone) drop(id);
}

prefix_index::node* prefix_index::oldest_idle_leaf() const {
  for (const auto& [used, n] : leaves_)
    if (!pool_.is_held(n->block)) return n;
  return nullptr;
}

bool prefix_index::free_blocks(int64_t n_blocks) {
  while (pool_.n_free() < n_blocks) {
    node* leaf = oldest_idle_leaf();
    if (!leaf) {
      if (evict_snapshot()) continue;
      if (leaves_.empty()) return false;
      leaf = leaves_.begin()->second; // held by a sequence: what it stands on may be free to go
    }
    remember(leaf->hash);
    remove(*leaf);
  }
  return true;
}

prefix_index::miss prefix_index::explain(std::string_view salt, std::span<const symbol> prompt) const {
  miss out;
  if (prompt.empty()) return out;
  const auto usable = prompt.first(prompt.size() - 1);
  const path p = walk(salt, usable);
  out.n_cached = longest(salt, prompt);
  if (!p.nodes.empty()) {
    const node& last = *p.nodes.back();
    out.first_differing = last.n_tokens + common_beyond(last, prompt.subspan(static_cast<size_t>(last.n_tokens)));
  }
  if (out.n_cached == static_cast<int64_t>(usable.size())) return out;
  for (const auto& [other, tree] : roots_)
    if (other != salt && longest(other, prompt) > out.n_cached) {
      out.what = missing::salt;
      return out;
    }
  out.what = out.first_differing > out.n_cached ? missing::snapshot : missing::block;
  if (!p.nodes.empty()) {
    const auto block = static_cast<size_t>(pool_.block_tokens());
    uint64_t key = p.nodes.back()->hash;
    bool was_here = p.rest.size() >= block && evicted_.count(chained(key, p.rest.first(block))) > 0;
    for (size_t n = 0; n <= std::min(p.rest.size(), block - 1); ++n)
      was_here = was_here || evicted_.count(chained(key, p.rest.first(n)) + 1) > 0;
    if (was_here) out.what = missing::evicted;
  }
  return out;
}

} // namespace troupe
