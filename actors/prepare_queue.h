// What waits for the crew of prepare, and who is next: short before long, and nobody for ever. Knows no CAF.
#pragma once

#include "actors/messages.h"

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

namespace troupe {

enum class prepare_ticket : uint64_t {};

// Ordered by arrival plus the time the work is expected to take: a long text is overtaken only by what arrives while it
// would have been worked on anyway.
class prepare_queue {
public:
  using time = std::chrono::steady_clock::time_point;

  // `turn` names it for erase(); turns and questions share one space of ids.
  prepare_ticket push(turn_id turn, int64_t work_bytes, time now);
  // The next one, which leaves the queue. With `only_short`, what is long stays: so that one of the crew is always
  // near.
  std::optional<prepare_ticket> next(bool only_short);
  // Takes it out before its turn; nothing if it does not wait here.
  std::optional<prepare_ticket> erase(turn_id);
  static bool is_long(int64_t work_bytes) { return work_bytes > long_bytes; }

  size_t size() const { return order_.size(); }

private:
  static constexpr int64_t long_bytes = 256 << 10; // about 50 ms of tokenising, 10 of image decoding
  using place = std::pair<time, prepare_ticket>;
  struct entry {
    turn_id turn{};
    bool is_long = false;
  };
  std::map<place, entry> order_;
  std::unordered_map<turn_id, place> places_;
  uint64_t last_ = 0;
};

// Bytes of text and images to work through.
int64_t work_bytes(const chat_request&);
int64_t work_bytes(const text_question&);

} // namespace troupe
