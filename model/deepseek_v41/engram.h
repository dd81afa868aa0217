// Engram hash ids: which table rows a token reads.                                   Spec: engram.md sections 2 to 4.
#pragma once

#include "model/deepseek_v41/config.h"

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::deepseek_v41 {

// Bucket primes [slot][column] of the tables of a config; a table has as many rows as its primes sum to. engram.md 2
std::vector<std::vector<int64_t>> engram_primes(const engram_config&);

// Bucket primes, offsets and multipliers of all slots. Pure data, made once.
class engram_hash {
public:
  // A compressed id of a token that no n-gram may look at.
  static constexpr int32_t dead = -1;

  // `pad`: compressed id of the pad token. Throws std::runtime_error naming file and key: prime sums that differ from
  // engram_num_embeddings, multipliers that the files do not give and no rule of ours knows.
  engram_hash(const config&, int32_t pad);

  // ids [slot][column] of the last token of `history`: compressed ids of a sequence up to it, `dead` where dead.
  // ids.size() == slots * columns.
  void row_ids(std::span<const int32_t> history, std::span<int64_t> ids) const;

  const std::vector<std::vector<int64_t>>& primes() const { return primes_; } // [slot][column]
  const std::vector<std::vector<int64_t>>& offsets() const { return offsets_; }
  const std::vector<std::vector<int64_t>>& multipliers() const { return multipliers_; }

private:
  int64_t max_ngram_, heads_;
  int32_t pad_;
  std::vector<std::vector<int64_t>> primes_, offsets_, multipliers_;
};

} // namespace troupe::deepseek_v41
