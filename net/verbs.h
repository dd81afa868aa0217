// The verbs that serve or that ask a running server. Each returns the process's exit code: 0 done, 1 failed, 2 cannot
// start and a retry will not help, 3 stopped but something was cut short (design.md section 1).
#pragma once

#include "actors/config.h"

#include <string>

namespace troupe {

int run_serve(const loaded_config&, const std::string& version);
// `url` empty: the configured host and port.
int run_smoke(const settings&, std::string url);
int run_status(const settings&, std::string url);

} // namespace troupe
