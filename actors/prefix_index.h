// Which prefixes are cached: a tree of full KV blocks by their content, with snapshots of window state hanging on it.
// Knows no CAF and no bytes: it deals in block and snapshot numbers.                          Design section 5.
#pragma once

#include "actors/block_pool.h"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace troupe {

// What stands at a position: a token id, or for a position of an image what its pixels and place make of it.
using symbol = uint64_t;
// The symbols of `tokens`, which begin at `start`.
void append_symbols(std::vector<symbol>& to, std::span<const int32_t> tokens, int64_t start,
                    std::span<const image_place> images);

struct prefix_limits {
  std::string fingerprint; // of all that changes what is cached: model, overlays, template, prefill mode
  int64_t max_snapshots = 0;
};

// Contents are stored and compared, so no hash decides whether two prefixes are equal. The tree keeps a reference to
// each block it names. Everything that leaves is let go of in the pool and listed in take_dropped().
class prefix_index {
public:
  prefix_index(prefix_limits, block_pool&);
  ~prefix_index();
  prefix_index(prefix_index&&) = delete;

  struct hit {
    int64_t n_tokens = 0; // 0: a miss
    int64_t floor = 0;
    snapshot_id snapshot{};
    std::vector<block_id> blocks;    // full ones
    std::optional<block_id> partial; // the rest, to be copied before it is written
    int64_t n_common = 0;            // of the prompt, with anything in the tree: where a fork begins
  };
  // The longest usable snapshot at or below min(common prefix, prompt.size() - 1). One is usable when it lies at or
  // below `floor`, or holds the late layers' rows from `floor` on (prefill mode tail; 0 in exact mode). It cannot leave
  // before unpin_all().
  hit find(std::string_view salt, std::span<const symbol> prompt, int64_t floor = 0);
  // The same question without touching anything.
  int64_t longest(std::string_view salt, std::span<const symbol> prompt, int64_t floor = 0) const;

  // Full blocks of a sequence that are not in the tree yet. `blocks`: the sequence's table.
  void commit(std::string_view salt, std::span<const symbol> symbols, std::span<const block_id> blocks);
  // A snapshot of all of `symbols`, to be saved in this step. nullopt: there is one, or no room (all are in use).
  std::optional<snapshot_id> add_snapshot(std::string_view salt, std::span<const symbol> symbols,
                                          std::span<const block_id> blocks, int64_t floor);
  // Forgets whatever lies beyond n_tokens on this path, with all that grew from it.
  void forget(std::string_view salt, std::span<const symbol> symbols, int64_t n_tokens);
  // Lets go of cached prefixes, the cheapest to compute again first, until n_blocks are free. False: not enough.
  bool free_blocks(int64_t n_blocks);

  // The block's content beyond n_tokens is about to be written over: what stands on it leaves.
  void surrender(block_id, int64_t n_tokens);

  void unpin_all();
  // Snapshots whose bytes can go.
  std::vector<snapshot_id> take_dropped() { return std::exchange(dropped_, {}); }

  enum class missing : uint8_t { nothing, block, evicted, snapshot, salt };
  struct miss {
    int64_t n_cached = 0;        // what a request would get now
    int64_t first_differing = 0; // position; prompt.size(): none
    missing what = missing::nothing;
  };
  // Why a prompt gets less than it could. `nothing`: all but the last token is there.
  miss explain(std::string_view salt, std::span<const symbol> prompt) const;

  int64_t n_nodes() const { return n_nodes_; }
  int64_t n_snapshots() const { return static_cast<int64_t>(snapshots_.size()); }
  int64_t n_salts() const { return static_cast<int64_t>(roots_.size()); }
  int64_t max_snapshots() const { return limits_.max_snapshots; }

private:
  struct node;
  struct less { // by content; a span and a vector compare alike
    using is_transparent = void;
    template <class A, class B> bool operator()(const A& a, const B& b) const {
      return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
    }
  };
  using content = std::vector<symbol>;
  struct snapshot {
    node* at = nullptr;
    const content* tail = nullptr; // symbols behind the last full block: the key in the node's map
    int64_t n_tokens = 0, floor = 0;
    std::optional<block_id> partial;
    double worth = 0; // evicted in this order: what the last one evicted was worth, and the tokens this one saves
    double clock = 0; // that former part
  };
  struct node {
    node* parent = nullptr;
    const content* key = nullptr;
    uint64_t hash = 0; // of the fingerprint, the salt and everything down to here
    int64_t n_tokens = 0;
    block_id block{};
    uint64_t used = 0; // when it was last found or made
    std::map<content, std::unique_ptr<node>, less> children;
    std::map<content, snapshot_id, less> tails;
    bool is_leaf() const { return children.empty() && tails.empty(); }
  };
  struct path {
    std::vector<node*> nodes; // the root first
    std::span<const symbol> rest;
  };

  path walk(std::string_view salt, std::span<const symbol>) const;
  node& root(std::string_view salt);
  const snapshot_id* best(const path&, std::span<const symbol> prompt, int64_t floor) const;
  static int64_t common_beyond(const node&, std::span<const symbol> rest);
  double cost(const snapshot&) const;
  void touch(snapshot_id, snapshot&);
  bool evict_snapshot();
  void drop(snapshot_id);
  void remember(uint64_t key);
  void remove(node&); // with everything below
  void leaf_changed(node&);
  void clear_tree(node&);
  node* oldest_idle_leaf() const;

  prefix_limits limits_;
  block_pool& pool_;
  std::map<std::string, std::unique_ptr<node>, std::less<>> roots_; // by salt
  std::unordered_map<snapshot_id, snapshot> snapshots_;
  std::set<std::pair<double, snapshot_id>> order_;
  std::set<std::pair<uint64_t, node*>> leaves_; // without children and snapshots, by when they were used
  std::unordered_set<snapshot_id> pinned_;
  std::vector<snapshot_id> dropped_;
  std::deque<uint64_t> evicted_order_; // keys of what left for lack of room, the latest few thousand
  std::unordered_set<uint64_t> evicted_;
  double clock_ = 0;
  bool has_empty_root_ = false;
  uint64_t now_ = 0, last_snapshot_ = 0;
  int64_t n_nodes_ = 0;
};

} // namespace troupe
