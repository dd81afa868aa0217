// Medians per cell, curves over cells.
#include "actors/step_costs.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace troupe {

namespace {

// Exact up to 8, then eighths of a power of two: a few dozen cells up to thousands of rows.
int64_t bucket(int64_t n) {
  if (n <= 8) return n;
  const int shift = std::bit_width(static_cast<uint64_t>(n)) - 4;
  return n >> shift << shift;
}

} // namespace

cost_curve::cost_curve(std::vector<std::pair<double, double>> points) : points_(std::move(points)) {
  for (size_t i = 1; i < points_.size(); ++i) points_[i].second = std::max(points_[i].second, points_[i - 1].second);
}

double cost_curve::at(double n_rows) const {
  if (points_.empty()) return 0;
  if (points_.size() == 1) return points_[0].second * n_rows / points_[0].first;
  auto right = std::find_if(points_.begin() + 1, points_.end() - 1, [&](const auto& p) { return p.first >= n_rows; });
  const auto [x0, y0] = *(right - 1);
  const auto [x1, y1] = *right;
  return std::max(1.0, y0 + (y1 - y0) * (n_rows - x0) / (x1 - x0));
}

void step_costs::observe(int64_t n_sequences, int64_t n_rows, int64_t cost_us) {
  auto& c = cells_[bucket(n_sequences)][bucket(n_rows)];
  c.newest[c.n++ % n_kept] = {n_rows, cost_us};
}

std::pair<double, double> step_costs::cell::point() const {
  const size_t kept = std::min(n, n_kept);
  std::array<int64_t, n_kept> costs{};
  double rows = 0;
  for (size_t i = 0; i < kept; ++i) {
    rows += static_cast<double>(newest[i].first);
    costs[i] = newest[i].second;
  }
  const auto middle = costs.begin() + static_cast<std::ptrdiff_t>(kept / 2);
  std::nth_element(costs.begin(), middle, costs.begin() + static_cast<std::ptrdiff_t>(kept));
  return {rows / static_cast<double>(kept), static_cast<double>(*middle)};
}

cost_curve step_costs::curve(int64_t n_sequences) const {
  const int64_t wanted = bucket(n_sequences);
  const std::map<int64_t, cell>* best = nullptr;
  int64_t distance = 0;
  for (const auto& [n, rows] : cells_) {
    const int64_t d = std::abs(n - wanted);
    const bool is_slope = rows.size() >= 2, has_slope = best && best->size() >= 2;
    if (best && (has_slope > is_slope || (has_slope == is_slope && d >= distance))) continue;
    best = &rows;
    distance = d;
  }
  std::vector<std::pair<double, double>> points;
  if (best)
    for (const auto& [rows, c] : *best) points.push_back(c.point());
  return cost_curve(std::move(points));
}

} // namespace troupe
