// The deepseek_v41 model on one rank: weights, caches, the whole forward.                   Spec: model.md section 2.
#pragma once

#include "model/deepseek_v41/block.h"
#include "model/deepseek_v41/draft.h"
#include "model/deepseek_v41/image_rows.h"
#include "model/deepseek_v41/late_context.h"
#include "model/deepseek_v41/vocabulary.h"
#include "model/model.h"

#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace troupe::deepseek_v41 {

class model_v41 final : public model {
public:
  // Throws checkpoint_error, std::runtime_error, std::system_error by name.
  model_v41(backend&, const model_options&, const load_progress&);

  const model_info& info() const override { return info_; }
  using model::forward, model::forward_and_sample;
  std::span<const float> forward(std::span<const sequence_rows>, record_source&) override;
  void forward_and_sample(std::span<const sequence_rows>, record_source&, const sample_batch&, sampled_rows&,
                          std::span<const draft_wish> next = {}) override;
  bool runs_ahead(int64_t n_rows) const override;
  bool can_draft() const override { return drafter_ != nullptr; }
  draft_tokens draft_next(std::span<const draft_request>) override;
  void capture_steps(int32_t max_rows) override;
  step_counts counts() const override { return counts_; }
  int32_t take_image(planned_image) override;
  void drop_image(int32_t handle) override;
  int64_t snapshot_bytes() const override;
  int64_t snapshot_slack() const override { return slack_; }
  void save_slot(int32_t slot, int64_t n_tokens, std::vector<std::byte>& to) override;
  void load_slot(int32_t slot, int64_t n_tokens, std::span<const std::byte> from) override;
  void check_snapshot(int64_t n_tokens, std::span<const std::byte> from) const override;
  void copy_block(int32_t from, int32_t to) override;
  int64_t block_bytes() const override;
  void save_block(int32_t block, std::vector<std::byte>& to) override;
  void load_block(int32_t block, std::span<const std::byte> from) override;

  // take_image of patches as vision_tower::encode takes them.
  int32_t take_patches(std::span<const float> patches, int64_t patch_rows, int64_t patch_columns);
  // One drafting step for each anchor; anchors' floors are filled in here. Precondition: can_draft().
  draft_result draft(std::span<const draft_anchor>, const draft_choice& choose = greedy_choice);

  const config& settings() const { return config_; }
  // Tests only: shows intermediates, index scores of up to `max_entries` entries among them.
  void observe(observer, int64_t max_entries);
  // Tests only: without rounding, rows do not fit records, so the caches become floats, empty. Before the first step.
  void round_caches(bool on);

private:
  struct shown_image { // rows of this step that show part of an image
    int64_t first_row, first_token, n;
    int32_t handle;
  };
  struct wanted_logits {
    int64_t first_row = 0, n = 0; // in the rows of the last layers
  };

  void require_vision() const;
  void load(const checkpoint&, weight_loader&, const load_progress&);
  void plan_rows(std::span<const sequence_rows>);
  wanted_logits plan_sequence(const sequence_rows&, int64_t first_record); // of its first row
  void plan_table(int32_t slot, std::span<const int32_t> blocks);
  // Runs a step and leaves its logits where the head wrote them; how many rows of them.
  int64_t run(std::span<const sequence_rows>, record_source&);
  // Everything that the device work of a step reads but the records, so that it can be captured once and replayed.
  void upload_inputs();
  // Records of a step of n rows: where its work finds them, or in the mailbox that captured work receives them from.
  using found_records = std::optional<std::span<const std::byte>>;
  void upload_records(const found_records&, int64_t n_rows);
  void post_records(const found_records&, int64_t n_rows);
  void copy_records(const found_records&, int64_t n_rows, size_t slot, std::byte* to) const;
  std::vector<tensor> record_tensors(int64_t n_rows) const;
  int64_t mailbox_bytes(int64_t n_rows) const;
  void replay_step(int64_t n, record_source&);
  // The device work: `n` rows, of which the last layers run `n_late` and the head `n_wanted`. `records`: where they are
  // received from; null: they were uploaded.
  void run_step(int64_t n, int64_t n_late, int64_t n_wanted, const mailbox* records);
  void embed_rows();
  void run_layers(int64_t n_late, const mailbox* records);
  void narrow_to_tail(int64_t n_late);
  void run_head(int64_t n_wanted);
  std::span<const float> read_logits(int64_t n_wanted);
  std::span<const layer_cache> draft_caches() const;
  void note_context();
  void catch_up(std::span<const draft_anchor>);
  std::vector<draft_anchor> with_floors(std::span<const draft_anchor>) const;
  // Guesses behind tokens that are still being drawn, `drawn` (rows of logits) i32, where a graph was captured for it;
  // false: nothing was begun. note_early: those tokens are known now.
  bool draft_early(std::span<const sequence_rows>, std::span<const draft_wish>, tensor drawn);
  void note_early(std::span<const sequence_rows>, std::span<const draft_wish>, std::span<const int32_t> ids);
  int64_t first_logit(size_t sequence) const; // among the rows of logits of the step
  // The guesses of draft_early, if they are all that is asked for.
  std::optional<draft_tokens> take_early(std::span<const draft_request>);

  backend& be_;
  model_options options_;
  config config_;
  model_info info_;
  rank_share share_;
  work_buffers buffers_;
  std::vector<found_table> tables_;
  std::vector<block_weights> layers_;
  cache_plan cache_plan_;
  std::vector<layer_cache> caches_; // draft stages last
  std::unique_ptr<vocabulary_ends> ends_;
  tensor final_norm_;
  std::unique_ptr<drafter> drafter_;
  std::unique_ptr<late_context> late_context_; // none: each step makes its context rows itself
  std::unique_ptr<row_sampler> sampler_;       // none: tokens are drawn on the host
  std::unique_ptr<image_rows> images_;         // none: loaded without vision
  step_context ctx_;

  std::optional<row_columns> all_columns_, tail_columns_;
  tensor block_tables_; // (slots, max blocks) i32
  tensor tail_index_;   // (rows) i32: rows that the last layers run on
  tensor head_index_;   // (rows) i32: rows of those whose logits are wanted
  tensor head_input_;   // (rows, D)
  int64_t max_rows_ = 0;
  std::vector<int32_t> tables_host_; // what block_tables_ holds
  std::vector<int32_t> tail_rows_, index_;
  std::vector<shown_image> step_images_;
  std::vector<wanted_logits> wanted_; // of each sequence, in the caller's order
  std::vector<int64_t> record_rows_;  // of each row of the step: its place among the caller's rows
  bool decodes_only_ = true;          // no row of this step is of a prompt
  std::vector<std::unique_ptr<graph>> step_graphs_, draft_graphs_; // by rows and by anchors, from 1; empty: none
  std::unique_ptr<mailbox> records_mail_; // of step_graphs_: records, Engram slot by slot; none: no side tables
  tensor anchor_requests_;                // (slots, 4) i32: anchor_args::requests
  std::vector<draft_request> early_;      // what draft_early guesses behind, until the next step or draft
  step_counts counts_;
  std::vector<std::byte> record_staging_;
  std::vector<float> logits_;
  int64_t snapshot_rows_ = 0, slack_ = 0;
  std::vector<int64_t> floor_;  // per slot: lowest position whose rows the last layers have seen
  std::vector<int64_t> newest_; // per slot: end of the highest rows written since it was reset
};

model_info info_of(const config&, const std::string& folder);

} // namespace troupe::deepseek_v41
