// What a rank remembers between steps: each sequence's slot, block table, images and sampling. Knows no CAF.
#pragma once

#include "actors/messages.h"
#include "actors/snapshot_store.h"
#include "model/model.h"
#include "model/sampling.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace troupe {

// One thread. Device resources of images are released through the model given to each call.
class rank_state {
public:
  using clock = std::function<std::chrono::steady_clock::time_point()>;
  // `now`: what measures drafts; the actor's clock, so that virtual time gives the same figures again.
  explicit rank_state(sampler_state::vocabulary_rules rules, bool samples, clock now = std::chrono::steady_clock::now)
      : rules_(std::move(rules)), samples_(samples), now_(std::move(now)) {}

  // Pixels of an image; a piece that does not fit what came before is refused with a reason.
  std::optional<std::string> take(image_piece&&);
  // Applies all of a step that comes before its rows: snapshots, ends, starts, copies, cached prefixes, new blocks, and
  // the images that its rows show. Returns the sequences that cannot run.
  std::vector<sequence_failure> begin(const step_placed&, model*);
  // And what comes after them; nothing of the failed ones is saved. `write`: shown what goes to disk, nullopt where it
  // is not here.
  using write_order = std::function<void(const tier_write&, const std::optional<std::vector<std::byte>>&)>;
  void end(const step_placed&, std::span<const sequence_failure>, model&, const write_order& write = {});
  // An entry that was read from disk. A value: why it does not fit the model.
  std::optional<std::string> arrive(const tier_read& where, std::vector<uint8_t>&& payload, const model& weights) {
    return snapshots_.arrive(where, std::move(payload), weights);
  }
  // Whether the model has use for the step before its side-table rows are there.
  bool runs_ahead(const step_plan&, const model&) const;
  // Runs the rows of all but the failed sequences and samples. `records`: the side-table rows of all planned rows.
  void run(const step_plan&, std::span<const sequence_failure>, record_source& records, model&);
  // What came of it, one result a planned row, in order: verifies drafts and makes new ones (`draft_us`: how long that
  // took). Sequences may have failed since run.
  std::vector<sequence_result> answer(const step_plan&, std::span<const sequence_failure>, model&, int64_t& draft_us);
  // A new epoch: sequences end. Images stay until the step that says which of them are still wanted.
  void forget_sequences();
  void forget_snapshots() { snapshots_.clear(); }

  size_t n_sequences() const { return sequences_.size(); }
  size_t n_images() const { return images_.size(); }
  const snapshot_store& snapshots() const { return snapshots_; }

private:
  using image_key = std::pair<sequence_id, int32_t>;
  struct image {
    planned_image pixels;
    size_t n_received = 0;
    int32_t handle = -1; // once the model has it; pixels are gone then
    int32_t n_users = 0;
    bool is_left_over = false; // from an older epoch
  };
  struct sequence {
    sequence_start start;
    std::vector<int32_t> blocks;
    std::vector<image_span> spans;
    std::vector<int32_t> handles;
    std::optional<sampler_state> sampler;                      // where ranks sample
    int64_t cached_tokens = 0, from_memory = 0, from_disk = 0; // as in cached_prefix
  };
  void drop_images(sequence_id, model*);
  void drop_left_over(std::span<const sequence_id> wanted, model*);
  std::optional<std::string> hand_over_images(sequence&, const planned_rows&, model&);
  std::optional<std::string> enter(sequence&, const cached_prefix&, model*);
  std::vector<sequence_failure> apply(const step_placed&, model*);
  void take_rows(const step_plan&, std::span<const sequence_failure>, model&);
  void accept(sequence&, const planned_rows&, size_t first, sequence_result&); // drawn_ from `first`
  void draft(const step_plan&, std::vector<sequence_result>&, model&);

  snapshot_store snapshots_;
  sampler_state::vocabulary_rules rules_;
  bool samples_;
  clock now_;
  std::unordered_map<sequence_id, sequence> sequences_;
  std::map<image_key, size_t> image_of_; // sequence and index -> key in images_
  std::unordered_map<size_t, image> images_;
  size_t next_image_ = 0;
  std::vector<sequence_rows> rows_;
  std::vector<draft_wish> wishes_;
  std::vector<draft_request> requests_;
  std::vector<size_t> requesters_;    // of each request, its place in the plan
  std::optional<sample_batch> batch_; // rules of the step's rows, and what was drawn by them
  sampled_rows drawn_;
  std::vector<std::optional<size_t>> first_drawn_; // of each planned row that asked for tokens and ran
  std::vector<std::byte> records_;                 // of the rows that run, where some do not
};

} // namespace troupe
