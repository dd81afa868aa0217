// Finds the first completed stop string in text that arrives in pieces. Spec: chat.md 5.4.
#pragma once

#include "model/string_matcher.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// The match that completes first wins; of several that complete at one character the longest. Whatever the pieces, the
// result is the same, and text once emitted is never part of a match: only the longest suffix that begins some stop
// string is held back.
class stop_strings {
public:
  // Precondition: every string is non-empty valid UTF-8. `include`: the stop text itself is emitted too.
  explicit stop_strings(std::vector<std::string> strings, bool include = false);

  struct step {
    std::string emit;
    std::optional<std::string> matched; // from then on all text is discarded
  };
  step push(std::string_view text);
  // The same, appending to `emit`; true when a stop string is now complete.
  bool push(std::string_view text, std::string& emit);
  // The held text (empty after a match): nothing more comes.
  std::string finish();

  bool is_idle() const { return strings_.empty(); } // there is nothing to look for
  const std::optional<std::string>& matched() const { return matched_; }

private:
  std::vector<std::string> strings_;
  bool include_;
  string_matcher matcher_;
  uint32_t state_ = string_matcher::root;
  std::string held_; // Invariant: size() == matcher_.depth(state_)
  std::optional<std::string> matched_;
};

} // namespace troupe
