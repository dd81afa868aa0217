// The tree by content: finding, adding, forgetting. Where things are is prefix_places.cpp's. Worth is GreedyDual's: a
// snapshot is worth what the last evicted one was worth when it was touched, plus what it saves: the tokens that would
// have to be computed again without it; on disk for each of its bytes, and times its uses, since what is short would
// else be the first to go while it is used the most.
#include "actors/prefix_index.h"

#include "storage/check.h"

#include <xxhash.h>

#include <algorithm>

namespace troupe {

namespace {

constexpr int32_t most_uses = 16;       // that count: what was in use once leaves some time
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

prefix_index::prefix_index(prefix_limits limits, block_pool& pool) : limits_(std::move(limits)), pool_(pool) {
  TROUPE_CHECK(limits_.n_slots >= 0 && limits_.n_slots <= INT32_MAX, "slot numbers are 32-bit");
  for (int64_t i = limits_.n_slots; i-- > 0;) free_slots_.push_back(static_cast<int32_t>(i));
}
prefix_index::~prefix_index() = default; // the pool goes with it

prefix_index::node& prefix_index::root(std::string_view salt) {
  const auto found = roots_.find(salt);
  if (found != roots_.end()) return *found->second;
  auto fresh = std::make_unique<node>();
  const std::string key = limits_.fingerprint + '\0' + std::string(salt);
  fresh->hash = XXH3_64bits(key.data(), key.size());
  const auto at = roots_.emplace(salt, std::move(fresh)).first;
  at->second->salt = at->first;
  return *at->second;
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

// The longest snapshot of the first n_nodes of the path that `usable` accepts.
template <class Usable>
const snapshot_id* prefix_index::best(const path& p, size_t n_nodes, std::span<const symbol> prompt, int64_t floor,
                                      Usable usable) const {
  for (size_t i = n_nodes; i-- > 0;) {
    const node& n = *p.nodes[i];
    std::span<const symbol> rest = prompt.subspan(static_cast<size_t>(n.n_tokens));
    rest = rest.first(std::min(rest.size(), static_cast<size_t>(pool_.block_tokens()) - 1));
    for (auto at = longest_prefix(n.tails, rest); at != n.tails.end();) {
      const auto& s = snapshots_.at(at->second);
      if (s.n_tokens > 0 && (s.n_tokens <= floor || s.floor <= floor) && usable(s)) return &at->second;
      if (at->first.empty()) break;
      at = longest_prefix(n.tails, rest.first(at->first.size() - 1));
    }
  }
  return nullptr;
}

const snapshot_id* prefix_index::best_at_hand(const path& p, std::span<const symbol> prompt, int64_t floor) const {
  size_t n = p.nodes.empty() ? 0 : 1;
  while (n < p.nodes.size() && p.nodes[n]->is_usable()) ++n;
  return best(p, n, prompt, floor, [](const snapshot& s) { return s.is_usable(); });
}

const snapshot_id* prefix_index::best_anywhere(const path& p, std::span<const symbol> prompt, int64_t floor) const {
  size_t n = p.nodes.empty() ? 0 : 1;
  while (n < p.nodes.size() && p.nodes[n]->is_reachable()) ++n;
  return best(p, n, prompt, floor, [](const snapshot& s) { return s.is_reachable(); });
}

int64_t prefix_index::common_beyond(const node& n, std::span<const symbol> rest) {
  return static_cast<int64_t>(std::max(longest_common(n.children, rest), longest_common(n.tails, rest)));
}

int64_t prefix_index::longest(std::string_view salt, std::span<const symbol> prompt, int64_t floor) const {
  if (prompt.empty()) return 0;
  const auto usable = prompt.first(prompt.size() - 1);
  const auto* found = best_at_hand(walk(salt, usable), usable, floor);
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
  const auto* found = best_at_hand(p, usable, floor);
  if (!found) return out;
  const snapshot_id id = *found;
  auto& s = snapshots_.at(id);
  out.n_tokens = s.n_tokens;
  out.floor = s.floor;
  out.snapshot = id;
  out.partial = s.partial;
  out.has_partial = !s.tail->empty();
  ++now_;
  for (node* n : p.nodes) {
    if (n->n_tokens > s.n_tokens) break;
    use(*n);
    if (!n->parent) continue;
    if (n->is_in(tier::device))
      out.blocks.push_back(n->block);
    else
      ++out.n_in_memory;
  }
  touch(id, s);
  if (limits_.disk_bytes > 0 && !s.is_in(tier::disk)) touch_on_disk(p, usable, floor);
  pinned_.insert(id);
  pin_path(*s.at);
  return out;
}

prefix_index::node& prefix_index::add_child(node& parent, std::span<const symbol> key) {
  const auto child = parent.children.emplace(content(key.begin(), key.end()), std::make_unique<node>()).first;
  node& n = *child->second;
  n.parent = &parent;
  n.key = &child->first;
  n.hash = chained(parent.hash, key);
  n.n_tokens = parent.n_tokens + static_cast<int64_t>(key.size());
  n.used = now_;
  ++n_nodes_;
  evicted_.erase(n.hash);
  return n;
}

void prefix_index::commit(std::string_view salt, std::span<const symbol> symbols, std::span<const block_id> blocks) {
  const auto block = static_cast<size_t>(pool_.block_tokens());
  if (symbols.size() < block) return;
  root(salt);
  path p = walk(salt, symbols);
  ++now_;
  const auto block_of = [&](const node& n) { return blocks[static_cast<size_t>(n.parent->n_tokens) / block]; };
  for (node* n : p.nodes) // what had left the device is there again
    if (n->parent && !n->is_in(tier::device)) put_on_device(*n, block_of(*n));
  for (node* at = p.nodes.back(); p.rest.size() >= block; p.rest = p.rest.subspan(block)) {
    at = &add_child(*at, p.rest.first(block));
    put_on_device(*at, block_of(*at));
  }
}

std::optional<snapshot_id> prefix_index::add_snapshot(std::string_view salt, std::span<const symbol> symbols,
                                                      std::span<const block_id> blocks, int64_t floor) {
  if (symbols.empty() || limits_.max_snapshots <= 0) return std::nullopt;
  commit(salt, symbols, blocks);
  root(salt);
  floor = std::min(floor, static_cast<int64_t>(symbols.size()));
  path p = walk(salt, symbols);
  node& n = *p.nodes.back();
  snapshot_id id{};
  if (const auto known = n.tails.find(p.rest); known != n.tails.end()) {
    id = known->second;
    auto& s = snapshots_.at(id);
    touch(id, s);
    if (s.floor < floor || (s.floor == floor && s.is_in_memory())) return std::nullopt;
    if (s.floor > floor) { // the new one holds more rows of the late layers
      drop(id);
      id = {};
    }
  }
  if (n_in_memory_ >= limits_.max_snapshots && !evict_snapshot()) return std::nullopt;
  if (id == snapshot_id{})
    id = snapshot_id{++last_snapshot_};
  else
    std::erase(dropped_, id); // it left host memory in this very step
  const auto at = n.tails.emplace(content(p.rest.begin(), p.rest.end()), id).first;
  auto& s = snapshots_[id];
  s.at = &n;
  s.tail = &at->first;
  s.n_tokens = static_cast<int64_t>(symbols.size());
  s.floor = floor;
  if (!p.rest.empty()) {
    s.partial = blocks[static_cast<size_t>(n.n_tokens / pool_.block_tokens())];
    pool_.keep(*s.partial);
  }
  evicted_.erase(key_of(s));
  ++n_in_memory_;
  enter(id, s, tier::device);
  touch(id, s);
  pinned_.insert(id);
  return id;
}

uint64_t prefix_index::key_of(const snapshot& s) { return chained(s.at->hash, *s.tail) + 1; }

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

double prefix_index::saved_by(const snapshot& s, size_t scale, int32_t n_uses) const {
  return scale == scale_of(tier::disk) ? n_uses * saved_per_byte(cost(s)) : cost(s);
}

void prefix_index::rate(snapshot_id id, snapshot& s, size_t scale, const rating& now) {
  for (const auto t : {tier::device, tier::memory, tier::disk})
    if (scale_of(t) == scale && s.is_in(t)) {
      order_[static_cast<size_t>(t)].erase({s.ratings[scale], id});
      order_[static_cast<size_t>(t)].emplace(now, id);
    }
  s.ratings[scale] = now;
}

void prefix_index::touch(snapshot_id id, snapshot& s, size_t scale) {
  const int32_t n_uses = std::min(s.ratings[scale].n_uses + 1, most_uses);
  rate(id, s, scale, {clock_[scale] + saved_by(s, scale, n_uses), clock_[scale], now_, n_uses});
}

// What memory found is not on disk: what stands in for it there is as much in use.
void prefix_index::touch_on_disk(const path& p, std::span<const symbol> prompt, int64_t floor) {
  const auto* id = best(p, p.nodes.size(), prompt, floor, [](const snapshot& s) { return s.is_in(tier::disk); });
  if (id) touch(*id, snapshots_.at(*id), scale_of(tier::disk));
}

void prefix_index::remember(uint64_t key) {
  if (!evicted_.insert(key).second) return;
  evicted_order_.push_back(key);
  if (evicted_order_.size() <= max_remembered) return;
  evicted_.erase(evicted_order_.front());
  evicted_order_.pop_front();
}

void prefix_index::unpin_all() {
  pinned_.clear();
  ++step_;
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
  const auto* anywhere = best_anywhere(p, usable, 0);
  out.n_on_disk = anywhere ? snapshots_.at(*anywhere).n_tokens : 0;
  if (out.n_cached == static_cast<int64_t>(usable.size())) return out;
  if (out.n_on_disk > out.n_cached) {
    out.what = missing::disk;
    return out;
  }
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
