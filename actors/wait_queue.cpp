// Order by due time; a first turn that does not fit is passed by for a bounded time.
#include "actors/wait_queue.h"

#include <algorithm>

namespace troupe {

namespace {

using namespace std::chrono_literals;

constexpr std::chrono::seconds patience[n_classes] = {0s, 10s, 60s};
constexpr auto max_passing = 5s; // after it the room that comes free is kept for the first turn
constexpr int32_t max_passes = 64;
constexpr auto before_all = 24h * 365;
constexpr int n_looked_at = 32; // turns behind the first, so that a long queue costs no more

} // namespace

batch_turns::iterator wait_queue::place(time due) {
  auto at = turns_.end();
  while (at != turns_.begin() && std::prev(at)->due > due) --at;
  return at;
}

batch_turns::iterator wait_queue::push(batch_turn&& t) {
  t.due = t.queued_at + patience[t.rank];
  return turns_.insert(place(t.due), std::move(t));
}

void wait_queue::take_back(batch_turns& from, batch_turns::iterator t) {
  const int32_t rank = class_now(*t);
  t->due = t->queued_at + patience[rank];
  if (rank == 0) t->due -= before_all;
  t->n_passed = max_passes;
  turns_.splice(place(t->due), from, t);
}

int64_t wait_queue::n_before(int32_t rank, time now) const {
  int64_t n = size();
  for (auto at = turns_.rbegin(); at != turns_.rend() && at->due > now + patience[rank]; ++at) --n;
  return n;
}

batch_turns::iterator wait_queue::first() {
  return std::find_if(turns_.begin(), turns_.end(), [](const batch_turn& t) { return !t.paused; });
}

batch_turns::iterator wait_queue::next(const std::function<bool(const batch_turn&)>& fits, time now) {
  const auto first = this->first();
  if (first == turns_.end() || fits(*first)) return first;
  if (first->n_passed == 0) first->passed_at = now;
  if (first->n_passed >= max_passes || now - first->passed_at > max_passing) return turns_.end();
  auto at = std::next(first);
  for (int i = 0; i < n_looked_at && at != turns_.end(); ++i, ++at) {
    if (at->paused || !fits(*at)) continue;
    ++first->n_passed;
    return at;
  }
  return turns_.end();
}

} // namespace troupe
