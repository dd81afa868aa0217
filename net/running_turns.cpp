// Two maps under one lock; a turn passes here twice, never for a token.
#include "net/running_turns.h"

#include <algorithm>
#include <utility>

namespace troupe {

uint64_t running_turns::add(std::string request_id, std::function<void()> abort) {
  const std::lock_guard lock(mutex_);
  by_id_.emplace(request_id, ++last_);
  turns_.emplace(last_, turn{std::move(request_id), std::move(abort)});
  return last_;
}

void running_turns::remove(uint64_t place) {
  const std::lock_guard lock(mutex_);
  const auto found = turns_.find(place);
  if (found == turns_.end()) return;
  const auto [from, to] = by_id_.equal_range(found->second.request_id);
  by_id_.erase(std::find_if(from, to, [&](const auto& e) { return e.second == place; }));
  turns_.erase(found);
}

size_t running_turns::abort(std::string_view request_id) {
  for (const std::string_view prefix : {"chatcmpl-", "cmpl-"})
    if (request_id.starts_with(prefix)) {
      request_id.remove_prefix(prefix.size());
      break;
    }
  const std::lock_guard lock(mutex_);
  const auto [from, to] = by_id_.equal_range(request_id);
  for (auto at = from; at != to; ++at) turns_.at(at->second).abort();
  return static_cast<size_t>(std::distance(from, to));
}

} // namespace troupe
