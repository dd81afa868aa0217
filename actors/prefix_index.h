// Which prefixes are cached, and where: a tree of full KV blocks by their content, with snapshots of window state
// hanging on it. Knows no CAF and no bytes: it deals in numbers of blocks, slots, snapshots and files. Design
// section 5.
#pragma once

#include "actors/block_pool.h"

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
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
  std::string fingerprint;   // of all that changes what is cached: model, overlays, template, prefill mode
  int64_t max_snapshots = 0; // in host memory, whatever tier their blocks are in
  int64_t n_slots = 0;       // blocks in host memory
  int64_t disk_bytes = 0;    // of each rank's files; 0: no disk tier
  int64_t block_bytes = 0, snapshot_bytes = 0; // of one; for disk_bytes
};

// Tiers of a block, and of a snapshot by where its path is; a snapshot's own bytes are in host memory in the first two.
enum class tier : uint8_t { device, memory, disk };

// Contents are stored and compared, so no hash decides whether two prefixes are equal. The tree keeps a reference to
// each block it names. Invariants: what is on the device has its parent there; nothing is both on the device and in a
// slot; a node that is nowhere is gone, with all below it. Everything that is to be done about it is in the take_
// lists, in the order in which it was decided.
class prefix_index {
public:
  prefix_index(prefix_limits, block_pool&);
  ~prefix_index();
  prefix_index(prefix_index&&) = delete;

  struct hit {
    int64_t n_tokens = 0; // 0: a miss
    int64_t floor = 0;
    snapshot_id snapshot{};
    std::vector<block_id> blocks;    // full ones on the device
    int64_t n_in_memory = 0;         // full ones behind them, in slots
    std::optional<block_id> partial; // the rest, to be copied before it is written
    bool has_partial = false;        // on the device or in a slot
    int64_t n_common = 0;            // of the prompt, with anything in the tree: where a fork begins
  };
  // The longest usable snapshot at or below min(common prefix, prompt.size() - 1), not counting the disk. One is usable
  // when it lies at or below `floor`, or holds the late layers' rows from `floor` on (prefill mode tail; 0 in exact
  // mode). It cannot leave before unpin_all().
  hit find(std::string_view salt, std::span<const symbol> prompt, int64_t floor = 0);
  // Moves a hit's blocks into `fresh`: the blocks in slots, then its part of one, if it has that. Precondition: the
  // sequence holds both hit.blocks and `fresh`, nothing was unpinned since find().
  void bring_in(const hit&, std::span<const block_id> fresh);
  // find()'s n_tokens without touching anything.
  int64_t longest(std::string_view salt, std::span<const symbol> prompt, int64_t floor = 0) const;

  // Full blocks of a sequence that are not in the tree yet. `blocks`: the sequence's table.
  void commit(std::string_view salt, std::span<const symbol> symbols, std::span<const block_id> blocks);
  // A snapshot of all of `symbols`, to be saved in this step. nullopt: there is one, or no room (all are in use).
  std::optional<snapshot_id> add_snapshot(std::string_view salt, std::span<const symbol> symbols,
                                          std::span<const block_id> blocks, int64_t floor);
  // Forgets whatever lies beyond n_tokens on this path, with all that grew from it.
  void forget(std::string_view salt, std::span<const symbol> symbols, int64_t n_tokens);
  // Moves cached prefixes out to slots or lets go of them, the cheapest to compute again first, until n_blocks are
  // free. False: not enough.
  bool free_blocks(int64_t n_blocks);
  // The block's content beyond n_tokens is about to be written over: what stands on it leaves.
  void surrender(block_id, int64_t n_tokens);
  void unpin_all();
  bool has_pins() const { return !pinned_.empty(); }

  // The disk tier. fetch: when more of the prompt lies on disk than find() has, reads it into slots, and says which
  // snapshot to wait for. nullopt: nothing to gain, or no room.
  std::optional<snapshot_id> fetch(std::string_view salt, std::span<const symbol> prompt, int64_t floor = 0);
  bool is_loading(snapshot_id) const; // it or its path
  // Writes a snapshot and those blocks of its path that are not on disk. Bytes that takes; 0: it is there, or cannot
  // be. Precondition: the step that made it has run.
  int64_t write(snapshot_id);
  // What became of a read or a write on all ranks. Unknown ones left meanwhile.
  void read_done(entry_id, bool ok);
  void write_done(entry_id, bool ok);
  // An entry found on disk, parents before children. What cannot be placed is removed there.
  struct stored {
    entry_id entry{}, parent{};
    bool is_snapshot = false;
    int64_t n_tokens = 0, floor = 0;
    std::string salt;
    std::vector<symbol> symbols;
  };
  void restore(const stored&);
  // Prefixes that stay by name: they leave no tier unless a lower one has them, but for want of any other room on the
  // device. Half of the slots at most.
  struct pin {
    std::string name;
    int64_t n_tokens = 0, n_blocks = 0;
    snapshot_id snapshot{};
    entry_id entry{}; // 0: not on disk
  };
  // Pins the longest cached prefix of the prompt. A value: why not.
  std::optional<std::string> pin_name(const std::string& name, std::string_view salt, std::span<const symbol> prompt);
  void pin_restored(const std::string& name, entry_id); // of a snapshot; unknown: nothing
  bool unpin_name(const std::string& name);             // false: no such name
  std::vector<pin> pins() const;                        // by name

  void discard(entry_id id) { removes_.push_back(id); }
  void end_restore() { restored_.clear(); }
  void first_entry(entry_id next) { last_entry_ = std::max(last_entry_, static_cast<uint64_t>(next) - 1); }

  std::vector<block_move> take_moves() { return std::exchange(moves_, {}); }
  std::vector<snapshot_id> take_dropped() { return std::exchange(dropped_, {}); } // bytes in host memory that can go
  std::vector<tier_read> take_reads() { return std::exchange(reads_, {}); }
  std::vector<tier_write> take_writes() { return std::exchange(writes_, {}); }
  std::vector<entry_id> take_removes() { return std::exchange(removes_, {}); }

  enum class missing : uint8_t { nothing, block, evicted, snapshot, salt, disk };
  struct miss {
    int64_t n_cached = 0;        // what a request would get at once
    int64_t n_on_disk = 0;       // what it would get if it waited
    int64_t first_differing = 0; // position; prompt.size(): none
    missing what = missing::nothing;
  };
  // Why a prompt gets less than it could. `nothing`: all but the last token is there.
  miss explain(std::string_view salt, std::span<const symbol> prompt) const;

  int64_t n_nodes() const { return n_nodes_; }
  int64_t n_snapshots() const { return n_in_memory_; } // in host memory
  int64_t n_salts() const { return static_cast<int64_t>(roots_.size()); }
  int64_t max_snapshots() const { return limits_.max_snapshots; }
  int64_t n_slots_used() const { return limits_.n_slots - static_cast<int64_t>(free_slots_.size()); }
  int64_t disk_bytes() const { return disk_bytes_; }
  int64_t writing_bytes() const { return writing_bytes_; } // on their way there
  void check() const;                                      // the invariants; tests

private:
  static constexpr size_t n_tiers = 3;
  static constexpr size_t scale_of(tier t) { return t == tier::disk ? 1 : 0; }
  struct node;
  struct less { // by content; a span and a vector compare alike
    using is_transparent = void;
    template <class A, class B> bool operator()(const A& a, const B& b) const {
      return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
    }
  };
  using content = std::vector<symbol>;
  // Where a node or a snapshot is, besides the device.
  struct place {
    std::array<bool, n_tiers> in{};
    int32_t slot = -1;
    entry_id entry{};
    int64_t entry_bytes = 0;
    bool is_loading = false, is_writing = false;
    int32_t n_names = 0; // pins that need it
    bool is_in(tier t) const { return in[static_cast<size_t>(t)]; }
    bool is_nowhere() const { return !in[0] && !in[1] && !in[2]; }
    bool is_usable() const { return in[0] || (in[1] && !is_loading); }
    bool is_safe_on_disk() const { return in[2] && !is_writing; }
    bool is_reachable() const { return in[0] || in[1] || (in[2] && !is_writing); }
  };
  // GreedyDual's: what the last one evicted was worth when this one was touched, and what this one saves. Of two that
  // are worth the same the one used longer ago goes first.
  struct rating {
    double worth = 0;
    double clock = 0;  // that former part
    uint64_t used = 0; // when
    int32_t n_uses = 0;
    auto operator<=>(const rating& b) const { return std::tie(worth, used) <=> std::tie(b.worth, b.used); }
    bool operator==(const rating& b) const { return worth == b.worth && used == b.used; }
  };
  struct snapshot : place {
    node* at = nullptr;
    const content* tail = nullptr; // symbols behind the last full block: the key in the node's map
    int64_t n_tokens = 0, floor = 0;
    std::optional<block_id> partial; // on the device
    std::array<rating, 2> ratings{}; // in memory, whatever tier its blocks are in; on disk
    bool is_in_memory() const { return in[0] || in[1]; }
    const rating& rated(tier t) const { return ratings[scale_of(t)]; }
  };
  struct node : place {
    node* parent = nullptr;
    const content* key = nullptr;
    std::string_view salt; // of the root: its key
    uint64_t hash = 0;     // of the fingerprint, the salt and everything down to here
    int64_t n_tokens = 0;
    block_id block{};
    uint64_t used = 0;                      // when it was last found or made
    uint64_t pinned = 0;                    // in which step
    std::array<int32_t, n_tiers> n_below{}; // children and snapshots in each tier
    std::map<content, std::unique_ptr<node>, less> children;
    std::map<content, snapshot_id, less> tails;
    bool is_leaf() const { return children.empty() && tails.empty(); }
  };
  struct path {
    std::vector<node*> nodes; // the root first
    std::span<const symbol> rest;
  };
  struct transfer {     // of an entry, until every rank has answered
    node* at = nullptr; // of a block; null: of the snapshot
    snapshot_id snapshot{};
    bool is_orphan = false; // its node or snapshot has left
    int32_t slot = -1;      // of a read
    int64_t n_bytes = 0;    // of a write
  };

  // prefix_index.cpp: content.
  path walk(std::string_view salt, std::span<const symbol>) const;
  node& root(std::string_view salt);
  node& add_child(node& parent, std::span<const symbol> key);
  template <class Usable>
  const snapshot_id* best(const path&, size_t n_nodes, std::span<const symbol> prompt, int64_t floor, Usable) const;
  const snapshot_id* best_at_hand(const path&, std::span<const symbol> prompt, int64_t floor) const;
  const snapshot_id* best_anywhere(const path&, std::span<const symbol> prompt, int64_t floor) const;
  static int64_t common_beyond(const node&, std::span<const symbol> rest);
  double cost(const snapshot&) const;
  double saved_by(const snapshot&, size_t scale, int32_t n_uses) const;
  double saved_per_byte(double n_tokens) const; // prefix_disk.cpp
  void rate(snapshot_id, snapshot&, size_t scale, const rating&);
  void touch(snapshot_id, snapshot&, size_t scale);
  void touch(snapshot_id id, snapshot& s) { touch(id, s, 0), touch(id, s, 1); }
  void touch_on_disk(const path&, std::span<const symbol> prompt, int64_t floor);
  void remember(uint64_t key);
  static uint64_t key_of(const snapshot&);

  // prefix_places.cpp: tiers.
  void enter(node&, tier);
  void leave(node&, tier);
  void enter(snapshot_id, snapshot&, tier);
  void leave(snapshot_id, snapshot&, tier);
  void count_below(node&, tier, int32_t change);
  void use(node&);
  void pin_path(node&);
  bool is_pinned(const node& n) const { return n.pinned == step_; }
  void put_on_device(node&, block_id);
  void release(node&, tier);
  void release(snapshot_id, snapshot&, tier);
  void release_memory(snapshot_id, snapshot&); // device or memory
  void free_slot(place&);
  void leave_disk(place&);
  int32_t take_slot();
  bool evict_from_memory();
  void demote(node&);
  bool cool_one();
  void evict(snapshot_id);
  bool evict_snapshot();
  std::optional<snapshot_id> lowest(tier, bool leaves_memory);
  node* oldest_leaf(tier) const;
  void drop(snapshot_id);
  void remove(node&); // with everything below
  void clear_tree(node&);
  void gone(node&); // a child or a snapshot of it

  // prefix_pins.cpp
  void name_path(snapshot&, int32_t change);
  int64_t n_named_blocks(const snapshot* more) const;

  // prefix_disk.cpp
  bool make_disk_room(int64_t n_bytes);
  int64_t bytes_on_disk(const node& below, size_t n_symbols, bool is_snapshot) const;
  void begin_write(place&, const node& parent, transfer, tier_write);
  void check_node(const node&, std::vector<bool>& slots, int64_t& n_disk_bytes) const; // prefix_check.cpp
  bool begin_read(node&);
  bool begin_read(snapshot_id, snapshot&);

  prefix_limits limits_;
  block_pool& pool_;
  std::map<std::string, std::unique_ptr<node>, std::less<>> roots_; // by salt
  std::unordered_map<snapshot_id, snapshot> snapshots_;
  std::array<std::set<std::pair<rating, snapshot_id>>, n_tiers> order_; // the next one to go first
  std::array<std::set<std::pair<uint64_t, node*>>, n_tiers> leaves_;    // with nothing below in that tier, by use
  std::unordered_set<snapshot_id> pinned_;                              // in this step
  std::map<std::string, snapshot_id> names_;
  std::vector<int32_t> free_slots_; // the next one at the back
  std::unordered_map<entry_id, transfer> loads_, stores_;
  std::unordered_map<entry_id, node*> restored_; // blocks found on disk, while they are restored
  std::vector<block_move> moves_;
  std::vector<snapshot_id> dropped_;
  std::vector<tier_read> reads_;
  std::vector<tier_write> writes_;
  std::vector<entry_id> removes_;
  std::deque<uint64_t> evicted_order_; // keys of what left for lack of room, the latest few thousand
  std::unordered_set<uint64_t> evicted_;
  std::array<double, 2> clock_{}; // worth of the last one evicted from memory, from disk
  bool has_empty_root_ = false;
  uint64_t now_ = 0, step_ = 1, last_snapshot_ = 0, last_entry_ = 0;
  int64_t n_nodes_ = 0, n_in_memory_ = 0, disk_bytes_ = 0, writing_bytes_ = 0;
};

} // namespace troupe
