// Stop strings over the shared automaton: its depth is exactly what must be held back.
#include "model/stop_strings.h"

#include <utility>

namespace troupe {

stop_strings::stop_strings(std::vector<std::string> strings, bool include)
    : strings_(std::move(strings)), include_(include), matcher_(strings_) {}

bool stop_strings::push(std::string_view text, std::string& emit) {
  if (matched_) return true;
  if (strings_.empty()) {
    emit += text;
    return false;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    state_ = matcher_.step(state_, static_cast<uint8_t>(text[i]));
    const int32_t ended = matcher_.longest_ending(state_);
    if (ended < 0) continue;
    matched_ = strings_[static_cast<size_t>(ended)];
    held_ += text.substr(0, i + 1);
    emit.append(held_, 0, held_.size() - (include_ ? 0 : matched_->size()));
    held_.clear();
    return true;
  }
  const size_t keep = matcher_.depth(state_);
  if (keep <= text.size()) {
    emit += held_;
    emit += text.substr(0, text.size() - keep);
    held_.assign(text.substr(text.size() - keep));
  } else { // the suffix reaches back into what was held
    held_ += text;
    emit.append(held_, 0, held_.size() - keep);
    held_.erase(0, held_.size() - keep);
  }
  return false;
}

stop_strings::step stop_strings::push(std::string_view text) {
  step s;
  if (matched_) return s;
  if (push(text, s.emit)) s.matched = matched_;
  return s;
}

std::string stop_strings::finish() {
  state_ = string_matcher::root;
  return std::exchange(held_, {});
}

} // namespace troupe
