// The ledger of KV blocks.
#include "actors/block_pool.h"

#include "storage/check.h"

namespace troupe {

block_pool::block_pool(int64_t n_blocks, int64_t block_tokens) : n_total_(n_blocks), block_tokens_(block_tokens) {
  TROUPE_CHECK(n_blocks >= 0 && n_blocks <= INT32_MAX && block_tokens > 0,
               "block ids are 32-bit and blocks hold tokens");
  free_.reserve(static_cast<size_t>(n_blocks));
  for (int64_t i = n_blocks; i-- > 0;) free_.push_back(block_id{static_cast<int32_t>(i)});
}

void block_pool::check() const {
  TROUPE_CHECK(n_free() + n_held_ + n_cached_ == n_total_, "no block is lost or doubled");
}

bool block_pool::open(sequence_id id) { return tables_.try_emplace(id).second; }

std::optional<std::vector<block_id>> block_pool::extend(sequence_id id, int64_t n_tokens) {
  const auto found = tables_.find(id);
  if (found == tables_.end()) return std::nullopt;
  auto& table = found->second;
  const int64_t n_new = (n_tokens + block_tokens_ - 1) / block_tokens_ - static_cast<int64_t>(table.size());
  if (n_new > n_free()) return std::nullopt;
  std::vector<block_id> fresh;
  for (int64_t i = 0; i < n_new; ++i) {
    fresh.push_back(free_.back());
    free_.pop_back();
  }
  table.insert(table.end(), fresh.begin(), fresh.end());
  n_held_ += static_cast<int64_t>(fresh.size());
  check();
  return fresh;
}

bool block_pool::release(sequence_id id) {
  const auto found = tables_.find(id);
  if (found == tables_.end()) return false;
  const auto& table = found->second;
  free_.insert(free_.end(), table.rbegin(), table.rend());
  n_held_ -= static_cast<int64_t>(table.size());
  tables_.erase(found);
  check();
  return true;
}

} // namespace troupe
