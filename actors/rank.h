// One tensor-parallel rank: its thread owns a backend, the weights, the state of its sequences and their sampling.
#pragma once

#include "actors/counters.h"
#include "actors/messages.h"
#include "actors/staging.h"
#include "actors/tier_disk.h"
#include "model/model.h"

#include <caf/fwd.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

namespace troupe {

class collective;

// load_atom: makes the parts on the rank's own thread; an error says what failed. A wiring ends every sequence; weights
// and images stay, and so do snapshots unless its `cache` is new. A step that comes again is dropped. A step whose
// side-table rows do not come in time fails its sequences with 503.
using rank_actor =
    caf::typed_actor<caf::reacts_to<step_ready>, caf::reacts_to<image_piece>, caf::reacts_to<wiring>,
                     caf::reacts_to<tier_arrived>, caf::reacts_to<tier_done>, caf::replies_to<load_atom>::with<bool>>;

struct rank_parts {
  rank_parts();
  rank_parts(rank_parts&&) noexcept;
  rank_parts& operator=(rank_parts&&) noexcept;
  ~rank_parts();
  std::unique_ptr<collective> group; // null: one rank
  std::unique_ptr<backend> device;   // may be null in tests
  std::unique_ptr<model> weights;    // goes first
};

// How long a step waits for its side-table rows. Shorter than a collective waits for a rank, so that those of a group
// hear of it. A read that hangs is given up sooner by the reader (storage/read_ring.h), and the steps behind it go on;
// what hangs elsewhere, say in opening a file, holds them up until it ends.
inline constexpr std::chrono::milliseconds rows_deadline{30000};

struct rank_config {
  int32_t rank = 0, n_ranks = 1;
  std::function<rank_parts()> make; // throws what load_atom answers with
  std::vector<int32_t> suppressed;  // chat.md 5.7
  int32_t eos = 1;
  bool drafts = false; // every rank samples then: all must draft behind the same tokens
  std::chrono::milliseconds deadline = rows_deadline;
};

// `records`: the staging buffer that this rank's engram_fetch fills.
rank_actor spawn_rank(caf::actor_system&, rank_config, std::shared_ptr<const staging_buffer> records,
                      std::shared_ptr<counters>, bool detached = true);

// A rank with no model (`--backend null`): every decoding sequence gets a token of null_text at a set rate.
struct null_rank_config {
  std::vector<int32_t> text;        // ids, repeated for ever
  double tokens_per_s = 50;         // of each sequence; 0: as fast as the ring turns
  std::vector<int32_t> stamps = {}; // null_text.h; empty: the text is said
};
rank_actor spawn_null_rank(caf::actor_system&, null_rank_config, std::shared_ptr<counters>, bool detached = true);

} // namespace troupe
