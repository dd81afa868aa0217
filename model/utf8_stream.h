// Bytes of tokens in, whole characters out: nothing is ever sent that a later byte could complete. Spec: chat.md 5.3.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe {

// True when `bytes` is complete, valid UTF-8 (RFC 3629: no surrogates, no overlong forms, at most U+10FFFF).
bool is_utf8(std::string_view bytes);

class utf8_stream {
public:
  // Appends to `out` what is complete; an incomplete tail of at most 3 bytes stays. A byte that cannot continue a
  // sequence turns the broken part into one U+FFFD at once (maximal subpart rule).
  void push(std::string_view bytes, std::string& out);
  std::string push(std::string_view bytes) {
    std::string out;
    push(bytes, out);
    return out;
  }
  // Appends one U+FFFD for an incomplete tail and forgets it.
  void finish(std::string& out);
  std::string finish() {
    std::string out;
    finish(out);
    return out;
  }
  bool is_empty() const { return n_held_ == 0; }

private:
  char held_[4] = {};
  uint8_t n_held_ = 0;
};

} // namespace troupe
