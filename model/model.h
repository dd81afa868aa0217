// A model family as the actors see it: what the files say, weights on one rank, the text side, the side tables.
// A second family is a new folder under model/ and one line in model.cpp.
#pragma once

#include "gpu/backend.h"
#include "gpu/sample.h"
#include "model/chat_types.h"
#include "model/tokenizer.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

class output_parser;
struct parser_options;

// From config.json and the headers alone; cheap. Errors: std::runtime_error naming file, key, expected, found.
struct model_info {
  std::string family;  // "deepseek_v41"
  std::string name;    // of the folder
  int64_t context = 0; // tokens
  int64_t vocabulary = 0;
  int32_t bos = 0, eos = 1, pad = 2, image_token = -1;
  bool has_vision = false, has_draft = false;
  int32_t draft_block = 0;
  int64_t block_tokens = 64;
  float default_temperature = 1, default_top_p = 1; // generation_config.json
};
model_info read_model_info(const std::string& folder);

// One image span of a prompt: what the ids cannot say. Positions are of the expanded prompt.
struct image_span {
  int64_t start = 0;              // position of the START token
  int32_t grid_h = 0, grid_w = 0; // length = grid_h * (grid_w + 1) + 2                            vision.md section 1
  int32_t image = 0;              // index among the sequence's images
};

// An image ready for the vision tower: padded RGB of the planned size.
struct planned_image {
  int32_t width = 0, height = 0; // pixels, multiples of the patch size
  int32_t grid_h = 0, grid_w = 0;
  uint64_t hash = 0;        // of size and pixels (xxhash64)
  std::vector<uint8_t> rgb; // height * width * 3
  int64_t n_tokens() const { return int64_t{grid_h} * (grid_w + 1) + 2; }
};

// Rows of one sequence in one step. Spans are borrowed for the call.
struct sequence_rows {
  int32_t slot = 0;  // sequence slot: rings, pending halves, draft rings
  int64_t start = 0; // position of tokens[0]; 0 resets the slot's state
  std::span<const int32_t> tokens;
  std::span<const int32_t> blocks;        // whole block table, covers start + tokens.size() positions
  std::span<const image_span> images;     // all spans of the sequence, ascending
  std::span<const int32_t> image_handles; // per span: from take_image
  // Length of the prompt: rows below it are of the prefill class, the others of the decode class (design.md section 6);
  // prefill mode `tail` needs it too. 0: not known, all rows are of the decode class.
  int64_t n_prompt = 0;
  int32_t n_logits = 0; // logits of the last n rows are wanted
  // Only where a slot is entered at start > 0 without having run what lies before: the tokens right before `start`, as
  // many as the side tables look back on (or all of them). The model itself is given load_slot instead.
  std::span<const int32_t> before;
};

// A token just sampled: its row has not run, and what follows it is to be guessed.
struct draft_request {
  int32_t slot = 0;
  int64_t position = 0; // of `token`
  int32_t token = 0;
  bool operator==(const draft_request&) const = default;
};
// A sequence of a step that will be asked what follows it: behind the token that ends its run of right drafts.
struct draft_wish {
  size_t sequence = 0;  // of the step
  int32_t n_drafts = 0; // its last tokens, n_logits - 1 of them
};
// info().draft_block guesses for each request, in their order.
struct draft_tokens {
  std::vector<int32_t> ids;      // the most likely ones
  std::vector<float> confidence; // estimated probability that the guess is right when those before it are
};

// Steps whose rows are all generated or guessed, and rounds of guesses, by how they were launched.
struct step_counts {
  int64_t replayed = 0; // from a captured graph
  int64_t launched = 0; // operation by operation, though capture_steps was called
};

enum class prefill_mode : uint8_t { exact, tail };

struct model_options {
  std::string folder;
  int32_t max_sequences = 8; // slots
  int64_t n_blocks = 0;      // KV blocks of block_tokens tokens
  int32_t max_rows = 512;    // rows of one step
  prefill_mode prefill = prefill_mode::exact;
  int64_t tail_tokens = 128;
  bool load_draft = true, load_vision = true;
  std::optional<cache_form> caches; // nullopt: what the backend prefers
};

// The side-table rows (Engram) of one step, which may still be on their way when it begins.
class record_source {
public:
  virtual ~record_source() = default;
  // Waits until they are there: the rows of all rows of the step as table_reader::read wrote them, valid until the call
  // that asked returns. nullopt: they cannot be had; the step runs on zero bytes, and whoever gave the source throws
  // away what comes of it.
  virtual std::optional<std::span<const std::byte>> take() = 0;
};
// Rows that are there. Borrows them.
class ready_records final : public record_source {
public:
  explicit ready_records(std::span<const std::byte> records) : records_(records) {}
  std::optional<std::span<const std::byte>> take() override { return records_; }

private:
  std::span<const std::byte> records_;
};

// The weights of one rank and the state of its sequences. One thread; every rank of a group gets the same calls.
class model {
public:
  virtual ~model() = default;
  virtual const model_info& info() const = 0;
  // Takes the records once, if there are rows; see runs_ahead. Returns (sum of n_logits, vocab) f32 in host memory,
  // sequence by sequence, valid until the next call; the same on every rank.
  virtual std::span<const float> forward(std::span<const sequence_rows>, record_source&) = 0;
  std::span<const float> forward(std::span<const sequence_rows> rows, std::span<const std::byte> records) {
    ready_records ready(records);
    return forward(rows, ready);
  }
  // The same, and a token drawn for each of those rows by its rules instead of its logits; on the device where it can.
  // What `next` names may be guessed right away, without the host in between, for a draft_next that comes before the
  // next step.
  // Precondition: a row of rules for each logit wanted, in their order.
  virtual void forward_and_sample(std::span<const sequence_rows>, record_source&, const sample_batch&, sampled_rows&,
                                  std::span<const draft_wish> next = {});
  void forward_and_sample(std::span<const sequence_rows> rows, std::span<const std::byte> records,
                          const sample_batch& batch, sampled_rows& out, std::span<const draft_wish> next = {}) {
    ready_records ready(records);
    forward_and_sample(rows, ready, batch, out, next);
  }
  // Whether a step of so many rows, all of them generated or guessed, is under way before its records are taken. Any
  // other step takes them first, and is as fast with records that were there before. The same on every rank.
  virtual bool runs_ahead(int64_t /*n_rows*/) const { return false; }
  // Guesses what follows each request's token. Precondition: can_draft(), and the row before it is the newest one that
  // forward ran for the slot and that was kept; rows of wrong guesses may lie above it.
  virtual bool can_draft() const { return false; }
  virtual draft_tokens draft_next(std::span<const draft_request>) { return {}; }
  // Captures the device work of every step of up to `max_rows` generated rows and of its guesses; those steps are
  // replayed from then on. To be called before the first step: slot 0 and block 0 are written. Without an effect
  // where the backend cannot capture (several ranks that meet in host memory).
  virtual void capture_steps(int32_t /*max_rows*/) {}
  virtual step_counts counts() const { return {}; }
  // The handle stays valid until drop_image. The vision tower runs in the first step that shows the image, perhaps
  // again in a later one. Throws std::runtime_error when the image does not fit the model.
  virtual int32_t take_image(planned_image) = 0;
  virtual void drop_image(int32_t handle) = 0;

  // Snapshots of a slot: all it holds besides KV blocks, so that a sequence goes on from n_tokens as if it had never
  // stopped. Bytes of one at most; 0: the family has none, and the calls below are never made.
  virtual int64_t snapshot_bytes() const { return 0; }
  // Positions that the slot may have run beyond n_tokens when it is saved.
  virtual int64_t snapshot_slack() const { return 0; }
  virtual void save_slot(int32_t slot, int64_t n_tokens, std::vector<std::byte>& to) {
    (void)slot, (void)n_tokens, to.clear();
  }
  // Throws std::runtime_error that says what does not fit; the slot must then be reset by rows from 0.
  virtual void load_slot(int32_t slot, int64_t n_tokens, std::span<const std::byte> from) {
    (void)slot, (void)n_tokens, (void)from;
  }
  // What load_slot would throw of these bytes, thrown before anything of a slot is touched.
  virtual void check_snapshot(int64_t n_tokens, std::span<const std::byte> from) const { (void)n_tokens, (void)from; }
  // Everything cached in block `from`, over what block `to` holds.
  virtual void copy_block(int32_t from, int32_t to) { (void)from, (void)to; }
  // The same through host memory: bytes of a block (plan_state().per_block; `to` is replaced) and back, in any block.
  virtual int64_t block_bytes() const { return 0; }
  virtual void save_block(int32_t block, std::vector<std::byte>& to) { (void)block, to.clear(); }
  // Throws std::runtime_error when the size does not fit; the block is then as it was.
  virtual void load_block(int32_t block, std::span<const std::byte> from) { (void)block, (void)from; }
};

// Reads side-table rows (Engram) for tokens; owned by one engram_fetch actor. Keeps per-slot history by position, so a
// range may be read again after a rollback.
class table_reader {
public:
  virtual ~table_reader() = default;
  virtual int64_t record_bytes_per_token() const = 0; // 0: the family has no side tables
  // Writes record_bytes_per_token() bytes for each row of each sequence, in order. Errors: std::system_error naming
  // file, tensor and row; std::errc::timed_out: a read hangs. Later calls are not held up by it, and nothing writes to
  // `records` any more.
  virtual void read(std::span<const sequence_rows>, std::span<std::byte> records) = 0;
};

// The text side: template, tokenizer, parser, image planning. Immutable, shared by the front's actors.
class text_side {
public:
  virtual ~text_side() = default;
  virtual const std::shared_ptr<const tokenizer>& words() const = 0;
  virtual rendered_prompt render(const chat_input&) const = 0; // throws chat_error
  virtual std::unique_ptr<output_parser> make_parser(const parser_options&) const = 0;
  virtual std::span<const int32_t> suppressed_ids() const = 0; // chat.md 5.7
  virtual int32_t think_end_id() const = 0;
  // Decodes PNG or JPEG bytes and plans them. Throws image_error (std::runtime_error) with the client's message.
  virtual planned_image plan_image(std::span<const std::byte> file) const = 0;
};

std::shared_ptr<const text_side> load_text_side(const std::string& folder);
// Tables of up to `in_memory_bytes` each are held in host memory, larger ones are read row by row.
inline constexpr int64_t tables_in_memory_bytes = int64_t{64} << 20;
std::unique_ptr<table_reader> open_tables(const std::string& folder, int rank, int n_ranks, int32_t max_sequences,
                                          int64_t in_memory_bytes = tables_in_memory_bytes);
// Phase reports while loading: ("weights", 0.42).
using load_progress = std::function<void(const char* phase, double part)>;
std::unique_ptr<model> load_model(backend&, const model_options&, const load_progress&);
// Device bytes of one KV block and of one sequence slot, host bytes of one snapshot, from the config alone.
struct state_bytes {
  int64_t per_block = 0, per_slot = 0, per_snapshot = 0;
  int64_t snapshot_slack = 0; // positions, of a model loaded without drafts
  int64_t draft_slack = 0;    // the same with them
};
state_bytes plan_state(const std::string& folder, cache_form);

} // namespace troupe
