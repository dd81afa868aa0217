// Benches of what reads the caches: attention and the indexer, over records and over floats.
#pragma once

#include "gpu/backend.h"

#include <functional>
#include <string>

namespace troupe::bench {

// Rows of those that are wanted.
void bench_caches(backend&, const std::function<bool(const std::string&)>& wanted);

} // namespace troupe::bench
