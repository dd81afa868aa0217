// What a request wants of its tokens and what they depend on: the rules of api.md section 2.1, for gpu/sample.
#pragma once

#include "gpu/sample.h"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace troupe {

struct sampling_params {
  float temperature = 1; // 0: argmax, lowest id on exact ties
  float top_p = 1;
  int32_t top_k = 0; // 0: off
  float min_p = 0;
  float frequency_penalty = 0, presence_penalty = 0; // on counts of generated tokens
  float repetition_penalty = 1;                      // on prompt and generated tokens
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t> allowed_ids;            // empty: all
  std::vector<std::vector<int32_t>> bad_words; // token sequences that must not be completed
  std::vector<int32_t> stop_ids;               // besides the end token
  bool ignore_eos = false;
  int32_t min_tokens = 0; // end token and stop ids are masked before
  uint64_t seed = 0;
  int32_t choice = 0;            // index among n
  int32_t n_logprobs = -1;       // -1: none; k: the sampled token and the k best
  bool suppress_reserved = true; // chat.md 5.7
};

struct token_logprob {
  int32_t id = 0;
  float logprob = 0; // from raw logits, f32 log-softmax
};

struct sampled_token {
  int32_t id = 0;
  float logprob = 0;               // valid when asked for
  std::vector<token_logprob> best; // the k best of raw logits, best first
};

// What sampling must remember of one sequence. Owned by the rank; rebuilt by replaying the ids.
class sampler_state {
public:
  explicit sampler_state(sampling_params);
  void see_prompt(std::span<const int32_t> ids);
  void see_generated(int32_t id);
  const sampling_params& params() const { return params_; }
  bool ends_with(int32_t id, int32_t eos) const; // the end token or a stop id: nothing is generated after it
  // Masks and ids that follow from the tokenizer: suppressed ids (chat.md 5.7) and the end token.
  struct vocabulary_rules {
    std::vector<int32_t> suppressed;
    int32_t eos = 1;
  };
  // Appends the rules of the token at `position`. Random numbers depend on (seed, choice, position) only.
  void add_rules(sample_batch&, int64_t position, const vocabulary_rules&) const;
  // `logits` (vocab) f32 is scratch afterwards. Never returns a masked id: throws std::runtime_error when every id is
  // masked or a logit is unsound.
  sampled_token sample(std::span<float> logits, int64_t position, const vocabulary_rules&) const;

private:
  int32_t mask_of(sample_batch&, const vocabulary_rules&) const;
  void add_edits(std::vector<logit_edit>&, const vocabulary_rules&) const;

  sampling_params params_;
  std::vector<int32_t> prompt_ids_;                    // distinct, ascending, only kept when a penalty needs them
  std::vector<std::pair<int32_t, int32_t>> generated_; // id, count; ascending, only kept when a penalty needs them
  std::vector<int32_t> tail_;                          // last generated ids, for bad words
  int64_t n_generated_ = 0;
};

// Rules of the rows that verify drafts, drafts.size() + 1 of them: row j follows draft j - 1 and is drawn as if the
// drafts before it had been, with penalties, bad words and min_tokens that see them.
void add_draft_rules(const sampler_state&, std::span<const int32_t> drafts, int64_t position,
                     const sampler_state::vocabulary_rules&, sample_batch&);

// Verifies drafts by the tokens drawn with those rules (`rows` from `first`). Every token is drawn as if there were no
// drafts, with the keyed random number of its position. Draft j is accepted when it is the token drawn; the first other
// token ends the run and replaces it, and behind the last accepted draft there is one more. This is exact: a greedy
// draft is a point mass Q(d) = 1, for which rejection sampling accepts with probability min(1, P(d) / Q(d)) = P(d) and
// else draws from max(P - Q, 0), normalised, which is P given "not d" (dspark.md section 5); a draw x from P is d with
// probability P(d), and given x != d it has that distribution. So the tokens are those of no drafts for every seed, not
// only in distribution. Appends the run to `out` (it ends early behind an end token or a stop id) and returns the
// number of drafts accepted. Throws as sample() does; what was drawn before stays in `out`.
int32_t accept_drafts(sampler_state&, const sampled_rows& rows, size_t first, std::span<const int32_t> drafts,
                      int64_t position, const sampler_state::vocabulary_rules&, int64_t vocabulary,
                      std::vector<sampled_token>& out);

} // namespace troupe
