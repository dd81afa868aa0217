// Whether this is a build under a sanitizer: it keeps what was freed and is up to fifteen times slower.
#pragma once

namespace troupe::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool is_sanitized = true;
#else
inline constexpr bool is_sanitized = false;
#endif

} // namespace troupe::test
