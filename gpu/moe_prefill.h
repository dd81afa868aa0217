// Routed experts for prefill: pairs are sorted by expert into segments whose rows are multiplied together, so an
// expert's weights are decoded once for up to a tile of rows.                                          Spec:
// exl3.md 13.6.
#pragma once

#include "gpu/moe_cuda.h"

namespace troupe {

// As experts_cuda, for EXL3 sets on a device with wgmma, but a row's outputs are added in ascending order of experts.
// All pairs are sorted by expert once, then run in slabs that fit the lane's scratch: about 39 KB a pair of the real
// model (x for gate and up, their products), so an expert is decoded once whatever the scratch holds.
void prefill_experts_cuda(tensor y, tensor x, const cuda_expert_set&, tensor ids, tensor weights, float limit,
                          const cuda_lane&);

} // namespace troupe
