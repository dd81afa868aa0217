// Least squares with forgetting for streams, a ratio of sums for prompts.
#include "actors/step_cost.h"

#include <algorithm>

namespace troupe {

namespace {

constexpr double keep = 0.8; // weight of a measurement after one more: the last five or so count
constexpr double aim = 0.8;  // of the gap: the next step may be dearer than the estimate by a quarter
constexpr double least_share = 0.125;
constexpr int64_t unknown_rows = 64; // before anything was measured: small beside any chunk in use

} // namespace

void step_cost::learn_decode(double n, double us) {
  w_ = w_ * keep + 1;
  x_ = x_ * keep + n;
  xx_ = xx_ * keep + n * n;
  y_ = y_ * keep + us;
  xy_ = xy_ * keep + n * us;
}

void step_cost::learn_prefill(double n, double us) {
  prefill_us_ = prefill_us_ * keep + us;
  prefill_rows_ = prefill_rows_ * keep + n;
}

void step_cost::learn(int64_t n_decode_rows, int64_t n_prefill_rows, int64_t compute_us) {
  const auto us = static_cast<double>(std::max<int64_t>(compute_us, 0));
  const auto n_decode = static_cast<double>(n_decode_rows), n_prefill = static_cast<double>(n_prefill_rows);
  if (n_prefill_rows == 0) {
    if (n_decode_rows > 0) learn_decode(n_decode, us);
    return;
  }
  const double decode = decode_us(n_decode_rows), prefill = prefill_row_us() * n_prefill;
  if (!is_known()) {
    learn_prefill(n_prefill, std::max(us - decode, 0.0));
  } else if (n_decode_rows > 0 && w_ == 0) {
    learn_decode(n_decode, std::max(us - prefill, 0.0));
  } else { // the error of the estimate goes to both parts as they share it
    const double part = decode + prefill > 0 ? prefill / (decode + prefill) : 1;
    learn_prefill(n_prefill, us * part);
    if (n_decode_rows > 0) learn_decode(n_decode, us * (1 - part));
  }
}

double step_cost::decode_us(int64_t n_decode_rows) const {
  if (w_ == 0) return 0;
  const double mean_rows = x_ / w_, mean_us = y_ / w_;
  const double spread = xx_ / w_ - mean_rows * mean_rows;
  const double most = mean_us / mean_rows; // a slope above it makes the fixed part negative
  const double slope = spread < 0.01 * mean_rows * mean_rows
                           ? most / 2
                           : std::clamp((xy_ / w_ - mean_rows * mean_us) / spread, 0.0, most);
  return mean_us + slope * (static_cast<double>(n_decode_rows) - mean_rows);
}

int64_t step_cost::prefill_rows(int64_t n_decode_rows, double gap_us, int64_t most) const {
  if (!is_known() || (n_decode_rows > 0 && w_ == 0)) return std::min(most, unknown_rows);
  const double row_us = prefill_row_us();
  const double room_us = std::max(gap_us * aim - decode_us(n_decode_rows), gap_us * least_share);
  if (row_us * static_cast<double>(most) <= room_us) return most;
  return std::max<int64_t>(static_cast<int64_t>(room_us / row_us), 1);
}

} // namespace troupe
