// TROUPE_CHECK: an invariant of ours that holds in every build; fault: named points where a test makes the world break.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace troupe {

// Logs `why` with file and line, then aborts. Only for broken code: data from files, hosts and clients is never checked
// so.
[[noreturn]] void check_failed(const char* condition, const char* why, const char* file, int line);

#define TROUPE_CHECK(condition, why)                                                                                   \
  do {                                                                                                                 \
    if (!(condition)) [[unlikely]]                                                                                     \
      ::troupe::check_failed(#condition, why, __FILE__, __LINE__);                                                     \
  } while (false)

namespace fault {

// True when a test armed `point` and its turn has come. One relaxed atomic load while nothing is armed.
bool at(std::string_view point);
// The next `times` passes of `point` after `skip` passes fail. Tests only.
void arm(std::string_view point, uint64_t skip = 0, uint64_t times = 1);
void disarm_all();
// Where a test armed `point`: what another thread stays on until the test lets go. Else nullopt.
std::optional<uint64_t> hold_at(std::string_view point);
void stay(uint64_t hold);
void let_go(); // of all that were held so far; tests only

} // namespace fault
} // namespace troupe
