// Framing of server-sent events, api.md 2.4: "data: " + one-line JSON + LF LF; comments keep a quiet stream open.
#pragma once

#include <string>
#include <string_view>

namespace troupe::sse {

inline constexpr std::string_view comment = ": ";
inline constexpr std::string_view data = "data: ", end = "\n\n", done = "data: [DONE]\n\n", ping = ": ping\n\n";

} // namespace troupe::sse
