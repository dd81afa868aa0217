// How the prompts of a step share its rows: newcomers and short prompts first, long ones by turns. Knows no CAF.
#pragma once

#include "actors/batch_state.h"

#include <cstdint>
#include <vector>

namespace troupe {

// A quarter of the rows goes round by deficit round robin among all prompts (a visit is worth `quantum` rows times 4,
// 2 or 1 by class; what a step cannot give is carried to the next). Three quarters go to prompts of which no row has
// run and to those that fit into the step, shortest first; what they leave joins the round.
// Invariants: with n newcomers and at least 4 n / 3 rows each newcomer gets one or more; a lone newcomer that fits into
// the rows of a step has all of its own within two; no prompt waits for ever, whatever arrives.
class prefill_share {
public:
  struct candidate {
    batch_sequence* sequence = nullptr;
    const batch_turn* turn = nullptr;
    int64_t n_rows = 0; // what split() gives it

    int64_t n_left() const { return sequence->n_left() - n_rows; }
  };

  explicit prefill_share(int64_t quantum) : quantum_(quantum) {}

  // Gives out `budget` rows, or all that is wanted when that is less. The candidates' order of arrival is kept.
  void split(std::vector<candidate>& candidates, int64_t budget);

private:
  int64_t serve_short(std::vector<candidate>&, int64_t budget, int64_t whole);
  void serve_round(std::vector<candidate>&, int64_t budget);

  int64_t quantum_;
  uint64_t last_visit_ = 0;
  int64_t credit_ = 0;            // quarters of rows due to the round
  std::vector<candidate*> order_; // kept for its memory
};

} // namespace troupe
