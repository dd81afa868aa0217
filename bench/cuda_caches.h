// Benches of what reads the caches: attention and the indexer, over records and over floats.
#pragma once

#include "gpu/backend.h"

#include <functional>
#include <string>

namespace troupe::bench {

// A cache of n blocks or slots of `rows`, each filled with the same rounded normal rows.
tensor make_cache(backend&, cache_form, int64_t n, int64_t rows, quantiser how, int64_t dim);

// Rows of those that are wanted.
void bench_caches(backend&, const std::function<bool(const std::string&)>& wanted);

} // namespace troupe::bench
