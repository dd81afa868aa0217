// What a step costs by its rows and sequences: a table of running medians of measured times. Knows no CAF.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace troupe {

// Cost by rows, for one number of sequences: straight lines between measured points.
class cost_curve {
public:
  // (rows, microseconds), ascending rows. Costs that fall with more rows are noise and are raised to the one before.
  explicit cost_curve(std::vector<std::pair<double, double>> points);
  bool is_known() const { return points_.size() >= 2; } // two row counts make a slope
  // Microseconds. Beyond the points the nearest line goes on; a single point is scaled in proportion; none: 0.
  double at(double n_rows) const;

private:
  std::vector<std::pair<double, double>> points_;
};

class step_costs {
public:
  void observe(int64_t n_sequences, int64_t n_rows, int64_t cost_us);
  // The curve of this many sequences, or of the nearest number that has one: rows decide most of the cost.
  cost_curve curve(int64_t n_sequences) const;

private:
  static constexpr std::size_t n_kept = 9;
  struct cell {
    std::array<std::pair<int64_t, int64_t>, n_kept> newest{}; // (rows, microseconds)
    std::size_t n = 0;                                        // observed so far
    std::pair<double, double> point() const;                  // mean rows, median cost
  };
  std::map<int64_t, std::map<int64_t, cell>> cells_; // by bucket of sequences, then of rows
};

} // namespace troupe
