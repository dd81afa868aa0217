// DSpark: context rows of the draft stages, and one drafting step.                          Spec: dspark.md sections
// 1-4.
#pragma once

#include "model/deepseek_v41/block.h"
#include "model/deepseek_v41/vocabulary.h"

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

private:
  void run_stages(step_context& ctx, std::span<const layer_cache> stages, std::span<const draft_anchor> anchors);
  void add_markov(step_context& ctx, std::span<const draft_anchor> anchors, const draft_choice& choose,
                  draft_result& out);

  backend& be_;
  const config& c_;
  draft_weights w_;
  vocabulary_ends& ends_;
  row_columns columns_;
  tensor normed_;              // (rows, D)
  tensor confidence_;          // (rows, 1) f32
  tensor markov_, markov_ids_; // (sequences, rank), (sequences) i32
  std::vector<float> bias_;
};

} // namespace troupe::deepseek_v41
