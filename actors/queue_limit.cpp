// The wording of 429, and the two formulas behind it.
#include "actors/queue_limit.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace troupe {

namespace {

constexpr double max_wait_s = 600; // a longer Retry-After would only be a guess

api_error full(std::string message, const queue_view& v) {
  return {429, "RateLimitError", std::move(message), {}, expected_wait_s(v), static_cast<int32_t>(v.position)};
}

std::string expectation(const queue_view& v) {
  return "position " + std::to_string(v.position) + ", expected wait about " + std::to_string(expected_wait_s(v)) +
         " s.";
}

} // namespace

int32_t expected_wait_s(const queue_view& v) {
  const auto n = static_cast<double>(std::max<int64_t>(v.n_running, 1));
  return static_cast<int32_t>(std::clamp(std::ceil(static_cast<double>(v.position) * v.turn_s / n), 1.0, max_wait_s));
}

api_error queue_full(const queue_view& v) {
  return full("The queue is full: " + std::to_string(v.n_waiting) + " requests are waiting (limit " +
                  std::to_string(v.max_queue) + "). Yours would be at " + expectation(v),
              v);
}

api_error waited_too_long(const queue_view& v, int32_t max_wait_s) {
  return full("The request has waited " + std::to_string(max_wait_s) +
                  " s, as long as this server lets one wait. It was at " + expectation(v),
              v);
}

std::optional<api_error> refuse_early(const counters& n, int64_t n_arriving, int32_t max_queue, int32_t max_running) {
  const int64_t n_running = n.running, n_before = n_arriving + n.preparing + n.waiting;
  const int64_t n_free = std::max<int64_t>(max_running - n_running, 0);
  if (n_before < max_queue + n_free) return std::nullopt;
  const double turn_s = static_cast<double>(n.turn_us) / 1e6;
  return queue_full({n_before, n_before + 1, n_running, turn_s, max_queue});
}

} // namespace troupe
