// Experts as batches: the rows of an expert run through it together, whatever the order they came in.
#pragma once

#include "gpu/fast_linear.h"
#include "gpu/fast_rows.h"
#include "gpu/host_threads.h"
#include "gpu/moe.h"

namespace troupe {

// Working memory of these operations; grows to the largest call and is then reused. One thread at a time.
struct moe_workspace {
  struct batch {
    const host_expert_set::expert* of = nullptr;
    int64_t first = 0, n_rows = 0; // in the buffers below
  };
  std::vector<batch> batches;
  std::vector<int64_t> rows, places; // of a place in the buffers: its row; of a slot: its place, -1 for none
  std::vector<float> x, gate, up, down, slot_weight;
};

// The bits of experts_host and gated_mlp_host.
void experts_fast(vector_level level, host_threads& threads, moe_workspace& work, tensor y, tensor x,
                  const expert_set& set, tensor ids, tensor weights, float limit);
void gated_mlp_fast(vector_level level, host_threads& threads, moe_workspace& work, tensor y, tensor x,
                    const matrix& gate, const matrix& up, const matrix& down, float limit);

} // namespace troupe
