// What the disks of all ranks say, put together: an entry counts when every rank has it. Knows no CAF.
#pragma once

#include "actors/prefix_index.h"
#include "actors/tier_messages.h"

#include <optional>
#include <unordered_map>
#include <vector>

namespace troupe {

class tier_census {
public:
  explicit tier_census(int32_t n_ranks) : n_ranks_(n_ranks) {}

  struct found {
    std::vector<prefix_index::stored> entries; // that all ranks have
    std::vector<entry_id> strays;              // that some have
    entry_id next{1};                          // above all of them
    std::vector<tier_pin> pins;                // of the last rank that spoke
    bool is_open = true;                       // on every rank
  };
  // nullopt: some rank has not said everything yet.
  std::optional<found> take(tier_listed&&);
  // The answer of all ranks to one order; nullopt: not all of them have come.
  std::optional<bool> take(const tier_result&);

private:
  struct seen {
    prefix_index::stored what;
    int32_t n = 0;
  };
  struct votes {
    int32_t n = 0;
    bool is_done = true;
  };
  int32_t n_ranks_, n_listed_ = 0;
  bool is_open_ = true;
  std::unordered_map<entry_id, seen> seen_;
  std::unordered_map<entry_id, votes> votes_; // an entry is read or written, never both at once
};

} // namespace troupe
