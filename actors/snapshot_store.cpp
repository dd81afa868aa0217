// Saving, restoring and dropping.
#include "actors/snapshot_store.h"

namespace troupe {

void snapshot_store::save(std::span<const snapshot_save> saves, model& weights) {
  for (const auto& s : saves) {
    auto& bytes = bytes_[s.snapshot];
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
  size_bytes_ = 0;
}

} // namespace troupe
