// What runs in the next step: the queue, the running sequences, their slots and block reservations. Knows no CAF.
#pragma once

#include "actors/messages.h"

#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

namespace troupe {

struct batch_limits {
  int32_t max_running = 64; // sequences, one slot each
  int32_t max_queue = 1024; // waiting turns
  int32_t chunk_tokens = 512;
  int64_t n_blocks = 0, block_tokens = 64;
  int32_t eos = 1;
  // Rows of one step at most: every running sequence can decode, and a prefill always advances.
  int32_t max_rows() const { return chunk_tokens > max_running ? chunk_tokens : max_running + 1; }
};

// Invariant: every running sequence has one slot of its own and blocks reserved for its prompt and all tokens it may
// generate, so nothing that was started ever has to be taken back.
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
  void set_paused(turn_id, bool paused);
  void refuse_new() { draining_ = true; }
  // Ends everything with this failure.
  void fail_all(const std::string& why, int32_t status, std::vector<accepted_tokens>& out);

  // True when a plan would say something: rows to run or sequences that ended.
  bool has_step(time now);
  // Decoding sequences first, one row each, then chunks of prompts. Precondition: the previous plan was answered.
  step_plan plan(time now);
  // Takes a step's results: what each sequence gained, and which ended. Sequences that ended meanwhile are ignored.
  void accept(step_result&&, time now, std::vector<accepted_tokens>& out);

  int64_t n_running() const { return n_running_; } // sequences
  int64_t n_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t n_paused() const;
  int64_t n_blocks_reserved() const { return n_reserved_; }
  bool is_idle() const { return running_.empty() && waiting_.empty(); }
  bool is_draining() const { return draining_; }
  // Ended sequences by end_cause; `none`: cancelled or stopped by fan_out.
  const std::array<int64_t, 5>& n_ended() const { return n_ended_; }

private:
  struct sequence {
    sequence_admit what;
    int32_t slot = -1;
    bool live = true, told = false;      // told: its sequence_start has gone out
    int64_t n_done = 0, n_generated = 0; // positions computed, as results say; tokens gained
    int32_t last = 0;                    // the token the next decode row feeds
  };
  struct turn {
    turn_id id{};
    std::vector<sequence> sequences;
    int64_t n_live = 0, n_blocks = 0;
    int32_t rank = 0; // of its priority: 0 interactive, 1 batch, 2 background
    bool paused = false, is_started = false;
    time queued_at{}, started_at{};
  };
  using turns = std::list<turn>; // stable addresses; a turn moves between the lists by splice

  int64_t blocks_for(const sequence_admit&) const;
  void start_turns(time now);
  void end_sequence(turns::iterator, sequence&, end_cause);
  void correct_end(const sequence_result&);
  void drop_turn(turns::iterator);
  void plan_decode(step_plan&);
  void plan_prefill(step_plan&, int64_t budget);
  api_error queue_full() const;

  batch_limits limits_;
  turns waiting_, running_;
  std::unordered_map<turn_id, turns::iterator> by_turn_;
  std::unordered_map<sequence_id, std::pair<turns::iterator, size_t>> by_sequence_;
  std::vector<int32_t> free_slots_;
  std::vector<sequence_end> ended_; // not told yet
  int64_t n_reserved_ = 0, n_running_ = 0;
  std::array<int64_t, 5> n_ended_{};
  double mean_turn_s_ = 0; // moving average of started to ended
  bool draining_ = false;
};

} // namespace troupe
