// The text of the null rank, and its stamps.
#include "actors/null_text.h"

#include "storage/check.h"

#include <utility>

namespace troupe {

null_text::null_text(std::vector<int32_t> text, std::vector<int32_t> stamps)
    : text_(std::move(text)), stamps_(std::move(stamps)) {
  TROUPE_CHECK(!text_.empty(), "there is a text to emit");
  TROUPE_CHECK(stamps_.empty() || stamps_.size() == stamp_alphabet.size(), "each character of a stamp has its token");
}

void null_text::begin(sequence_id id, size_t n_generated) {
  places_[id] = {stamps_.empty() ? n_generated % text_.size() : 0, 0};
}

void null_text::end(sequence_id id) { places_.erase(id); }

void null_text::clear() {
  places_.clear();
  marked_.clear();
}

int32_t null_text::next(sequence_id id) {
  auto& p = places_[id];
  if (stamps_.empty()) {
    const int32_t token = text_[p.at];
    p.at = p.at + 1 == text_.size() ? 0 : p.at + 1;
    return token;
  }
  if (p.at == 0) {
    marked_.push_back(id);
    p.at = 1;
    return stamps_[0];
  }
  const auto shift = 5 * (static_cast<size_t>(stamp_digits) - p.at);
  p.at = p.at == stamp_digits ? 0 : p.at + 1;
  return stamps_[1 + ((p.stamp_us >> shift) & 31)];
}

void null_text::sent(time now) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count();
  for (const auto id : marked_)
    if (const auto found = places_.find(id); found != places_.end()) found->second.stamp_us = static_cast<uint64_t>(us);
  marked_.clear();
}

} // namespace troupe
