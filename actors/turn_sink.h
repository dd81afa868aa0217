// Where the text of a turn goes: lent to fan_out when the turn is admitted, implemented by net/outbox and by tests.
// The one shared_ptr that may ride in a message, inside the front process only (style.md section 3).
#pragma once

#include "model/sampling.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// Counts of one turn (all choices together), api.md 2.3.
struct turn_usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0, reasoning_tokens = 0;
  int64_t accepted_drafts = 0, rejected_drafts = 0; // guesses that became output, and the others that were verified
};

enum class finish_cause : uint8_t { stop, length, tool_calls };

// One piece of output of one choice. Views are valid during the push only.
struct turn_delta {
  enum class kind : uint8_t { reasoning, content, call, arguments, end };
  kind what = kind::content;
  int32_t choice = 0;
  std::string_view text;                   // reasoning, content, arguments: the fragment; call: the name
  int32_t call_index = 0;                  // call, arguments
  finish_cause cause = finish_cause::stop; // end
  std::string_view stop_string;            // end: the matched stop string, empty if none
  int32_t stop_token = -1;                 // end: the matched id of stop_token_ids
  // Tokens whose bytes this delta releases, in order; each token rides exactly once. Tokens that made no text ride with
  // the next delta or with `end`. With their log-probabilities where asked for.
  std::span<const sampled_token> tokens;
  turn_usage usage; // of the turn so far; on the last choice's `end` it is final
};

// An error a client may see: api.md section 9.
struct api_error {
  int32_t status = 500;
  std::string type;           // "BadRequestError"
  std::string message;        // no paths, addresses or stacks
  std::string param;          // empty: null
  int32_t retry_after_s = 0;  // 0: no header
  int32_t queue_position = 0; // of a turn that the queue has no room for, 1 is next to start; 0: not about the queue
};

// How far the output of a turn has got. Whoever pushes keeps it up to date, so that a new fan_out can go on from there.
struct turn_progress {
  struct choice {
    int64_t n_tokens = 0;   // that have ridden with a delta
    int64_t n_counted = 0;  // that the counters have
    bool has_begun = false; // the counters have what its prompt found cached
    bool has_ended = false;
  };
  bool is_open = false;
  std::vector<choice> choices; // by index; may be short
};

class turn_sink {
public:
  enum class state : uint8_t { ok, full, closed };
  virtual ~turn_sink() = default;
  // The turn was admitted: every check that can refuse it has passed. Before any push. Expanded prompt ids, if asked
  // for.
  virtual void open(std::span<const int32_t> prompt_ids) = 0;
  // The rendered prompt, where it was asked for: just before open.
  virtual void show_prompt(std::string_view) {}
  // Deltas of one step, in order. Any thread, never blocks. `full`: taken, but stop producing until resumed; `closed`:
  // gone.
  virtual state push(std::span<const turn_delta> deltas) = 0;
  // Says something that is no part of the answer (a comment, where the stream has them). May be dropped.
  virtual void note(std::string_view) {}
  turn_progress sent;
  // The turn cannot go on. Before open: an HTTP error; after: an error event. Last call either way.
  virtual void fail(const api_error&) = 0;
};

} // namespace troupe
