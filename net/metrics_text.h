// /metrics: the process's atomics in Prometheus text form, under vLLM's names where the meaning is the same (api.md 8).
#pragma once

#include "actors/counters.h"
#include "net/http_counts.h"

#include <string>

namespace troupe {

// Reads atomics only. `model`: the value of label model_name; empty while loading. `block_tokens`: of a KV block.
std::string metrics_text(const counters&, const http_counts&, int64_t bodies_bytes, const std::string& model,
                         int64_t block_tokens);

} // namespace troupe
