// One piece of work cut into many, spread over threads for the length of a call: reading and making weights.
#pragma once

#include <cstddef>
#include <functional>

namespace troupe {

// Cores of this machine, 1 at least.
unsigned n_cores();

// Calls work(0) .. work(n - 1), each once, from the calling thread and up to n_threads - 1 others, in no fixed order,
// and returns when all of them have. What the lowest index that failed threw is thrown again; after a failure indices
// that have not begun are left out. Precondition: n_threads >= 1.
void for_each_parallel(size_t n, unsigned n_threads, const std::function<void(size_t)>& work);

} // namespace troupe
