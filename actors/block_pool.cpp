// The ledger of KV blocks.
#include "actors/block_pool.h"

#include "storage/check.h"

#include <algorithm>

namespace troupe {

block_pool::block_pool(int64_t n_blocks, int64_t block_tokens) : n_total_(n_blocks), block_tokens_(block_tokens) {
  TROUPE_CHECK(n_blocks >= 0 && n_blocks <= INT32_MAX && block_tokens > 0,
               "block ids are 32-bit and blocks hold tokens");
  uses_.resize(static_cast<size_t>(n_blocks));
  free_.reserve(static_cast<size_t>(n_blocks));
  for (int64_t i = n_blocks; i-- > 0;) free_.push_back(block_id{static_cast<int32_t>(i)}); // the lowest goes first
}

void block_pool::check() const {
  TROUPE_CHECK(n_free() + n_held_ + n_cached_ == n_total_, "no block is lost or doubled");
}

block_pool::use& block_pool::of(block_id b) {
  const auto i = static_cast<size_t>(b);
  TROUPE_CHECK(i < uses_.size(), "a block number is below the number of blocks");
  return uses_[i];
}

bool block_pool::open(sequence_id id) { return tables_.try_emplace(id).second; }

bool block_pool::share(sequence_id id, std::span<const block_id> blocks) {
  const auto found = tables_.find(id);
  if (found == tables_.end()) return false;
  const auto is_free = [&](block_id b) { return of(b).n_sequences + of(b).n_kept == 0; };
  if (std::any_of(blocks.begin(), blocks.end(), is_free)) return false;
  for (const auto b : blocks)
    if (of(b).n_sequences++ == 0) {
      --n_cached_;
      ++n_held_;
    }
  found->second.insert(found->second.end(), blocks.begin(), blocks.end());
  check();
  return true;
}

int64_t block_pool::n_missing(sequence_id id, int64_t n_tokens) const {
  const auto have = static_cast<int64_t>(table(id).size());
  return std::max<int64_t>((n_tokens + block_tokens_ - 1) / block_tokens_ - have, 0);
}

std::optional<std::vector<block_id>> block_pool::extend(sequence_id id, int64_t n_tokens) {
  const auto found = tables_.find(id);
  if (found == tables_.end()) return std::nullopt;
  const int64_t n_new = n_missing(id, n_tokens);
  if (n_new > n_free()) return std::nullopt;
  std::vector<block_id> fresh;
  for (int64_t i = 0; i < n_new; ++i) {
    fresh.push_back(free_.back());
    free_.pop_back();
    of(fresh.back()).n_sequences = 1;
  }
  found->second.insert(found->second.end(), fresh.begin(), fresh.end());
  n_held_ += n_new;
  check();
  return fresh;
}

bool block_pool::release(sequence_id id) {
  const auto found = tables_.find(id);
  if (found == tables_.end()) return false;
  const auto& table = found->second;
  for (auto b = table.rbegin(); b != table.rend(); ++b) {
    auto& use = of(*b);
    if (--use.n_sequences > 0) continue;
    --n_held_;
    if (use.n_kept > 0)
      ++n_cached_;
    else
      free_.push_back(*b);
  }
  tables_.erase(found);
  check();
  return true;
}

std::span<const block_id> block_pool::table(sequence_id id) const {
  const auto found = tables_.find(id);
  return found == tables_.end() ? std::span<const block_id>{} : found->second;
}

void block_pool::keep(block_id b) {
  auto& use = of(b);
  TROUPE_CHECK(use.n_sequences + use.n_kept > 0, "only a block in use can be kept");
  ++use.n_kept;
}

void block_pool::let_go(block_id b) {
  auto& use = of(b);
  TROUPE_CHECK(use.n_kept > 0, "only a kept block is let go");
  if (--use.n_kept > 0 || use.n_sequences > 0) return;
  --n_cached_;
  free_.push_back(b);
  check();
}

} // namespace troupe
