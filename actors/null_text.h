// What the rank without a model says to each sequence: a fixed text over and over, or the time it was said at. No CAF.
#pragma once

#include "actors/messages.h"

#include <chrono>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troupe {

// A stamp is eight tokens: a mark, then seven digits (base 32, highest first) of the time in microseconds at which the
// mark left the rank, by the machine's monotonic clock, modulo 2^35 us (9.5 h). A client on the same machine that notes
// when the mark arrived knows what the way cost.
inline constexpr std::string_view stamp_alphabet = "@0123456789abcdefghijklmnopqrstuv"; // the mark, the digits
inline constexpr int stamp_digits = 7;

class null_text {
public:
  using time = std::chrono::steady_clock::time_point;
  // `text`: ids, not empty. `stamps`: one id for each character of stamp_alphabet, or empty: the text is said.
  null_text(std::vector<int32_t> text, std::vector<int32_t> stamps);

  void begin(sequence_id, size_t n_generated); // goes on behind so many tokens; a stamp begins anew
  void end(sequence_id);
  void clear();
  int32_t next(sequence_id);
  void sent(time now); // what next() gave since the last call leaves now

private:
  struct place {
    size_t at = 0; // in the text or in the stamp
    uint64_t stamp_us = 0;
  };

  std::vector<int32_t> text_, stamps_;
  std::unordered_map<sequence_id, place> places_;
  std::vector<sequence_id> marked_; // their marks have not left yet
};

} // namespace troupe
