// The entry points of the deepseek_v41 family, for the list in model.cpp.
#pragma once

#include "model/model.h"

#include <memory>
#include <string>

namespace troupe::deepseek_v41 {

model_info read_info(const std::string& folder);
std::shared_ptr<const text_side> load_text(const std::string& folder);
std::unique_ptr<table_reader> open_engram(const std::string& folder, int rank, int n_ranks, int32_t max_sequences,
                                          int64_t in_memory_bytes);
std::unique_ptr<model> load_model(backend&, const model_options&, const load_progress&);
state_bytes plan_state(const std::string& folder, cache_form);

} // namespace troupe::deepseek_v41
