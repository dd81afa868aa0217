// What runs in the next step: the queue, the running sequences, their slots and block reservations. Knows no CAF.
// The parts: wait_queue (who starts), prefill_share (which prompts advance), step_cost (how many rows fit into a step),
// draft_policy (how many drafts are verified).
#pragma once

#include "actors/batch_state.h"
#include "actors/draft_policy.h"
#include "actors/messages.h"
#include "actors/prefill_share.h"
#include "actors/queue_limit.h"
#include "actors/step_cost.h"
#include "actors/wait_queue.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe {

// Invariant: every running sequence has one slot of its own and blocks reserved for the positions it has, and for all
// it may ever have unless `overcommit` is set: then what was started may be parked, of which its client sees a pause.
class batch_policy {
public:
  using time = std::chrono::steady_clock::time_point;

  explicit batch_policy(const batch_limits&);

  // Takes the turn into the queue, all its sequences or none. A value: why it is refused (api.md 2.5).
  std::optional<api_error> admit(turn_admit turn, time now);
  // Each ends at once here; `ended` of the next plan tells the others. Unknown ids are fine: an end may cross another.
  void cancel(turn_id);
  void stop(sequence_id);
  // A refused sequence whose images are already on the ranks: the next plan says that it ended.
  void forget(sequence_id id) { ended_.push_back({id, -1, 0}); }
  // Takes out the turns that have waited longer than they may, of those that `never_ran`; why, for each.
  std::vector<std::pair<turn_id, api_error>> expire(time now, const std::function<bool(turn_id)>& never_ran);
  void set_paused(turn_id, bool paused);
  void set_max_drafts(int32_t n) { drafts_.set_max(n); }
  bool has_weak_drafts() const { return drafts_.is_weak(); } // see draft_belief
  void refuse_new() { draining_ = true; }
  // Ends everything with this failure.
  void fail_all(const std::string& why, int32_t status, std::vector<accepted_tokens>& out);

  // True when a plan would say something: rows to run or sequences that ended.
  bool has_step(time now);
  // Decoding sequences first, one row and its drafts each, then chunks of prompts. Precondition: the previous plan was
  // answered.
  step_plan plan(time now);
  // Takes a step's results: what each sequence gained, and which ended. Sequences that ended meanwhile are ignored.
  void accept(step_result&&, time now, std::vector<accepted_tokens>& out);
  // Sequences whose first rows have run since the last call: their cached tokens are known, tokens are left out.
  std::vector<accepted_tokens> take_begun() { return std::exchange(begun_, {}); }
  // What was looked up since the last call: by prompts that came first, and by those that came back after a parking or
  // a restart, which count among the former once.
  bool has_lookups() const { return lookups_.n_asked + returns_.n_asked > 0; }
  cache_lookups take_lookups() { return std::exchange(lookups_, {}); }
  cache_lookups take_returns() { return std::exchange(returns_, {}); }

  int64_t n_running() const { return n_running_; }      // sequences
  int64_t n_waiting() const { return waiting_.size(); } // turns, parked ones included
  int64_t n_parkings() const { return n_parkings_; }    // so far
  int64_t n_paused() const { return n_paused_; }
  int64_t n_blocks_reserved() const { return n_reserved_; }
  double mean_turn_s() const { return mean_turn_s_; } // of those that ended; 0: none has
  bool is_idle() const { return running_.empty() && waiting_.empty(); }
  bool is_draining() const { return draining_; }
  std::vector<sequence_id> with_images() const; // live sequences that have any, waiting ones too
  // Ended sequences by end_cause; `none`: cancelled or stopped by fan_out.
  const std::array<int64_t, 5>& n_ended() const { return n_ended_; }

private:
  using sequence = batch_sequence;
  using turn = batch_turn;
  using turns = batch_turns;
  struct step {                                    // the one in flight
    int64_t n_decode_rows = 0, n_prefill_rows = 0; // drafts among the former
    bool is_sound = true;                          // all its rows ran, so its cost can be learned from
  };

  int64_t blocks_for(int64_t n_tokens) const;
  int64_t blocks_to_start(const sequence&) const;
  bool fits(const turn&, int64_t n_held) const;
  void release(sequence&);
  int64_t blocks_held() const;
  int64_t grow(int64_t n_more, bool is_asked);
  void make_room();
  bool park_paused(int64_t n_held_now);
  void park(turns::iterator);
  void start_turns(time now);
  void end_sequence(turns::iterator, sequence&, end_cause);
  void correct_end(const sequence_result&);
  void drop_turn(turns::iterator);
  void plan_decode(step_plan&);
  int64_t find_prompts();
  void plan_prefill(step_plan&, int64_t budget);
  void plan_drafts(step_plan&, int64_t n_prompt_rows);
  void ask_for_drafts(step_plan&);
  void take_drafts(sequence&, sequence_result&);
  void note_lookup(const sequence&, const sequence_result&);
  void learn_step(const step_result&, time now);
  void fetch(const step_result&);
  void plan_rows(step_plan&, const turn&, sequence&, int64_t n_rows);
  void accept_tokens(sequence_result&, turns::iterator, sequence&, time now, std::vector<accepted_tokens>& out);
  queue_view view(int64_t position, time now) const;

  batch_limits limits_;
  wait_queue waiting_;
  turns running_;
  std::unordered_map<turn_id, turns::iterator> by_turn_;
  std::unordered_map<sequence_id, std::pair<turns::iterator, size_t>> by_sequence_;
  std::vector<int32_t> free_slots_;
  std::vector<sequence_end> ended_;    // not told yet
  std::vector<accepted_tokens> begun_; // the same
  cache_lookups lookups_, returns_;
  int64_t n_reserved_ = 0, n_running_ = 0, n_parkings_ = 0, n_paused_ = 0;
  std::array<int64_t, 5> n_ended_{};
  draft_policy drafts_;
  draft_policy::measured shape_; // of the plan that is out
  time planned_at_{};
  double mean_turn_s_ = 0; // moving average of started to ended
  bool draining_ = false;
  step step_;
  step_cost cost_;
  prefill_share share_;
  std::vector<prefill_share::candidate> candidates_; // kept for their memory
  std::vector<draft_policy::offer> offers_;
  std::vector<draft_policy::request> requests_;
  std::vector<planned_rows*> asked_; // of each request
  std::vector<int32_t> judged_;
  std::vector<std::pair<const turn*, size_t>> coming_; // of fetch
};

} // namespace troupe
