// What a step costs: a running estimate from measured steps, and the prompt rows that fit into a time. Knows no CAF.
#pragma once

#include <cstdint>

namespace troupe {

// Model: us = fixed + decode_row * rows of streams + prefill_row * rows of prompts; no part is negative.
class step_cost {
public:
  // A step that ran whole. Old measurements fade, so the estimate follows growing contexts and other load.
  void learn(int64_t n_decode_rows, int64_t n_prefill_rows, int64_t compute_us);

  // False until a step with rows of prompts was measured.
  bool is_known() const { return prefill_rows_ > 0; }
  double decode_us(int64_t n_decode_rows) const; // the fixed part included
  double prefill_row_us() const { return is_known() ? prefill_us_ / prefill_rows_ : 0; }

  // Rows of prompts beside these rows of streams, so that the step takes at most gap_us. At least one, and at least
  // what takes an eighth of gap_us: streams that alone need nearly all of it do not lock prompts out.
  // `most` bounds the answer; before the cost is known it is a small chunk.
  int64_t prefill_rows(int64_t n_decode_rows, double gap_us, int64_t most) const;

private:
  void learn_decode(double n_rows, double us);
  void learn_prefill(double n_rows, double us);

  // Weighted sums over steps with streams: of 1, rows, rows^2, us, rows * us.
  double w_ = 0, x_ = 0, xx_ = 0, y_ = 0, xy_ = 0;
  double prefill_us_ = 0, prefill_rows_ = 0; // weighted sums over steps with prompts, less what streams took
};

} // namespace troupe
