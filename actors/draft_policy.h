// How many drafts of each sequence are verified in a round, and whether new ones are made. Knows no CAF.
#pragma once

#include "actors/step_costs.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace troupe {

struct draft_limits {
  int32_t block = 0;       // drafts that the model makes at once; 0: it makes none
  int32_t max_drafts = 0;  // verified in one step and sequence at most; 0: none
  bool is_adaptive = true; // false: always as many as there are
};

// What a sequence carries from round to round.
struct sequence_drafts {
  std::vector<int32_t> ids;      // made after its newest token; empty: none
  std::vector<float> confidence; // of each, given that those before it are right
  // Right guesses and what the confidences promised, both fading: their quotient corrects the confidence of a text that
  // is easier or, at a high temperature, harder than the head believes.
  float right = 8, promised = 8;
  float trust() const { return right / promised; }
};

// The depth of a round maximises expected tokens a second: sequence i with d drafts gains 1 + sum over j < d of
// prod over k <= j of p_k tokens (p: confidence corrected by trust), and the step takes what the cost table says for
// all its rows, plus the drafting of the next round. Drafts are taken in the order of their gain until the rate falls.
class draft_policy {
public:
  explicit draft_policy(const draft_limits& limits) : limits_(limits) {}

  struct offer {
    const sequence_drafts* drafts = nullptr;
    int32_t n_useful = 0; // more could not be delivered: the sequence ends before
    int32_t n_chosen = 0; // the answer: drafts to verify
  };
  // One offer a decoding sequence; `n_other_rows`: rows of prompts in the same step. One call a round.
  void choose(std::span<offer>, int64_t n_other_rows);
  // Whether the step that was chosen last makes drafts for the next one. `n_sequences`: decoding then.
  bool wants_drafts(int64_t n_sequences) const;
  // A step without rows of prompts took this long, `draft_us` of it to make drafts for `n_drafted` sequences.
  void observe_cost(int64_t n_sequences, int64_t n_rows, int64_t cost_us, int64_t n_drafted, int64_t draft_us);
  // `n_drafts` of the sequence's drafts were verified, `n_accepted` were right.
  static void observe_run(sequence_drafts&, int32_t n_drafts, int32_t n_accepted);

  // At run time; capped by the block, so that a model without a drafter stays without drafts.
  void set_max(int32_t n) { limits_.max_drafts = n; }
  int32_t max_drafts() const;
  const draft_limits& limits() const { return limits_; }

private:
  bool is_trial(int64_t n_sequences) const;
  size_t size_of(int64_t n_sequences) const;
  void choose_best(std::span<offer>, int64_t n_other_rows);

  draft_limits limits_;
  step_costs costs_, draft_costs_; // the latter by sequences drafted for, as rows of one sequence
  std::vector<double> typical_;    // fading mean of p_j over the offers, by position
  std::vector<std::pair<double, size_t>> gains_;
  int64_t round_ = 0, n_typical_ = 0;  // rounds so far; those whose offers had drafts
  std::array<int64_t, 16> n_rounds_{}; // by the binary digits of the sequences in a round: each size has its own trials
};

} // namespace troupe
