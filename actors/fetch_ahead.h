// Asks for memory that is used soon, so that many loads are on their way at once and not one behind the other: between
// two steps of hundreds of streams the caches have forgotten them. Changes nothing but time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe {

// `from` may be null, and what lies there shorter: an address that is not the process's own is ignored.
inline void fetch_ahead(const void* from, size_t n_bytes) {
  constexpr uintptr_t line = 64;
  const auto first = reinterpret_cast<uintptr_t>(from);
  for (uintptr_t at = first; at < first + n_bytes; at += line) __builtin_prefetch(reinterpret_cast<const void*>(at));
}

} // namespace troupe
