// Host memory that an engram_fetch writes and its rank reads, lent to both at spawn; messages carry the slot only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace troupe {

// Shared by two actors that end in no fixed order. A slot is written again only after the step that used it was
// answered.
class staging_buffer {
public:
  // One for the step that a rank reads, one for the next, and one for each restart that the supervisor allows in a row.
  static constexpr int32_t n_slots = 8;
  // Before the first step, by the engram_fetch.
  void resize(int64_t record_bytes, int64_t max_rows) {
    record_bytes_ = record_bytes;
    for (auto& s : slots_) s.resize(static_cast<size_t>(record_bytes * max_rows));
  }
  // The records of the first n_rows rows. Precondition: n_rows <= max_rows.
  std::span<std::byte> slot(int32_t i, int64_t n_rows) {
    return std::span(slots_[i]).first(static_cast<size_t>(n_rows * record_bytes_));
  }
  std::span<const std::byte> slot(int32_t i, int64_t n_rows) const {
    return std::span(slots_[i]).first(static_cast<size_t>(n_rows * record_bytes_));
  }
  // The slot of the next step, in turn. By the engram_fetch only; one that is new goes on where the last one stopped.
  int32_t take_slot() { return std::exchange(next_, (next_ + 1) % n_slots); }
  int64_t record_bytes() const { return record_bytes_; } // of one token; 0: no side tables

private:
  int64_t record_bytes_ = 0;
  int32_t next_ = 0;
  std::vector<std::byte> slots_[n_slots];
};

} // namespace troupe
