// Turns a step plan into a placed step: blocks, prefix hits, snapshots to save and to drop. The decisions of kv_cache;
// knows no CAF.                                                                               Design section 5.
#pragma once

#include "actors/block_pool.h"
#include "actors/messages.h"
#include "actors/prefix_index.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe {

struct kv_cache_config {
  int64_t n_blocks = 0, block_tokens = 64;
  // Prefix cache. It is on when at least one snapshot fits its budget.
  int64_t snapshot_bytes = 0;        // of one, at most
  int64_t snapshot_memory_bytes = 0; // of all, on each rank
  int64_t snapshot_interval = 4096;  // tokens; 0: none of that kind
  int64_t snapshot_slack = 0;        // positions a slot may be ahead of a snapshot
  int64_t tail_tokens = -1;          // of prefill mode tail; -1: exact
  std::string fingerprint;
  // Tiers below the device, of each rank.
  int64_t block_bytes = 0;                         // of one
  int64_t host_cache_bytes = 0;                    // blocks in host memory
  int64_t disk_cache_bytes = 0;                    // 0: no files
  int64_t disk_min_tokens = 512;                   // of a prefix that is worth writing
  int64_t disk_bytes_per_hour = int64_t{64} << 30; // written at most
  int64_t disk_queue_bytes = int64_t{64} << 20;    // on their way to disk at most
  // Contexts of so many tokens that stay cached at once, each with snapshots at the ends of its prompt and of a reply,
  // and at the intervals.
  int64_t n_contexts(int64_t n_tokens) const {
    const int64_t of_each = 2 + (snapshot_interval > 0 ? n_tokens / snapshot_interval : 0);
    const int64_t by_snapshots = snapshot_bytes > 0 ? snapshot_memory_bytes / snapshot_bytes / of_each : 0;
    return std::min(by_snapshots, (n_blocks + n_slots()) / ((n_tokens + block_tokens - 1) / block_tokens));
  }
  int64_t n_slots() const { return block_bytes > 0 ? host_cache_bytes / block_bytes : 0; }
};

class kv_ledger {
public:
  using time = std::chrono::steady_clock::time_point;
  explicit kv_ledger(const kv_cache_config&);

  // Precondition: steps come in order; the scheduler has reserved the blocks of all that is started.
  step_placed place(step_plan&&, time now = {});
  // The step that the plan gives would do nothing but wait for the disk.
  bool must_wait(const step_plan&) const;
  // What the ranks' disks did with entries, each rank for itself: an entry counts when all have it.
  void read_done(entry_id, bool ok);
  void write_done(entry_id, bool ok, time now = {});
  // What is on disk already, of all ranks alike. Entries that came into being before are never lost.
  // `strays` are removed, pins take their snapshots.
  void restore(std::vector<prefix_index::stored> found, std::span<const entry_id> strays, entry_id next,
               const std::vector<std::pair<std::string, entry_id>>& pins = {});
  // Pins of prefix_index, in tokens. On disk a pinned prefix is written whatever its length.
  std::optional<std::string> pin(const std::string& name, const miss_question& what);
  bool unpin(const std::string& name) { return index_.unpin_name(name); }
  // Nothing is written before this, since entries of earlier runs are not known yet.
  bool can_write() const { return can_write_; }
  miss_answer explain(const miss_question&) const;
  // The scheduler was replaced: every sequence ends, as of before the last step, whose result nobody has. Their
  // snapshots ride in the next placed step.
  void end_all();
  // What is in flight, for an engram_fetch that is new.
  std::vector<sequence_tail> in_flight() const;

  const block_pool& pool() const { return pool_; }
  const prefix_index& index() const { return index_; }

private:
  struct sequence {
    sequence_start start;
    std::vector<symbol> symbols; // of the prompt, then of what decode fed
    int64_t n_done = 0;          // positions planned so far
    int64_t n_before = 0;        // the same when this step began
    int64_t n_sure = 0;          // of them, those that are no guesses, or guesses that came true
    int64_t n_hit = 0;           // of them, those it found
    int64_t n_noted = 0;         // positions up to the last snapshot that was given to the disk, or the hit
    int64_t n_kept = 0;          // full blocks given to the index
    int64_t floor = 0, fork = 0; // of the late layers' rows; where others left this prefix, 0: nowhere
    bool has_begun = false;
    std::vector<int32_t> recent; // the last tokens fed: those of the newest step and a few before it
    snapshot_id awaited{};       // on its way from disk
    int32_t n_fetches = 0;
  };

  void finish(const sequence_end&, step_placed&);
  void open(sequence_start&&);
  bool place_rows(planned_rows&, step_placed&);
  bool is_waiting(const sequence& s) const { return !s.has_begun && index_.is_loading(s.awaited); }
  bool awaits_disk(sequence&);
  bool begin(sequence&, planned_rows&, step_placed&);
  bool take_blocks(sequence&, planned_rows&, const prefix_index::hit&, step_placed&);
  bool has_leader(const sequence&, int64_t n_found) const;
  void cut(const sequence&, planned_rows&) const;
  static void remember(sequence&, const planned_rows&);
  void save_after(sequence&, const planned_rows&, step_placed&);
  void save_wanted(sequence&, int64_t sure, std::vector<snapshot_save>&);
  bool is_wanted(const sequence&, int64_t n_tokens) const;
  int64_t first_wanted(const sequence&, int64_t above) const;
  int64_t late_floor(int64_t n_prompt) const;
  void note_saved(sequence&, const snapshot_save&);
  bool pays_on_disk(const sequence&, int64_t n_tokens) const;
  void write_behind(std::vector<snapshot_id>&& snapshots, time now);

  kv_cache_config config_;
  block_pool pool_;
  prefix_index index_;
  std::unordered_map<sequence_id, sequence> sequences_;
  std::vector<snapshot_save> late_saves_; // of end_all
  // Disk tier.
  std::vector<snapshot_id> to_write_; // made in the step that runs
  std::vector<snapshot_id> later_;    // could not be written yet
  bool can_write_ = false;
  time no_writes_before_{}, hour_began_{};
  int64_t n_written_in_hour_ = 0;
};

} // namespace troupe
