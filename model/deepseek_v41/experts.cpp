// Router, routed experts and the shared expert of one layer.                               Spec: model.md section 2.6.
#include "model/deepseek_v41/block.h"

namespace troupe::deepseek_v41 {

void begin_shared_expert(step_context& ctx, const moe_weights& w, tensor x) {
  if (!w.shared_gate) return;
  const tensor y = ctx.b.shared.slice(0, ctx.rows.n);
  ctx.be.beside([&] { ctx.be.gated_mlp(y, x, *w.shared_gate, *w.shared_up, *w.shared_down, ctx.c.swiglu_limit); });
}

tensor run_experts(step_context& ctx, const moe_weights& w, int32_t n_active, tensor y, tensor x) {
  const int64_t n = ctx.rows.n;
  backend& be = ctx.be;
  const tensor ids = ctx.b.moe_ids.slice(0, n * n_active).reshape({n, n_active});
  const tensor weights = ctx.b.moe_weights.slice(0, n * n_active).reshape({n, n_active});
  // Draft tokens are always text: their bias_vl is never used (dspark.md section 1).
  const tensor in_image = ctx.drafting ? tensor{} : ctx.rows.vl;
  be.route(ids, weights, x, *w.gate, w.bias, ctx.drafting ? tensor{} : w.bias_vl, in_image, ctx.c.route_scale);
  ctx.show("moe_ids", ids);
  ctx.show("moe_w", weights);
  // Added behind the routed ones, so that all sums have one order; an all-reduce comes before what every rank has
  // whole.
  const tensor shared = w.shared_gate ? ctx.b.shared.slice(0, n) : tensor{};
  be.experts(y, x, *w.experts, ids, weights, ctx.c.swiglu_limit);
  be.meet(); // and what the block began
  if (w.shared_gate && w.shared_is_cut) be.add(y, shared);
  be.all_reduce_sum(y);
  return w.shared_is_cut ? tensor{} : shared;
}

} // namespace troupe::deepseek_v41
