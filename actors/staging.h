// Host memory that an engram_fetch writes and its rank reads, lent to both at spawn; messages carry the slot only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe {

// Shared by two actors that end in no fixed order. A slot is written again only after the step that used it was
// answered.
class staging_buffer {
public:
  static constexpr int32_t n_slots = 2;
  void resize(int64_t slot_bytes) {
    for (auto& s : slots_) s.resize(static_cast<size_t>(slot_bytes));
  }
  std::span<std::byte> slot(int32_t i) { return slots_[i]; }
  std::span<const std::byte> slot(int32_t i) const { return slots_[i]; }

private:
  std::vector<std::byte> slots_[n_slots];
};

} // namespace troupe
