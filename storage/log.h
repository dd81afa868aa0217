// The process log: spdlog with one logger; a line names its subject first ("request 4f..: ..."). No secrets, no
// prompts.
#pragma once

#include <spdlog/spdlog.h>

#include <string_view>

namespace troupe {

// Level names: trace, debug, info, warn, error, off. Unknown names throw std::invalid_argument. Writes to stderr.
void start_log(std::string_view level);

} // namespace troupe
