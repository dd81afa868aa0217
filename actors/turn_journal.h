// What a restart needs of every turn in flight: how it began, and every token that was on its way to the client. The
// records of journal; knows no CAF.                                                             Design section 3.
#pragma once

#include "actors/messages.h"

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

namespace troupe {

// Invariant: a turn has one record from begin() to forget(), whatever its client, its tokens or its ranks do.
class turn_journal {
public:
  turn_journal() = default;
  turn_journal(const turn_journal&) = delete; // it points into itself
  turn_journal& operator=(const turn_journal&) = delete;

  // A turn that was in the ring when it broke so often, and has gained nothing in between, is ended: it may be the
  // cause.
  static constexpr int32_t max_losses = 3;

  // False: the turn is known already.
  bool begin(const turn_begin&);
  void say(const tokens_accepted&); // what is not known is ignored
  void stop(sequence_id);           // it has ended short of what the engine would say
  void cancel(turn_id);
  void fail(turn_id, const api_error&);
  void forget(turn_id);
  void mark_images(turn_id, uint64_t ranks); // these ranks have its images
  void mark_admitted(turn_id);               // the scheduler has been told of it once

  // The ring was lost. Turns that have now lost it too often, in order.
  std::vector<turn_id> lose_epoch();

  // Questions a restart asks. Turns in the order of their ids, which is the order they came in.
  std::vector<turn_id> turns() const;
  bool has_images(turn_id) const;
  uint64_t images_at(turn_id) const; // the ranks that have them; 0: none yet
  bool is_cancelled(turn_id) const;
  std::optional<api_error> failure(turn_id) const;
  // It has lost the ring more than once without a token in between, and no token has come since.
  bool is_suspect(turn_id) const;
  // Sequences that have not ended, with what they have generated. nullopt: there is nothing left to run.
  std::optional<turn_admit> to_admit(turn_id) const;
  turn_replayed to_replay(turn_id) const;

  size_t n_turns() const { return turns_.size(); }
  int64_t n_tokens() const { return n_tokens_; } // held in all records

private:
  struct choice {
    std::vector<int32_t> ids;         // without their log-probabilities, where nobody asked for them
    std::vector<sampled_token> whole; // or with them
    accepted_tokens sums;             // cached_tokens, queue_us, drafts; how it ended
    int64_t n_cached = -1;            // what its prompt found when it was first admitted; -1: unknown
    bool has_begun = false, is_stopped = false;
    int64_t n_tokens() const { return static_cast<int64_t>(ids.size() + whole.size()); }
  };
  struct record {
    turn_open open;
    turn_admit admit;
    std::vector<choice> choices; // parallel to admit.sequences
    uint64_t images_at = 0;
    int32_t n_losses = 0;
    bool is_cancelled = false, was_admitted = false;
    bool is_in_ring = false, has_gained = false; // in this epoch
    std::optional<api_error> failure;
  };
  const record* find(turn_id) const;
  choice* find(sequence_id);

  std::map<turn_id, record> turns_;
  std::unordered_map<sequence_id, std::pair<record*, size_t>> sequences_; // of turns_, whose places do not change
  int64_t n_tokens_ = 0;
};

} // namespace troupe
