// The twins: row by row, slot by slot.
#include "gpu/moe.h"

#include "gpu/exp.h"

#include <algorithm>
#include <cmath>

namespace troupe {
namespace {

float softplus(float v) { return v > 20 ? v : std::log1p(std::exp(v)); }

// One expert on one row: out (down.out), scratch of two widths.
void expert_row(float* out, const float* x, const host_matrix& gate, const host_matrix& up, const host_matrix& down,
                float weight, float limit, std::vector<float>& scratch) {
  scratch.resize(static_cast<size_t>(2 * gate.out));
  float *g = scratch.data(), *u = g + gate.out;
  linear_row(g, x, gate);
  linear_row(u, x, up);
  gate_activation(g, u, gate.out, weight, limit);
  linear_row(out, g, down);
}

} // namespace

const host_expert_set& as_host(const expert_set& set) { return static_cast<const host_expert_set&>(set); }

void gate_activation(float* g, const float* u, int64_t n, float weight, float limit) {
  for (int64_t i = 0; i < n; ++i) {
    const float a = limit > 0 ? std::min(g[i], limit) : g[i];
    const float b = limit > 0 ? std::clamp(u[i], -limit, limit) : u[i];
    g[i] = silu_f32(a) * b * weight;
  }
}

void route_row(int32_t* ids, float* weights, float* score, const float* bias, int64_t n_experts, int64_t k,
               float scale) {
  for (int64_t e = 0; e < n_experts; ++e) score[e] = std::sqrt(softplus(score[e]));
  float sum = 0;
  for (int64_t j = 0; j < k; ++j) {
    int64_t best = -1;
    for (int64_t e = 0; e < n_experts; ++e) {
      if (std::find(ids, ids + j, e) != ids + j) continue;
      if (best < 0 || score[e] + bias[e] > score[best] + bias[best]) best = e; // the first of equal ones
    }
    ids[j] = static_cast<int32_t>(best);
    weights[j] = score[best];
    sum += score[best];
  }
  for (int64_t j = 0; j < k; ++j) weights[j] = weights[j] / (sum + 1e-20F) * scale;
}

void route_host(tensor ids, tensor weights, tensor x, const matrix& gate, tensor bias, tensor bias_vl, tensor vl,
                float scale) {
  const int64_t n_rows = ids.shape[0], k = ids.shape[1];
  TROUPE_CHECK(k <= gate.out, "no more experts are chosen than there are");
  thread_local std::vector<float> score;
  score.resize(static_cast<size_t>(gate.out));
  for (int64_t r = 0; r < n_rows; ++r) {
    linear_row(score.data(), x.f32() + r * gate.in, as_host(gate));
    const bool image = vl && bias_vl && vl.i32()[r] != 0;
    route_row(ids.i32() + r * k, weights.f32() + r * k, score.data(), image ? bias_vl.f32() : bias.f32(), gate.out, k,
              scale);
  }
}

void experts_host(tensor y, tensor x, const expert_set& any, tensor ids, tensor weights, float limit) {
  const host_expert_set& set = as_host(any);
  const int64_t n_rows = ids.shape[0], k = ids.shape[1], dim = n_rows == 0 ? 0 : y.n_elements() / n_rows;
  thread_local std::vector<float> scratch, out;
  out.resize(static_cast<size_t>(dim));
  for (int64_t r = 0; r < n_rows; ++r) {
    float* row = y.f32() + r * dim;
    std::fill(row, row + dim, 0.0F);
    for (int64_t j = 0; j < k; ++j) {
      const int32_t id = ids.i32()[r * k + j] - set.first;
      if (id < 0 || id >= set.n_experts) continue;
      const auto& e = set.experts[static_cast<size_t>(id)];
      expert_row(out.data(), x.f32() + r * dim, *e.gate, *e.up, *e.down, weights.f32()[r * k + j], limit, scratch);
      for (int64_t i = 0; i < dim; ++i) row[i] += out[i];
    }
  }
}

void gated_mlp_host(tensor y, tensor x, const matrix& gate, const matrix& up, const matrix& down, float limit) {
  const int64_t n_rows = x.n_elements() / gate.in;
  thread_local std::vector<float> scratch;
  for (int64_t r = 0; r < n_rows; ++r)
    expert_row(y.f32() + r * down.out, x.f32() + r * gate.in, as_host(gate), as_host(up), as_host(down), 1, limit,
               scratch);
}

} // namespace troupe
