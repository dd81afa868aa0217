// What a step runs on its rows besides EXL3 matrices, at the shapes of the real model: rows of bench_cuda.
#pragma once

#include "gpu/backend.h"

#include <functional>
#include <string>

namespace troupe::bench {

// Times `call`, which reads or writes `any`; `bytes`: what it must move at least.
using measure_call =
    std::function<void(const std::string& name, const std::function<void()>& call, tensor any, double bytes)>;

// For a step of `rows` rows of one sequence that ends at position `context`. `wanted` is asked before anything is made.
void bench_rows(backend&, int64_t rows, int64_t context, const std::function<bool(const std::string&)>& wanted,
                const measure_call&);

} // namespace troupe::bench
