// Routing and gated experts.                                                                          Spec:
// model.md 2.6
#pragma once

#include "gpu/linear.h"

#include <vector>

namespace troupe {

// Experts first .. first + n_experts - 1 of one layer. Owns their matrices.
class host_expert_set final : public expert_set {
public:
  struct expert {
    std::unique_ptr<host_matrix> gate, up, down;
  };
  std::vector<expert> experts;
};
// Precondition: `set` was made by a host backend.
const host_expert_set& as_host(const expert_set& set);

// s = sqrt(softplus(gate x)); ids (R, k) i32 = the k largest of s + bias, best first, equal ones by lower id;
// weights (R, k) f32 = s / (sum of the k + 1e-20) * scale. bias (E) f32; bias_vl (E) for rows with vl != 0, both or
// neither empty.
void route_host(tensor ids, tensor weights, tensor x, const matrix& gate, tensor bias, tensor bias_vl, tensor vl,
                float scale);

// The same for one row whose gate outputs are in score (n_experts), which is overwritten.
void route_row(int32_t* ids, float* weights, float* score, const float* bias, int64_t n_experts, int64_t k,
               float scale);

// y (R, D) = sum over the k slots in slot order, of those whose expert the set holds, of
// down(silu(min(g, limit)) * clamp(u, -limit, limit) * weight), g = gate x, u = up x; limit <= 0: no clamp.
// A row with no expert here is zero. ids (R, k), weights (R, k), x (R, D); y is not x.
void experts_host(tensor y, tensor x, const expert_set& set, tensor ids, tensor weights, float limit);

// y (R, out) = the same of one expert with weight 1.
void gated_mlp_host(tensor y, tensor x, const matrix& gate, const matrix& up, const matrix& down, float limit);

// a[i] = silu(min(g[i], limit)) * clamp(u[i]) * weight, in place of g.
void gate_activation(float* g, const float* u, int64_t n, float weight, float limit);

} // namespace troupe
