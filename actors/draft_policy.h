// How many drafts of each sequence are verified in a round, and which sequences get new ones. Knows no CAF.
#pragma once

#include "actors/draft_belief.h"
#include "actors/step_costs.h"

#include <algorithm>
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

// A round maximises expected tokens a unit of time: sequence i with d drafts gains 1 + sum over j < d of prod over
// k <= j of p_k tokens (p: draft_belief), and the step takes what step_costs says for all its rows, plus the making of
// drafts for the sequences that get them. Drafts are taken in the order of their gain while the rate rises; a sequence
// none of whose drafts is worth its rows gets none made either.
// What is off is tried again when a share of the time is saved up for it: what a trial took is paid back, by rounds
// without one, before the next. So trials never cost more than that share, whatever a step or a draft takes here. Some
// are verified whole, and go on as long as the tokens gained outweigh the time measured: a wrong table is found out.
class draft_policy {
public:
  explicit draft_policy(const draft_limits& limits) : limits_(limits), belief_(limits.block) {}

  struct offer {
    sequence_drafts* drafts = nullptr;
    int32_t n_useful = 0; // more could not be delivered: the sequence ends before
    int32_t n_chosen = 0; // the answer: drafts to verify
  };
  // One offer a decoding sequence; `n_other_rows`: rows of prompts in the same step. One call a round.
  void choose(std::span<offer>, int64_t n_other_rows);
  struct request {
    sequence_drafts* drafts = nullptr;
    bool is_wanted = false; // the answer: make drafts behind the token that this step draws
  };
  // Behind choose(), in the same round: the sequences that sample and could use drafts in the next one, of the
  // `n_sequences` that will decode then.
  void ask(std::span<request>, int64_t n_sequences);
  struct measured {
    int64_t n_sequences = 0, n_rows = 0; // that decoded; their rows, drafts included
    int64_t step_us = 0;                 // all of the step, drafting included
    int64_t n_drafted = 0, draft_us = 0; // sequences that got drafts, and what that took
    int64_t n_gained = 0;                // tokens of those that decoded
    bool has_prompts = false;            // then it says nothing about the cost of rows
  };
  // The step that was chosen last.
  void observe_step(const measured&);
  // A sequence's tokens of this round, then its new drafts, which may be none.
  void observe_run(sequence_drafts& d, std::span<const int32_t> tokens) { belief_.judge(d, tokens); }
  void take(sequence_drafts& d, std::vector<int32_t> ids, std::vector<float> confidence) {
    belief_.take(d, std::move(ids), std::move(confidence));
  }

  // At run time; capped by the block, so that a model without a drafter stays without drafts.
  void set_max(int32_t n) { limits_.max_drafts = n; }
  int32_t max_drafts() const;
  const draft_limits& limits() const { return limits_; }
  bool is_weak() const { return belief_.is_weak(); } // see draft_belief

private:
  // first: fills the cost table of a number of sequences; plain: no drafts, to compare with; deep: all there are.
  enum class round { chosen, first, plain, deep };
  struct gain {
    float tokens = 0; // expected
    int32_t of = 0;   // place among the sequences
    bool is_first = false;
    uint8_t bin = 0; // of sort_gains
  };
  round next_round(std::span<const offer>, bool is_measured);
  bool is_deep_next(std::span<const offer>) const;
  int32_t depth_of_round(std::span<const offer>);
  void sort_gains();
  size_t best(int64_t n_sequences, int64_t n_other_rows, int64_t n_drafting);
  void ask_for_paying(std::span<request>, int64_t n_sequences);
  void try_again(std::span<request>);
  double cost_of_trial(const measured&) const;

  draft_limits limits_;
  draft_belief belief_;
  step_costs costs_;
  round round_ = round::chosen;
  std::array<int64_t, 16> n_first_{}; // first rounds so far, by the binary digits of the sequences
  int32_t n_plain_left_ = 0;          // of a run of plain rounds
  // What trials still owe, in plain steps of as many sequences: of those that are off, of new ones, of verifying whole
  // blocks. Rounds pay it back, those of fewer sequences as well as those of many.
  struct debt {
    double steps = 0, most = 1e9;
    bool is_paid() const { return steps <= 0; }
    void pass(double saved, double spent) { steps = std::clamp(steps + spent - saved, 0.0, most); }
  } again_, new_, deep_{0, 2};            // the time of a deep one may be an outlier: it is no debt for ever
  int32_t n_run_ = 0;                     // rounds that the present trial has gone on, verified whole
  bool goes_on_ = false;                  // the last of them paid
  int64_t n_tried_ = 0, n_new_tried_ = 0; // sequences that get drafts made as a trial in this step, all and new ones
  std::vector<gain> gains_, sorted_;      // kept for their memory
};

} // namespace troupe
