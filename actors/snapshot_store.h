// Cached state of one rank in host memory: snapshots by number, blocks by slot, what is on its way from disk. What to
// keep is kv_cache's decision; knows no CAF.
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
  // Puts one into a slot of the model. A value: why it cannot be.
  std::optional<std::string> restore(snapshot_id, int32_t slot, int64_t n_tokens, model&) const;
  void drop(std::span<const snapshot_id>); // of unknown ones: nothing, their step failed
  void clear();

  // Blocks: a slot of host memory keeps its memory once it has been used.
  void move(const block_move&, model&);
  // The bytes of an entry for the disk: of a snapshot its own, then those of its part of a block. nullopt: they are not
  // here, since their step failed.
  std::optional<std::vector<std::byte>> payload(const tier_write&, model&) const;
  // The same bytes back, into the places that were ordered; those of a block stay where they are. A value: why they do
  // not fit the model; nothing of them is kept then.
  std::optional<std::string> arrive(const tier_read&, std::vector<uint8_t>&& payload, const model&);

  size_t n_snapshots() const { return bytes_.size(); }
  int64_t size_bytes() const { return size_bytes_; } // of the snapshots
  int64_t slots_bytes() const;

private:
  // Invariant: at most one of them holds anything.
  struct slot {
    std::vector<std::byte> saved; // of the device
    std::vector<uint8_t> read;    // from disk
    std::span<const std::byte> bytes() const {
      return read.empty() ? std::span(saved) : std::as_bytes(std::span(read));
    }
    std::vector<std::byte>& to_save() {
      read = {};
      return saved;
    }
  };
  slot& at(int32_t);

  std::unordered_map<snapshot_id, std::vector<std::byte>> bytes_;
  std::vector<std::byte> spare_; // of the last one dropped
  std::vector<slot> slots_;
  int64_t size_bytes_ = 0;
};

} // namespace troupe
