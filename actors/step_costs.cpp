// Ratios per cell, curves over cells.
#include "actors/step_costs.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace troupe {

namespace {

constexpr int64_t near_steps = 12; // a plain step this long ago ran in the same load
constexpr size_t sure_samples = 3; // a median of fewer follows an outlier
constexpr double fixed_part = 0.3; // of making drafts, where one point is known: 0.36 on 2 cores of a Zen 4, 2026-11-30

// Exact up to 8, then eighths of a power of two: a few dozen cells up to thousands of rows.
int64_t bucket(int64_t n) {
  if (n <= 8) return n;
  const int shift = std::bit_width(static_cast<uint64_t>(n)) - 4;
  return n >> shift << shift;
}

} // namespace

void running_median::add(double x) {
  newest_[n_++ % n_kept] = x;
  auto sorted = newest_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(n() / 2);
  std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(n()));
  median_ = *middle;
}

cost_curve::cost_curve(std::vector<std::pair<double, double>> points, double scale) : points_(std::move(points)) {
  for (size_t i = points_.size(); i-- > 1;) {
    points_[i].second = std::max(points_[i].second, points_[0].second);
    if (i > 1) points_[i - 1].second = std::min(points_[i - 1].second, points_[i].second);
  }
  for (auto& p : points_) p.second *= scale;
}

double cost_curve::at(double n_rows, size_t& from) const {
  if (points_.empty()) return 0;
  if (points_.size() == 1) return points_[0].second * n_rows / points_[0].first;
  while (from + 1 < points_.size() && points_[from].first < n_rows) ++from;
  const auto [x0, y0] = points_[from - 1];
  const auto [x1, y1] = points_[from];
  return std::max(y0 / 16, y0 + (y1 - y0) * (n_rows - x0) / (x1 - x0));
}

// Median of the plain steps from step `since` on; 0: there is none.
double step_costs::plain_us(const size& s, int64_t since) {
  std::array<double, 5> found{};
  size_t n = 0;
  for (size_t i = 0; i < std::min(s.n_plain, s.plain.size()); ++i)
    if (s.plain[i].first >= since) found[n++] = s.plain[i].second;
  if (n == 0) return 0;
  const auto middle = found.begin() + static_cast<std::ptrdiff_t>(n / 2);
  std::nth_element(found.begin(), middle, found.begin() + static_cast<std::ptrdiff_t>(n));
  return *middle;
}

double step_costs::observe(int64_t n_sequences, int64_t n_rows, int64_t step_us, int64_t n_drafted, int64_t draft_us,
                           making how) {
  ++n_steps_;
  auto& s = sizes_[bucket(n_sequences)];
  const auto us = static_cast<double>(std::max<int64_t>(step_us, 1));
  double unit = us, measured = 1;
  if (n_rows == n_sequences) {
    s.plain[s.n_plain++ % s.plain.size()] = {n_steps_, us};
  } else {
    unit = plain_us(s, n_steps_ - near_steps);
    measured = unit > 0 ? us / unit : 0;
    if (unit > 0) {
      auto& c = s.steps[bucket(n_rows)];
      c.rows = static_cast<double>(n_rows);
      c.ratio.add(measured);
    } else if (const auto known = curve(n_sequences); known.is_known()) {
      unit = us / known.at(static_cast<double>(n_rows));
    }
  }
  if (n_drafted == 0 || unit == 0) return measured;
  auto& c = (how == making::again ? s.again : s.drafts)[bucket(n_drafted)];
  c.rows = static_cast<double>(n_drafted);
  c.ratio.add(static_cast<double>(std::max<int64_t>(draft_us, 1)) / unit);
  return measured;
}

const step_costs::size* step_costs::nearest(int64_t n_sequences, const std::map<int64_t, cell> size::*of,
                                            int64_t& found) const {
  const int64_t wanted = bucket(n_sequences);
  const size* best = nullptr;
  bool best_is_sure = false;
  for (const auto& [n, s] : sizes_) {
    const auto& cells = s.*of;
    if (cells.empty()) continue;
    const bool is_sure =
        std::any_of(cells.begin(), cells.end(), [](const auto& c) { return c.second.ratio.n() >= sure_samples; });
    if (best &&
        (best_is_sure > is_sure || (best_is_sure == is_sure && std::abs(n - wanted) >= std::abs(found - wanted))))
      continue;
    best = &s;
    found = n;
    best_is_sure = is_sure;
  }
  return best;
}

cost_curve step_costs::own_curve(const size& s, int64_t n_sequences) const {
  std::vector<std::pair<double, double>> points{{static_cast<double>(n_sequences), 1}};
  const bool any_sure =
      std::any_of(s.steps.begin(), s.steps.end(), [](const auto& c) { return c.second.ratio.n() >= sure_samples; });
  for (const auto& [rows, c] : s.steps)
    if (c.rows > points.back().first && (c.ratio.n() >= sure_samples || !any_sure))
      points.emplace_back(c.rows, c.ratio.value());
  return cost_curve(std::move(points));
}

cost_curve step_costs::curve(int64_t n_sequences) const {
  int64_t found = 0;
  const size* s = nearest(n_sequences, &size::steps, found);
  if (!s) return cost_curve({{static_cast<double>(n_sequences), 1}});
  if (found == bucket(n_sequences)) return own_curve(*s, n_sequences);
  // Rows decide most of the cost, whoever they are of: the same line, in the unit of the other number.
  const auto other = own_curve(*s, found);
  const double n = static_cast<double>(n_sequences), unit = other.at(n);
  std::vector<std::pair<double, double>> points{{n, unit}};
  for (const auto& [rows, c] : s->steps)
    if (c.rows > points.back().first) points.emplace_back(c.rows, other.at(c.rows));
  for (const double more : {2.0, 6.0}) // beyond what was measured
    if (n * more > points.back().first) points.emplace_back(n * more, other.at(n * more));
  return cost_curve(std::move(points), 1 / unit);
}

cost_curve step_costs::drafting(int64_t n_sequences, making how) const {
  int64_t found = 0;
  const auto of = how == making::again ? &size::again : &size::drafts;
  const size* s = nearest(n_sequences, of, found);
  if (!s) return how == making::again ? drafting(n_sequences) : cost_curve();
  double scale = 1;
  if (const int64_t own = bucket(n_sequences); found != own) { // in the unit of the other number
    const auto same = sizes_.find(own);
    const double a = plain_us(*s, 0), b = same == sizes_.end() ? 0 : plain_us(same->second, 0);
    if (a > 0 && b > 0)
      scale = a / b;
    else if (const auto c = curve(found); c.is_known())
      scale = 1 / c.at(static_cast<double>(n_sequences));
  }
  std::vector<std::pair<double, double>> points;
  for (const auto& [n, c] : s->*of) {
    double ratio = c.ratio.value();
    // Catching up is never cheaper: so a figure of a bad hour does not outlive it where nothing is drafted any more.
    if (const auto again = s->again.find(n); again != s->again.end() && again->second.ratio.n() >= sure_samples)
      ratio = std::min(ratio, again->second.ratio.value());
    points.emplace_back(c.rows, ratio);
  }
  if (points.size() == 1) points.insert(points.begin(), {0.0, points[0].second * fixed_part});
  return cost_curve(std::move(points), scale);
}

int64_t step_costs::n_since_plain(int64_t n_sequences) const {
  const auto s = sizes_.find(bucket(n_sequences));
  if (s == sizes_.end() || s->second.n_plain == 0) return n_steps_;
  return n_steps_ - s->second.plain[(s->second.n_plain - 1) % s->second.plain.size()].first;
}

} // namespace troupe
