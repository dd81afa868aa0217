// KV blocks by number: which are free, which sequences hold, which the prefix cache keeps. Knows no CAF, no memory.
#pragma once

#include "actors/messages.h"

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace troupe {

// A block has one writer (the sequence that took it) and any number of readers. Invariant: free + held + cached ==
// total, after every call: held by one sequence or several, or by none and kept by the prefix cache.
class block_pool {
public:
  block_pool() = default;
  block_pool(int64_t n_blocks, int64_t block_tokens);

  // A new, empty table. False: the sequence already has one.
  bool open(sequence_id);
  // Puts blocks that others filled at the end of the sequence's table. False: no such sequence, or a block is free.
  bool share(sequence_id, std::span<const block_id>);
  // Blocks that extend() would take.
  int64_t n_missing(sequence_id, int64_t n_tokens) const;
  // Extends the sequence's table to cover positions [0, n_tokens) and returns the new blocks, in order. nullopt: there
  // are not enough free blocks (nothing is taken), or no such sequence.
  std::optional<std::vector<block_id>> extend(sequence_id, int64_t n_tokens);
  // Lets go of all blocks of the sequence. False: it holds none (releasing twice is refused, not undone).
  bool release(sequence_id);
  std::span<const block_id> table(sequence_id) const; // empty: no such sequence

  // The prefix cache's own references, counted. Precondition: the block is not free; it was kept as often.
  void keep(block_id);
  void let_go(block_id);
  bool is_held(block_id b) const { return uses_[static_cast<size_t>(b)].n_sequences > 0; }

  int64_t n_total() const { return n_total_; }
  int64_t n_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t n_held() const { return n_held_; }
  int64_t n_cached() const { return n_cached_; }
  int64_t n_sequences() const { return static_cast<int64_t>(tables_.size()); }
  int64_t block_tokens() const { return block_tokens_; }

private:
  struct use {
    int32_t n_sequences = 0, n_kept = 0;
  };
  use& of(block_id);
  void check() const;

  int64_t n_total_ = 0, block_tokens_ = 64, n_held_ = 0, n_cached_ = 0;
  std::vector<use> uses_;
  std::vector<block_id> free_; // the next one to take at the back
  std::unordered_map<sequence_id, std::vector<block_id>> tables_;
};

} // namespace troupe
