// The indexer: scores of all visible entries, candidate blocks, the k best entries.       Spec: model.md section 2.5.
#pragma once

#include "gpu/backend.h"

#include <functional>

namespace troupe {

// See index_args. f32, keys also records | equal scores: the lower entry first | scratch: thread local and reused.
void select_entries_host(const index_args&, const step_rows&);

// Rows of a cache of keys, as it holds them: floats, or the addresses of records.
struct stored_keys {
  const float* const* rows;
  bool are_records;
  stored_keys from(int64_t first) const { return {rows + first, are_records}; }
};
// The floats of `n` of them, valid until the calling thread's next call.
const float* const* as_floats(stored_keys, int64_t n, int64_t dim);

// One row of it with another form of the scores: score[i] of keys[i], i < n, q (heads, dim), weight (heads); a score
// that is no number is minus infinity. Rows are independent and may run on several threads.
using index_scores_form = std::function<void(float* score, const float* q, const float* weight, int64_t heads,
                                             int64_t dim, stored_keys keys, int64_t n)>;
void select_row(const index_scores_form&, const index_args&, const step_rows&, int64_t r);

} // namespace troupe
