// What batch_policy remembers of a turn and its sequences, and the limits it plans within. Knows no CAF.
#pragma once

#include "actors/draft_policy.h"
#include "actors/messages.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <list>
#include <vector>

namespace troupe {

struct batch_limits {
  int32_t max_running = 64; // sequences, one slot each
  int32_t max_queue = 1024; // waiting turns
  int32_t max_wait_s = 0;   // of a turn, before it starts; 0: any time
  int32_t chunk_tokens = 512;
  int64_t n_blocks = 0, block_tokens = 64;
  int32_t eos = 1;
  draft_limits drafts;
  int32_t max_gap_ms = 250; // between two steps of a stream, as far as rows of prompts decide it
  // A turn starts when its prompts and `start_margin` tokens fit beside the same margin of those that run, not all it
  // may ever generate. When blocks run out, turns are parked: their blocks go to the prefix cache, and they come back
  // with what they generated as a part of their prompt. Exact where prefill and decode give the same bits.
  bool overcommit = false;
  int64_t start_margin() const { return 4 * block_tokens; }
  // Rows of one step at most: every running sequence can decode, and a prefill always advances.
  int32_t max_rows() const { return chunk_tokens > max_running ? chunk_tokens : max_running + 1; }
  // Drafts come on top, so that they never take a row from a prompt.
  int32_t max_rows_and_drafts() const { return max_rows() + max_running * drafts.block; }
};

// Classes of api.md 2.1, `priority`: 0 interactive, 1 batch, 2 background.
inline constexpr int32_t n_classes = 3;
inline int32_t class_of(int32_t priority) { return priority <= 0 ? 0 : priority <= 9 ? 1 : 2; }

// What the prefix cache had for prompts that began to run.
struct cache_lookups {
  int64_t n_asked = 0, n_found = 0;                        // tokens
  int64_t from_device = 0, from_memory = 0, from_disk = 0; // of those found
};

struct batch_sequence {
  sequence_admit what;
  int32_t slot = -1;
  bool live = true, told = false;      // told: its sequence_start has gone out
  int64_t n_done = 0, n_generated = 0; // positions computed, as results say; tokens gained
  int32_t last = 0;                    // the token the next decode row feeds
  sequence_drafts drafts;              // behind `last`
  int64_t n_most = 0, n_blocks = 0;    // positions it may ever have; blocks reserved for it
  std::vector<int32_t> generated;      // tokens gained, of which the first n_resumed are the end of what.prompt
  int64_t n_resumed = 0;
  int64_t n_cached = -1; // of the prompt, found when its first rows ran; -1: they have not
  // prefill_share's: rows it may still take in this visit, its place in the round, plans since it last had rows.
  int64_t deficit = 0;
  uint64_t visit = 0;
  int32_t n_idle = 0;

  int64_t n_left() const { return static_cast<int64_t>(what.prompt.size()) - n_done; }
};

struct batch_turn {
  using time = std::chrono::steady_clock::time_point;
  turn_id id{};
  std::vector<batch_sequence> sequences;
  int64_t n_live = 0;
  int32_t rank = 0; // its class
  bool paused = false, is_started = false, is_parked = false;
  int32_t n_parked = 0; // times, while its reader was not behind
  int64_t n_gained = 0; // tokens since it last started
  time queued_at{}, started_at{};
  // wait_queue's: what orders it, when it was first passed by, and how often.
  time due{}, passed_at{};
  int32_t n_passed = 0;
};
// Each two parkings raise its class, so that none is put off for ever.
inline int32_t class_now(const batch_turn& t) { return t.rank > t.n_parked / 2 ? t.rank - t.n_parked / 2 : 0; }
using batch_turns = std::list<batch_turn>; // stable addresses; a turn moves between lists by splice

} // namespace troupe
