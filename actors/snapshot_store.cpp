// Saving, restoring and dropping; blocks to and from slots.
#include "actors/snapshot_store.h"

#include "storage/check.h"

namespace troupe {

void snapshot_store::save(std::span<const snapshot_save> saves, model& weights) {
  for (const auto& s : saves) {
    auto& bytes = bytes_[s.snapshot];
    size_bytes_ -= static_cast<int64_t>(bytes.size());
    bytes = std::move(spare_);
    spare_ = {};
    weights.save_slot(s.slot, s.n_tokens, bytes);
    size_bytes_ += static_cast<int64_t>(bytes.size());
  }
}

std::optional<std::string> snapshot_store::restore(snapshot_id id, int32_t slot, int64_t n_tokens,
                                                   model& weights) const {
  const auto found = bytes_.find(id);
  if (found == bytes_.end()) return "a snapshot is not on the rank";
  try {
    weights.load_slot(slot, n_tokens, found->second);
  } catch (const std::runtime_error& e) { return e.what(); }
  return std::nullopt;
}

void snapshot_store::drop(std::span<const snapshot_id> ids) {
  for (const auto id : ids) {
    const auto found = bytes_.find(id);
    if (found == bytes_.end()) continue;
    size_bytes_ -= static_cast<int64_t>(found->second.size());
    spare_ = std::move(found->second);
    bytes_.erase(found);
  }
}

void snapshot_store::clear() {
  bytes_.clear();
  slots_.clear();
  size_bytes_ = 0;
}

snapshot_store::slot& snapshot_store::at(int32_t i) {
  TROUPE_CHECK(i >= 0, "a slot has a number");
  if (slots_.size() <= static_cast<size_t>(i)) slots_.resize(static_cast<size_t>(i) + 1);
  return slots_[static_cast<size_t>(i)];
}

int64_t snapshot_store::slots_bytes() const {
  int64_t sum = 0;
  for (const auto& s : slots_) sum += static_cast<int64_t>(s.saved.size() + s.read.size());
  return sum;
}

void snapshot_store::move(const block_move& m, model& weights) {
  switch (m.what) {
  case block_move::kind::copy: return weights.copy_block(m.from, m.to);
  case block_move::kind::out: return weights.save_block(m.from, at(m.to).to_save());
  case block_move::kind::in: return weights.load_block(m.to, at(m.from).bytes());
  }
}

std::optional<std::vector<std::byte>> snapshot_store::payload(const tier_write& what, model& weights) const {
  std::vector<std::byte> out, block;
  if (what.snapshot != snapshot_id{}) {
    const auto found = bytes_.find(what.snapshot);
    if (found == bytes_.end()) return std::nullopt;
    out = found->second;
  }
  if (what.block >= 0)
    weights.save_block(what.block, block);
  else if (what.slot >= 0) {
    const auto bytes = slots_.at(static_cast<size_t>(what.slot)).bytes();
    block.assign(bytes.begin(), bytes.end());
  }
  if (out.empty()) return block;
  out.insert(out.end(), block.begin(), block.end());
  return out;
}

std::optional<std::string> snapshot_store::arrive(const tier_read& where, std::vector<uint8_t>&& payload,
                                                  const model& weights) {
  const auto block_bytes = static_cast<size_t>(where.slot >= 0 ? weights.block_bytes() : 0);
  const bool is_snapshot = where.snapshot != snapshot_id{};
  if (is_snapshot ? payload.size() <= block_bytes : payload.size() != block_bytes)
    return "expected an entry of " + std::to_string(block_bytes) + (is_snapshot ? " bytes and more" : " bytes") +
           ", found " + std::to_string(payload.size());
  if (!is_snapshot) {
    if (where.slot < 0) return std::nullopt;
    auto& s = at(where.slot);
    s.saved = {};
    s.read = std::move(payload);
    return std::nullopt;
  }
  const auto all = std::as_bytes(std::span(payload));
  const auto of_block = all.last(block_bytes), rest = all.first(all.size() - block_bytes);
  try {
    weights.check_snapshot(where.n_tokens, rest);
  } catch (const std::runtime_error& e) { return e.what(); }
  if (where.slot >= 0) at(where.slot).to_save().assign(of_block.begin(), of_block.end());
  auto& bytes = bytes_[where.snapshot];
  size_bytes_ += static_cast<int64_t>(rest.size()) - static_cast<int64_t>(bytes.size());
  bytes.assign(rest.begin(), rest.end());
  return std::nullopt;
}

} // namespace troupe
