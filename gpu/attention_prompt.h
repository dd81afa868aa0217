// Attention of prompt rows where caches hold records, on Hopper.
#pragma once

#include "gpu/trellis_gemm.h"

#include <cstdint>

namespace troupe {

inline constexpr int prompt_heads = 64, prompt_dim = 512;
inline constexpr int prompt_turned = 32; // pairs at the end of a head that rotation turns

// In place of o: o turned back by rotation, ready for EXL3 matrices of eight heads each.
struct prompt_products {
  static constexpr int n_groups = 8, in = prompt_heads / n_groups * prompt_dim;
  const float* frequencies = nullptr; // (prompt_turned); nullptr: nothing of all this, o is wanted
  bool turns_queries = false;         // q comes as rotation would get it
  gemm_rows rows[n_groups];           // of the call's rows
  const uint16_t* suh[n_groups] = {};
};

// By shapes and types alone, so all rows of a class go one way: 64 heads of 512, all caches of records.
bool attention_prompt_serves(const attention_args&, const cuda_lane&);

// Rows [first, first + n_rows) of the step. Precondition: it serves them, and step_kv was rounded as the rings are:
// what f16 does not hold of it is lost. The scratch holds a KB for each row of the step.
void attention_prompt_cuda(const attention_args&, const step_rows&, int64_t first, int64_t n_rows, const cuda_lane&,
                           const prompt_products& = {});

} // namespace troupe
