// A due time each; the first that may go, goes.
#include "actors/prepare_queue.h"

#include <algorithm>

namespace troupe {

namespace {

// Tokenising is a few MB/s on one core; what matters is the order it gives, not the number.
constexpr int64_t bytes_per_us = 4;

} // namespace

prepare_ticket prepare_queue::push(turn_id turn, int64_t work_bytes, time now) {
  const place at{now + std::chrono::microseconds(work_bytes / bytes_per_us), prepare_ticket{++last_}};
  order_.emplace(at, entry{turn, is_long(work_bytes)});
  places_.emplace(turn, at);
  return at.second;
}

std::optional<prepare_ticket> prepare_queue::next(bool only_short) {
  const auto found =
      std::find_if(order_.begin(), order_.end(), [&](const auto& e) { return !only_short || !e.second.is_long; });
  if (found == order_.end()) return std::nullopt;
  const auto ticket = found->first.second;
  if (const auto named = places_.find(found->second.turn); named != places_.end() && named->second == found->first)
    places_.erase(named);
  order_.erase(found);
  return ticket;
}

std::optional<prepare_ticket> prepare_queue::erase(turn_id turn) {
  const auto found = places_.find(turn);
  if (found == places_.end()) return std::nullopt;
  const auto ticket = found->second.second;
  order_.erase(found->second);
  places_.erase(found);
  return ticket;
}

int64_t work_bytes(const chat_request& r) {
  size_t n = r.chat.response_format.size();
  for (const auto& m : r.chat.messages) {
    n += m.reasoning.size();
    for (const auto& p : m.parts) n += p.text.size();
    for (const auto& c : m.calls)
      for (const auto& a : c.arguments) n += a.value.size();
  }
  for (const auto& t : r.chat.tools) n += t.schema_line.size();
  for (const auto& p : r.prompts) n += p.size();
  for (const auto& p : r.prompt_ids) n += p.size();
  for (const auto& f : r.image_files) n += f.size();
  return static_cast<int64_t>(n);
}

int64_t work_bytes(const text_question& q) {
  return work_bytes(q.request) + static_cast<int64_t>(q.text.size() + q.ids.size());
}

} // namespace troupe
