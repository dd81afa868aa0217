// What the tests of synthetic checkpoints share.
#pragma once

#include <stdexcept>
#include <string>

namespace synth_test {

inline const std::string tiny_folder = TROUPE_SOURCE_DIR "/etc/models/tiny";

template <class Call> std::string refusal(Call call) {
  try {
    call();
  } catch (const std::runtime_error& e) { return e.what(); }
  return "accepted";
}
inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

} // namespace synth_test
