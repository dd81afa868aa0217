// What a model's slots and blocks hold, to and from host memory.
#include "model/deepseek_v41/model_v41.h"
#include "model/deepseek_v41/snapshot.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace troupe::deepseek_v41 {

int64_t model_v41::snapshot_bytes() const { return bytes_per_snapshot(config_, cache_plan_.form, options_.load_draft); }

void model_v41::save_slot(int32_t slot, int64_t n_tokens, std::vector<std::byte>& to) {
  TROUPE_CHECK(slot >= 0 && slot < options_.max_sequences, "a slot number is below max_sequences");
  const int64_t newest = newest_[static_cast<size_t>(slot)];
  TROUPE_CHECK(n_tokens > 0 && n_tokens <= newest && newest - n_tokens <= slack_,
               "the rings still hold the window of a snapshot");
  if (late_context_) {
    const late_context::wanted rows{slot, n_tokens};
    late_context_->catch_up(ctx_, *drafter_, draft_caches(), {&rows, 1});
  }
  save_snapshot(be_, caches_, snapshot_rows_, slot, n_tokens, floor_[static_cast<size_t>(slot)], to);
}

void model_v41::load_slot(int32_t slot, int64_t n_tokens, std::span<const std::byte> from) {
  TROUPE_CHECK(slot >= 0 && slot < options_.max_sequences && n_tokens > 0, "a slot number is below max_sequences");
  early_.clear();
  floor_[static_cast<size_t>(slot)] = load_snapshot(be_, caches_, snapshot_rows_, slot, n_tokens, from);
  newest_[static_cast<size_t>(slot)] = n_tokens;
  if (late_context_) late_context_->load(slot, n_tokens);
}

void model_v41::check_snapshot(int64_t n_tokens, std::span<const std::byte> from) const {
  deepseek_v41::check_snapshot(caches_, snapshot_rows_, n_tokens, from);
}

void model_v41::copy_block(int32_t from, int32_t to) {
  TROUPE_CHECK(std::min(from, to) >= 0 && std::max(from, to) < options_.n_blocks, "a block number is below n_blocks");
  deepseek_v41::copy_block(be_, config_, caches_, from, to);
}

int64_t model_v41::block_bytes() const { return bytes_per_block(config_, cache_plan_.form, info_.block_tokens); }

void model_v41::save_block(int32_t block, std::vector<std::byte>& to) {
  TROUPE_CHECK(block >= 0 && block < options_.n_blocks, "a block number is below n_blocks");
  to.resize(static_cast<size_t>(block_bytes()));
  deepseek_v41::save_block(be_, config_, caches_, block, to);
}

void model_v41::load_block(int32_t block, std::span<const std::byte> from) {
  TROUPE_CHECK(block >= 0 && block < options_.n_blocks, "a block number is below n_blocks");
  if (static_cast<int64_t>(from.size()) != block_bytes())
    throw std::runtime_error("block: bytes: expected " + std::to_string(block_bytes()) + ", found " +
                             std::to_string(from.size()));
  deepseek_v41::load_block(be_, config_, caches_, block, from);
}

} // namespace troupe::deepseek_v41
