// DSpark: context rows of the draft stages, and one drafting step.                          Spec: dspark.md sections
// 1-4.
#pragma once

#include "model/deepseek_v41/block.h"
#include "model/deepseek_v41/vocabulary.h"
#include "model/model.h"

#include <functional>
#include <span>
#include <vector>

namespace troupe::deepseek_v41 {

// The token sampled after the newest completed position of a sequence; it sits at `position`.
struct draft_anchor {
  int32_t slot = 0;
  int64_t position = 0;
  int32_t token = 0;
  int64_t floor = 0; // lowest position with a context row
};

// Picks draft token `step` of sequence `sequence` from its logits (vocabulary).
using draft_choice = std::function<int32_t(size_t sequence, int32_t step, std::span<const float> logits)>;
int32_t greedy_choice(size_t sequence, int32_t step, std::span<const float> logits); // equal logits: the lower id

struct draft_result { // (sequences, block), the same, (sequences, block, vocabulary) with the Markov bias
  std::vector<int32_t> tokens;
  std::vector<float> confidence; // raw; sigmoid of it estimates the acceptance probability
  std::vector<float> logits;
};

class drafter {
public:
  drafter(backend&, const config&, draft_weights, vocabulary_ends&, int64_t max_rows, int64_t max_sequences);

  // ctx as a forward left it: taps of ctx.rows -> a context row in each stage's ring. Rows of rejected drafts may be
  // among them: they lie above every accepted position and are overwritten.
  void add_context(step_context& ctx, std::span<const layer_cache> stages);
  // One block per anchor. Precondition: anchors.size() <= max_sequences.
  draft_result draft(step_context& ctx, std::span<const layer_cache> stages, std::span<const draft_anchor> anchors,
                     const draft_choice& choose);

  // Greedy blocks for `n` anchors without the host in between: upload, then the device work (which may be captured),
  // then ids and raw confidence. Several ranks share the vocabulary and meet at every token: they draft() instead.
  bool can_guess() const { return be_.n_ranks() == 1 && ends_.piece() >= c_.draft.block; }
  void upload(std::span<const draft_anchor> anchors);
  // The anchors' tokens and positions where upload put them, for whoever knows them on the device alone.
  anchor_args anchors(int64_t n) const;
  void guess(step_context& ctx, std::span<const layer_cache> stages, int64_t n);
  draft_tokens fetch(int64_t n);

private:
  void run_stages(step_context& ctx, std::span<const layer_cache> stages, int64_t n_rows);
  void guess_part(int64_t n, int64_t first, int64_t n_part);
  void add_markov(step_context& ctx, std::span<const draft_anchor> anchors, const draft_choice& choose,
                  draft_result& out);

  backend& be_;
  const config& c_;
  draft_weights w_;
  vocabulary_ends& ends_;
  row_columns columns_;
  tensor normed_;              // (rows, D)
  tensor found_;               // f32: guesses_, guess_confidence_ and confidence_ one behind the other
  tensor confidence_;          // (guesses of a round, 1) f32
  tensor markov_, markov_ids_; // (sequences, rank), (sequences) i32
  std::vector<float> bias_;

  // Of guess(): step 0 is the anchors' tokens.
  int64_t part_ = 0;           // sequences whose logits fit into one piece
  tensor guesses_;             // ((block + 1) * sequences) i32: step by step, n each
  tensor guess_confidence_;    // (block * sequences) f32, the same way
  tensor part_rows_;           // (block, part) i32: row of sequence s at step j among the part's logits
  tensor part_bias_;           // (part, vocabulary) f32
  std::vector<int32_t> ids_;   // host
  std::vector<float> fetched_; // host: found_
};

} // namespace troupe::deepseek_v41
