// Host memory that an engram_fetch writes and its rank reads, lent to both at spawn. A step finds its rows there by its
// number, since the rank may have begun it before they are read.
#pragma once

#include "actors/messages.h"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

// What a rank gets of a step's side-table rows.
struct staged_rows {
  std::span<const std::byte> bytes;       // of all rows that were asked for, until the step is answered
  std::vector<sequence_failure> failures; // sequences whose rows could not be read: their bytes mean nothing
  std::string missing;                    // not empty: why there is none of this
  bool is_over = false;                   // so is the step's epoch or its rank, which is why: nobody wants to know
};

// Shared by two actors that end in no fixed order. A slot is written again only after the step that used it was
// answered. Its lock is the one in this folder: a step that is under way on the device cannot wait for a message.
class staging_buffer {
public:
  // One for the step that a rank reads, one for the next, and one for each restart that the supervisor allows in a row.
  static constexpr int32_t n_slots = 8;

  // The engram_fetch's part. Before the first step, or in one, if the tables could not be opened before.
  void resize(int64_t record_bytes, int64_t max_rows);
  int64_t record_bytes() const { return record_bytes_; } // of one token; 0: no side tables
  // The slot of the next step, in turn; one that is new goes on where the last one stopped.
  int32_t take_slot();
  // The records of the first n_rows rows. Precondition: n_rows <= max_rows.
  std::span<std::byte> slot(int32_t i, int64_t n_rows) {
    return std::span(slots_[i]).first(static_cast<size_t>(n_rows * record_bytes_));
  }
  // All rows of the step that can be read are in the slot. A step may be finished again, in another one, by a new
  // engram_fetch.
  void finish(uint64_t epoch, uint64_t step, int32_t slot, std::vector<sequence_failure> failures);
  // Nothing of older epochs will be finished.
  void begin_epoch(uint64_t epoch);

  // The rank's part: waits until the step is finished, its epoch is over, the buffer is closed or the deadline has
  // passed.
  staged_rows wait(uint64_t epoch, uint64_t step, int64_t n_rows, std::chrono::milliseconds deadline) const;

  // Of whoever ends the rank: it may wait for an engram_fetch that is gone.
  void close();

private:
  struct read_step {
    uint64_t epoch = 0, step = 0; // epoch 0: none, the slot is being written
    std::vector<sequence_failure> failures;
  };
  const read_step* find(uint64_t epoch, uint64_t step) const;

  int64_t record_bytes_ = 0;
  int32_t next_ = 0;
  std::vector<std::byte> slots_[n_slots];

  mutable std::mutex mutex_; // of what is below, and of what the rank reads above once it has found its step
  mutable std::condition_variable changed_;
  read_step steps_[n_slots]; // that the slots hold
  uint64_t epoch_ = 0;
  bool is_closed_ = false;
};

} // namespace troupe
