// Every message between actors, in the order of a request's path (style.md section 3), and their type ids.
// Plain values: no pointer, no device address. The one exception is turn_open, which lends a turn_sink inside the
// front. File order: the path, then what goes beside it, then what a restart needs.
#pragma once

#include "actors/turn_sink.h"
#include "model/chat_types.h"
#include "model/sampling.h"

#include <caf/actor_control_block.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/type_id.hpp>
#include <caf/typed_actor.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

constexpr size_t piece_bytes = 1 << 20; // of an image or an entry of the disk tier in one message; none is larger

// Ids: distinct types, so that one cannot be passed for another.
enum class turn_id : uint64_t {};
enum class sequence_id : uint64_t {};
enum class block_id : int32_t {};
enum class snapshot_id : uint64_t {}; // bytes of a slot's window state, kept by each rank

// 2. connection -> request (front only): a parsed and validated request.
struct chat_request {
  turn_id turn{};
  std::string id;      // X-Request-Id
  bool is_chat = true; // false: /v1/completions, `prompts` instead of `chat`
  chat_input chat;
  std::vector<std::string> image_files;         // encoded bytes, indexed by content_part::image
  std::vector<std::string> prompts;             // completions: texts ...
  std::vector<std::vector<int32_t>> prompt_ids; // ... or ids; one of the two is empty
  int32_t n = 1;                                // choices a prompt
  int64_t max_tokens = -1;                      // -1: the client set none
  int64_t default_max_tokens = -1;              // then: at most so many of what the context leaves; -1: all of it
  sampling_params sampling;                     // seed is set; choice is filled per sequence
  std::vector<std::string> stop;
  bool include_stop_in_output = false;
  bool skip_special_tokens = true;
  int64_t truncate_prompt_tokens = -2; // -2: absent, -1: fit the context, n: keep the last n
  bool wants_prompt_ids = false, wants_prompt_text = false;
  bool echo = false; // completions: prompt text first
  int32_t priority = 0;
  std::string cache_salt;
};

// request -> journal -> fan_out (front only): before the first token can come.
struct turn_open {
  turn_id turn{};
  struct sequence {
    sequence_id id{};
    int32_t choice = 0;
    std::string echo; // completions with echo: the prompt text, the first content of the choice
  };
  std::vector<sequence> sequences;
  std::shared_ptr<turn_sink> sink;
  parser_start start = parser_start::content;
  bool raw = false; // completions: no parsing
  bool tools_active = false, named_tool = false;
  bool parallel_tool_calls = true, skip_special_tokens = true, include_stop = false;
  int32_t min_tokens = 0;
  std::vector<chat_tool> tools;
  std::vector<std::string> stop;
  int64_t prompt_tokens = 0;
  std::vector<int32_t> prompt_ids; // expanded, for sink->open; empty when not asked for
  std::string prompt_text;         // for sink->show_prompt; empty when not asked for
};

// Pixels of an image, in pieces of at most 1 MiB, before the step that needs them: request -> journal -> every rank.
struct image_piece {
  std::vector<sequence_id> sequences; // who holds the image; dropped when all have ended
  int32_t image = 0;                  // index among the sequence's images
  uint64_t hash = 0;
  int32_t width = 0, height = 0, grid_h = 0, grid_w = 0;
  int64_t offset = 0; // of `bytes` in the width * height * 3 RGB bytes
  std::vector<uint8_t> bytes;
};

struct image_place {
  int64_t start = 0; // position of the span's START token
  int32_t grid_h = 0, grid_w = 0, image = 0;
  uint64_t hash = 0; // of its pixels
};

// 3. request -> journal -> scheduler.
struct sequence_admit {
  turn_id turn{};
  sequence_id id{};
  int32_t priority = 0;
  std::vector<int32_t> prompt; // expanded ids
  std::vector<image_place> images;
  int64_t max_tokens = 0; // generated tokens at most, >= 1
  sampling_params sampling;
  std::string cache_salt;
  bool shares_prompt = false;     // with an earlier choice of its turn: usage counts that prompt, and its hits, once
  std::vector<int32_t> generated; // what came after the prompt before a restart; empty for a new sequence
  int64_t n_cached = -1;          // of the prompt, found before a restart: what its client is told; -1: not known
};
// Sequences of one turn are admitted together or not at all.
struct turn_admit {
  turn_id turn{};
  std::vector<sequence_admit> sequences;
  bool is_resumed = false; // it was let in before a restart: no limit refuses it now
  uint64_t epoch = 0;      // as the journal knows it
};
// request -> journal (front only): both halves of a turn, recorded before they go on.
struct turn_begin {
  turn_open open;
  turn_admit admit;
};
// journal -> request: send the pixels of the turn's images; request -> journal: they are on the way to the ranks.
// `ranks`: which ones (see wiring). The turn is admitted when the newest ranks have been sent theirs.
struct images_wanted {
  turn_id turn{};
  uint64_t ranks = 0;
};
struct images_sent {
  turn_id turn{};
  uint64_t ranks = 0;
};
// scheduler -> request and fan_out: admitted; fan_out opens the sink before the first token can come.
struct turn_queued {
  turn_id turn{};
};
// scheduler -> request: the other answer.
struct turn_refused {
  turn_id turn{};
  api_error why;
};

// 4. scheduler -> kv_cache.
struct sequence_start { // rides in the first plan of a sequence
  sequence_id id{};
  int32_t slot = 0;
  int64_t n_prompt = 0;
  std::vector<image_place> images;
  sampling_params sampling;
  std::string cache_salt;
  turn_id turn{};
  std::vector<int32_t> prompt;    // whole; up to kv_cache only, which sends the ranks what they need of it
  std::vector<int32_t> generated; // the end of `prompt` that the sequence generated before it was parked
  int64_t n_asked() const { return n_prompt - static_cast<int64_t>(generated.size()); } // what the client sent
};
struct planned_rows {
  sequence_id id{};
  int32_t slot = 0;
  int64_t start = 0; // position of tokens[0]
  std::vector<int32_t> tokens;
  bool samples = false;      // the rows from the last token that is no draft give tokens
  int32_t n_drafts = 0;      // of `tokens`, the last ones: guesses to verify; nothing depends on them but this step
  bool wants_drafts = false; // guess what follows the newest token of this step
};
struct sequence_end {
  sequence_id id{};
  int32_t slot = -1;      // -1: never placed
  int64_t n_tokens = 0;   // positions whose state is sound; what lies beyond must not be used again
  bool is_parked = false; // it will start again: its images stay
};
struct step_plan {
  uint64_t epoch = 0, step = 0;
  std::vector<sequence_start> started;
  std::vector<planned_rows> rows;
  std::vector<sequence_end> ended; // their blocks, slots and images are free from this step on
  // Once after a restart of the scheduler: every turn that goes on is admitted again, and of the images that ranks have
  // from before it only those of `with_images` are still wanted.
  bool ends_resume = false;
  std::vector<sequence_id> with_images;
};

// 5. kv_cache -> engram_fetch[r], for every rank r.
struct new_blocks {
  sequence_id id{};
  std::vector<block_id> blocks; // appended to the sequence's table
};
struct cached_prefix { // rides with the first rows of a sequence
  sequence_id id{};
  int64_t n_tokens = 0, from_memory = 0, from_disk = 0; // found in the prefix cache; of them, brought in from there
  snapshot_id snapshot{};      // to be put into the sequence's slot before the rows run; none without n_tokens
  std::vector<int32_t> before; // the last of these tokens, for the side tables
  std::vector<int32_t> seen;   // distinct ids among them, where a penalty counts the prompt
};
// Blocks of the device and slots of a rank's host memory, in the order in which they are to be done.
struct block_move {
  enum class kind : uint8_t { copy, out, in }; // block to block, block to slot, slot to block
  kind what = kind::copy;
  int32_t from = 0, to = 0;
};
struct snapshot_save {
  int32_t slot = 0;
  int64_t n_tokens = 0;
  snapshot_id snapshot{};
};
// An entry of the disk tier: a full block, or a snapshot with the part of a block that it stands on.
enum class entry_id : uint64_t {}; // never used twice; 0: none
struct tier_write {
  entry_id entry{}, parent{};
  int64_t n_tokens = 0, floor = 0;
  std::string salt;
  std::vector<uint64_t> symbols; // behind the parent
  snapshot_id snapshot{};        // 0: a block
  int32_t block = -1, slot = -1; // where the block's bytes are; of a snapshot: of its part of one, or none
};
struct tier_read {
  entry_id entry{};
  snapshot_id snapshot{}; // 0: a block
  int32_t slot = -1;      // where the block's bytes go
  int64_t n_tokens = 0;   // of the snapshot
};
// A rank works through it in this order: saves_before, ended, started, moves, reads, cached, rows, saves_after, writes,
// dropped, removes. Reads, writes and removes only begin then: tier_disk does them.
struct step_placed {
  step_plan plan; // a sequence may have fewer rows than were planned, from a later position, or none
  std::vector<new_blocks> blocks;
  std::vector<cached_prefix> cached;
  std::vector<snapshot_save> saves_before, saves_after;
  std::vector<block_move> moves;
  std::vector<snapshot_id> dropped;
  std::vector<tier_read> reads;
  std::vector<tier_write> writes;
  std::vector<entry_id> removes;
};

// Why one sequence cannot go on; it does not touch the others of its step.
struct sequence_failure {
  sequence_id id{};
  std::string why;
  int32_t status = 500; // HTTP
};

// 6. engram_fetch[r] -> rank[r]: the step can begin. Its side-table rows come through the lent staging buffer, perhaps
// later.
struct step_ready {
  step_placed placed;
};

// 7. rank 0 -> scheduler.
struct sequence_result {
  sequence_id id{};
  std::vector<sampled_token> tokens;                         // empty for a prefill chunk that is not the last
  int64_t cached_tokens = 0, from_memory = 0, from_disk = 0; // as in cached_prefix
  std::string failure;                                       // not empty: this sequence cannot go on
  int32_t status = 500;                                      // HTTP status of the failure
  int64_t n_tokens = 0;                                      // positions computed so far, cached ones included
  int32_t n_drafts = 0, n_accepted = 0; // verified in this step; tokens[0, n_accepted) were among them
  std::vector<int32_t> next_drafts;     // guesses behind the last of `tokens`, empty where none were wanted
  std::vector<float> confidence;        // of each, given that those before it are right
};
struct step_result {
  uint64_t epoch = 0, step = 0;
  std::vector<sequence_result> results;
  int64_t compute_us = 0, draft_us = 0; // draft_us: part of compute_us
};

// 8. scheduler -> fan_out: one message a step.
enum class end_cause : uint8_t { none, eos, stop_token, length, failed };
struct accepted_tokens {
  sequence_id id{};
  std::vector<sampled_token> tokens;
  int64_t cached_tokens = 0; // of the first one of a sequence
  int64_t queue_us = 0;      // of the first one of a sequence: from admission to its first step
  end_cause end = end_cause::none;
  std::string failure;
  int32_t status = 500;                 // HTTP status of the failure
  int32_t n_drafts = 0, n_accepted = 0; // verified in this step; tokens[0, n_accepted) were among them
};
// And fan_out -> journal, before any of it goes to a sink. scheduler -> journal: without tokens, of sequences whose
// first rows have run, so that what they found cached is known whoever dies next.
struct tokens_accepted {
  uint64_t epoch = 0, step = 0;
  std::vector<accepted_tokens> sequences;
  uint64_t number = 0; // 1, 2, .. of the epoch on their way to fan_out
};
// fan_out -> scheduler, now and then: tokens_accepted up to this number are done.
struct tokens_taken {
  uint64_t epoch = 0, number = 0;
};

// fan_out -> scheduler and journal: a stop string matched or a tool block closed; fan_out has ended the sequence.
struct turn_stopped {
  sequence_id id{};
};
// fan_out -> scheduler: the sink of these sequences is full. Owner of the sink -> journal -> fan_out -> scheduler: it
// is drained again.
struct stream_paused {
  turn_id turn{};
};
struct stream_resumed {
  turn_id turn{};
};
// connection -> request -> journal -> scheduler and fan_out; fan_out -> request when a sink is closed. The scheduler
// gets it twice, urgent and in order.
struct client_gone {
  turn_id turn{};
};
// request -> journal -> fan_out: a deadline has passed; the turn ends with this error.
struct turn_failed {
  turn_id turn{};
  api_error why;
};
// fan_out -> request: every choice has ended.
struct turn_ended {
  turn_id turn{};
  turn_usage usage;
  std::string cause; // "stop", "length", "tool_calls", "abort", "error: .."; of the log line
  int64_t queue_us = 0, first_token_us = 0, decode_us = 0; // waiting, from turn_open to the first token, and after it
};
// system -> supervisor -> scheduler: admit nothing new; turns in flight finish.
struct drain_begin {
  bool now = false; // true: end them too
  std::string why;  // what their clients read; empty: the server is stopping
};
// operator -> scheduler: verify at most this many drafts of a sequence in one step, from now on; 0: none.
struct draft_limit {
  int32_t n_tokens = 0;
};
// scheduler -> whoever asks (request with a deadline): the numbers behind /ready, /metrics and status.
struct scheduler_status {
  int64_t n_running = 0, n_waiting = 0, n_steps = 0, prompt_tokens = 0, generated_tokens = 0;
  int64_t n_blocks = 0, n_blocks_used = 0, n_refused = 0;
  std::array<int64_t, 5> n_ended{}; // by end_cause; `none`: cancelled
  bool draining = false;
};

// console -> kv_cache -> console: why a prompt would be computed again.
struct miss_question {
  std::vector<int32_t> prompt;
  std::vector<image_place> images;
  std::string cache_salt;
};
struct miss_answer {
  int64_t n_tokens = 0, n_cached = 0;
  int64_t first_differing = 0; // position of the first token that nothing cached has; n_tokens: there is none
  std::string missing;         // "nothing", "block", "evicted", "snapshot", "salt"
};

// Restarts (design section 3). supervisor -> journal, kv_cache, scheduler and fan_out, in this order; kv_cache ->
// engram_fetch[r] -> rank[r], behind all steps of older epochs. Everyone takes the handles that are its own business.
struct wiring {
  uint64_t epoch = 0; // one above the last, but for a kv_cache that is told of a new engram_fetch
  uint64_t cache = 0; // changes when cached prefixes are gone: the kv_cache or the ranks are new
  uint64_t ranks = 0; // changes when the ranks are new
  caf::strong_actor_ptr journal, scheduler, kv_cache, fan_out;
  std::vector<caf::strong_actor_ptr> engram_fetches;     // one a rank
  std::vector<caf::strong_actor_ptr> rank_actors, disks; // disks: one a rank, or none
};
// fan_out -> journal: nothing of an older epoch goes to a sink from now on.
struct epoch_begun {
  uint64_t epoch = 0;
};
// journal -> a new fan_out (front only): a turn whose output has begun. What its sink has had is not sent again.
struct turn_replayed {
  turn_open open;
  std::vector<accepted_tokens> said; // of each sequence that has any, all steps in one
};
// journal -> scheduler: every turn in flight has been admitted again.
struct turns_resumed {
  uint64_t epoch = 0;
};
// kv_cache -> a new engram_fetch: where the one before it stopped. The step after `step` comes next, perhaps again.
struct sequence_tail { // of a sequence in flight
  sequence_id id{};
  std::vector<image_place> images;
  std::vector<int32_t> tokens; // its last ones, those of its newest rows and a few before them
  int64_t end = 0;             // position behind the last
};
struct fetch_resumed {
  uint64_t epoch = 0, step = 0;
  std::vector<sequence_tail> sequences;
};

// connection -> prepare -> connection: questions about text that run nothing (/render, /tokenize, /detokenize).
struct text_question {
  enum class kind : uint8_t { render, tokenize_text, tokenize_chat, detokenize };
  kind what = kind::render;
  chat_request request;             // render, tokenize_chat; `prompts` / `prompt_ids` for completions
  std::string text;                 // tokenize_text
  std::vector<int32_t> ids;         // detokenize
  bool wants_token_strings = false; // raw vocabulary spelling
  bool expand_images = false;       // render always expands
};
struct text_answer {
  std::string text; // rendered prompt or decoded text
  std::vector<int32_t> ids;
  std::vector<std::string> token_strings;
  std::vector<int32_t> images; // indices of the request's images in prompt order
  parser_start start = parser_start::content;
  api_error failure{0, {}, {}, {}, 0}; // status 0: none
};

} // namespace troupe

#include "actors/wire.h" // inspect() of each, and the type ids
