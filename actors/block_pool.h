// KV blocks by number: which are free, which a sequence holds, which the prefix cache keeps. Knows no CAF, no memory.
#pragma once

#include "actors/messages.h"

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace troupe {

// Invariant: free + held + cached == total, after every call. Blocks of equal history are taken lowest number first.
class block_pool {
public:
  block_pool() = default;
  block_pool(int64_t n_blocks, int64_t block_tokens);

  // A new, empty table. False: the sequence already has one.
  bool open(sequence_id);
  // Extends the sequence's table to cover positions [0, n_tokens) and returns the new blocks, in order. nullopt: there
  // are not enough free blocks (nothing is taken), or no such sequence.
  std::optional<std::vector<block_id>> extend(sequence_id, int64_t n_tokens);
  // Gives all blocks of the sequence back. False: it holds none (releasing twice is refused, not undone).
  bool release(sequence_id);

  int64_t n_total() const { return n_total_; }
  int64_t n_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t n_held() const { return n_held_; }
  int64_t n_cached() const { return n_cached_; }
  int64_t n_sequences() const { return static_cast<int64_t>(tables_.size()); }

private:
  void check() const;
  int64_t n_total_ = 0, block_tokens_ = 64, n_held_ = 0;
  int64_t n_cached_ = 0;       // blocks no sequence holds but prefix_index keeps; none before there is a prefix cache
  std::vector<block_id> free_; // the next one to take at the back
  std::unordered_map<sequence_id, std::vector<block_id>> tables_;
};

} // namespace troupe
