// Messages of the disk tier, between a rank, its tier_disk and kv_cache. Bytes travel in pieces of at most 1 MiB.
#pragma once

#include "actors/messages.h"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

// rank -> tier_disk: an entry to be written, piece by piece in order.
struct tier_save {
  uint64_t cache = 0; // of wiring
  tier_write what;
  bool is_there = false; // false: the rank has no such bytes, since their step failed; nothing follows
  int64_t size_bytes = 0, offset = 0;
  std::vector<uint8_t> bytes;
};
// rank -> tier_disk: entries to be read, and to be removed.
struct tier_orders {
  uint64_t cache = 0; // of wiring
  std::vector<tier_read> reads;
  std::vector<uint64_t> removes; // entry_id
};
// tier_disk -> rank: an entry that was read, piece by piece in order.
struct tier_arrived {
  uint64_t cache = 0; // of wiring
  tier_read where;
  int64_t size_bytes = 0, offset = 0;
  std::vector<uint8_t> bytes;
};
// tier_disk -> kv_cache: what became of writes. Of reads: tier_disk -> rank, behind their bytes, -> kv_cache; done are
// those whose bytes the rank has, and that fit its model.
struct tier_result {
  entry_id entry{};
  bool is_write = false, is_done = false;
};
struct tier_done {
  uint64_t cache = 0; // of wiring
  std::vector<tier_result> results;
};
// tier_disk -> kv_cache, once for each tier_wiring, in several parts: what is on disk.
struct tier_stored {
  entry_id entry{}, parent{}; // 0: no parent
  bool is_snapshot = false;
  int64_t n_tokens = 0, floor = 0;
  std::string salt;
  std::vector<uint64_t> symbols; // behind the parent
};
struct tier_pin {
  std::string name;
  entry_id entry{}; // of the snapshot
};
struct tier_listed {
  uint64_t cache = 0; // of wiring
  std::vector<tier_stored> entries;
  bool is_last = false, is_open = true; // not open: this rank's disk cannot be used
  std::vector<tier_pin> pins;           // of the last part
};
// kv_cache -> tier_disk: the pins that a restart should know.
struct tier_pins {
  uint64_t cache = 0; // of wiring
  std::vector<tier_pin> pins;
};
// kv_cache -> tier_disk, when cached prefixes are gone: list what is there.
struct tier_wiring {
  uint64_t cache = 0; // of wiring
  caf::strong_actor_ptr rank, kv_cache;
};

// operator -> kv_cache: the longest cached prefix of a prompt stays until it is unpinned. A name that is there moves.
struct pin_prefix {
  std::string name;
  std::vector<int32_t> prompt;
  std::vector<image_place> images;
  std::string cache_salt;
};
struct pin_answer {
  int64_t n_tokens = 0;
  std::string refused; // not empty: why
};
struct unpin_prefix {
  std::string name;
};
struct pinned_prefix {
  std::string name;
  int64_t n_tokens = 0, n_blocks = 0;
  bool is_on_disk = false;
};
struct pin_list {
  std::vector<pinned_prefix> prefixes; // by name
};

// Their fields are in wire.cpp. In the order of their type ids: a new one comes last.
// clang-format off
#define TROUPE_TIER_MESSAGES(X)                                                                                        \
  X(tier_save) X(tier_orders) X(tier_arrived) X(tier_done) X(tier_listed) X(tier_wiring) X(tier_pins) X(pin_prefix)    \
  X(pin_answer) X(unpin_prefix) X(pin_list)
// clang-format on
TROUPE_TIER_MESSAGES(TROUPE_CROSSES)

} // namespace troupe

CAF_BEGIN_TYPE_ID_BLOCK(troupe_tiers, caf::id_block::troupe_ring::end + 100)
#define TROUPE_NUMBERED(type) CAF_ADD_TYPE_ID(troupe_tiers, (troupe::type))
TROUPE_TIER_MESSAGES(TROUPE_NUMBERED)
#undef TROUPE_NUMBERED
CAF_ADD_ATOM(troupe_tiers, troupe, pins_atom, "pins")
CAF_ADD_ATOM(troupe_tiers, troupe, flush_atom, "flush")
CAF_END_TYPE_ID_BLOCK(troupe_tiers)
