// The indexer: scores of all visible entries, candidate blocks, the k best entries.       Spec: model.md section 2.5.
#pragma once

#include "gpu/backend.h"

namespace troupe {

// See index_args. All f32 | equal scores: the lower entry first | scratch: thread local and reused.
void select_entries_host(const index_args&, const step_rows&);

} // namespace troupe
