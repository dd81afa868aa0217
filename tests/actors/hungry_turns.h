// Turns that run short of blocks together, over the shipped model: what parking is tried on.
#pragma once

#include "tests/actors/tiny_ring.h"

#include <utility>
#include <vector>

namespace troupe {

// Three turns of 300 tokens, four choices in all, that begin with five blocks a sequence and want six.
inline std::vector<chat_request> hungry_turns() {
  std::vector<chat_request> turns;
  for (int i = 0; i < 3; ++i) {
    auto r = tiny_completion(tiny_words(24 + i, i + 1), 310, static_cast<draw>(i));
    r.sampling.seed = 40 + static_cast<uint64_t>(i);
    r.n = i == 1 ? 2 : 1;
    turns.push_back(std::move(r));
  }
  return turns;
}

} // namespace troupe
