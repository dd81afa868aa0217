// Snapshots of one rank: bytes in host memory by number. What to keep is kv_cache's decision; knows no CAF.
#pragma once

#include "actors/messages.h"
#include "model/model.h"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace troupe {

class snapshot_store {
public:
  void save(std::span<const snapshot_save>, model&);
  // Puts one into a slot. A value: why it cannot be.
  std::optional<std::string> restore(snapshot_id, int32_t slot, int64_t n_tokens, model&) const;
  void drop(std::span<const snapshot_id>); // of unknown ones: nothing, their step failed
  void clear();

  size_t n_snapshots() const { return bytes_.size(); }
  int64_t size_bytes() const { return size_bytes_; }

private:
  std::unordered_map<snapshot_id, std::vector<std::byte>> bytes_;
  std::vector<std::byte> spare_; // of the last one dropped
  int64_t size_bytes_ = 0;
};

} // namespace troupe
