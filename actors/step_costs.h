// What a step costs by its rows, in steps of the same load: a table of running medians of ratios. Knows no CAF.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace troupe {

// The median of the newest few values.
class running_median {
public:
  void add(double x);
  size_t n() const { return n_ < n_kept ? n_ : n_kept; }
  double value() const { return median_; } // 0: none yet

private:
  static constexpr size_t n_kept = 9;
  std::array<double, n_kept> newest_{};
  size_t n_ = 0;
  double median_ = 0;
};

// Cost by rows, for one number of sequences: straight lines between measured points.
class cost_curve {
public:
  cost_curve() = default;
  // (rows, cost), ascending rows. Costs that fall with more rows are noise: the dearer one is lowered, since what is
  // believed cheap is done, and measured again, but not what is believed dear. None falls below the first.
  explicit cost_curve(std::vector<std::pair<double, double>> points, double scale = 1);
  bool is_known() const { return points_.size() >= 2; } // two row counts make a slope
  // Beyond the points the nearest line goes on; a single point is scaled in proportion; none: 0.
  double at(double n_rows) const {
    size_t from = 1;
    return at(n_rows, from);
  }
  // The same for rows that do not fall from call to call; `from`: 1 at first.
  double at(double n_rows, size_t& from) const;

private:
  std::vector<std::pair<double, double>> points_;
};

// Other load on the machine makes all steps slower at once, and which steps run depends on what they seem to cost:
// times of one depth that are older than those of another mislead for good. So the unit of cost is a plain step, one
// row a sequence, and a step with drafts is compared with plain ones that ran shortly before it only. Making drafts is
// compared with the rest of its own step.
class step_costs {
public:
  // Sequences that drafts are made for in every round, or some of them again after a while: then the drafter catches up
  // with all that they gained since, which no round pays that follows another.
  enum class making { each_round, again };
  // One call a step. `step_us`: without making drafts, which took `draft_us` for `n_drafted` sequences (0: none).
  // Returns what this step was measured to cost; 0: no plain one is near.
  double observe(int64_t n_sequences, int64_t n_rows, int64_t step_us, int64_t n_drafted, int64_t draft_us,
                 making = making::each_round);
  // In plain steps of this many sequences; of the nearest number that has a curve, where this one has none.
  cost_curve curve(int64_t n_sequences) const;
  // Of making drafts, in the same unit, by the sequences that get them.
  cost_curve drafting(int64_t n_sequences, making = making::each_round) const;
  // Steps of any number of sequences since the last plain one of this number; of none: since ever.
  int64_t n_since_plain(int64_t n_sequences) const;

private:
  struct cell {
    double rows = 0; // newest
    running_median ratio;
  };
  struct size {
    std::array<std::pair<int64_t, double>, 5> plain{}; // (step, microseconds), the newest
    size_t n_plain = 0;
    std::map<int64_t, cell> steps, drafts, again; // by bucket of rows; of sequences drafted for
  };
  static double plain_us(const size&, int64_t since);
  const size* nearest(int64_t n_sequences, const std::map<int64_t, cell> size::*of, int64_t& found) const;
  cost_curve own_curve(const size&, int64_t n_sequences) const;

  std::map<int64_t, size> sizes_; // by bucket of sequences
  int64_t n_steps_ = 0;
};

} // namespace troupe
