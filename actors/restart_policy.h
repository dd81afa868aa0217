// When the next restart may come: at most so many in a while, with growing pauses between them. Knows no CAF.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>

namespace troupe {

class restart_policy {
public:
  using clock = std::chrono::steady_clock;
  static constexpr size_t max_restarts = 5; // in `window`
  static constexpr auto window = std::chrono::seconds(60);
  static constexpr auto first_pause = std::chrono::milliseconds(100), longest_pause = std::chrono::milliseconds(5000);

  // Something died. How long to wait before it is started again; nullopt: too often, a restart does not help.
  std::optional<clock::duration> next(clock::time_point now) {
    while (!restarts_.empty() && now - restarts_.front() >= window) restarts_.pop_front();
    const size_t n = restarts_.size();
    if (n >= max_restarts) return std::nullopt;
    restarts_.push_back(now);
    if (n == 0) return clock::duration::zero();
    return std::min<clock::duration>(first_pause * (int64_t{1} << (n - 1)), longest_pause);
  }

private:
  std::deque<clock::time_point> restarts_;
};

} // namespace troupe
