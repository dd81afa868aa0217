// The halves of a layer around the residual copies.
#include "model/deepseek_v41/block.h"

namespace troupe::deepseek_v41 {
namespace {

// Coefficients from the copies before the half; `pre` is for the half after it.
void mix(step_context& ctx, const mix_weights& w, tensor pre) {
  mix_args a;
  a.pre = pre;
  a.post = ctx.b.post.slice(0, ctx.rows.n);
  a.comb = ctx.b.comb.slice(0, ctx.rows.n);
  a.h = ctx.h;
  a.fn = w.fn.get();
  a.scale = w.scale;
  a.base = w.base;
  a.iterations = ctx.c.sinkhorn_iterations;
  a.eps = ctx.c.eps;
  a.hc_eps = ctx.c.hc_eps;
  ctx.be.mix(a);
}

bool is_tapped(const step_context& ctx, const block_weights& w) { return w.role.tap >= 0 && ctx.b.taps; }

void tap(step_context& ctx, int32_t index) {
  const int64_t n = ctx.rows.n, taps = ctx.b.taps.shape[1];
  const tensor mean = ctx.b.x.slice(0, n);
  ctx.be.mean_copies(mean, ctx.h);
  ctx.be.copy_rows(ctx.b.taps.reshape({ctx.b.taps.rows() * taps, ctx.c.dim}),
                   ctx.b.tap_rows[static_cast<size_t>(index)].slice(0, n), mean, {});
}

} // namespace

bool run_block(step_context& ctx, const block_weights& w, const layer_cache& cache, const block_chain& chain) {
  const int64_t n = ctx.rows.n;
  const bool draft_stage = ctx.layer >= ctx.c.layers;
  backend& be = ctx.be;
  const tensor x = ctx.b.x.slice(0, n), y = ctx.b.y.slice(0, n);
  const tensor pre_attention = ctx.b.pre_attention.slice(0, n), pre_moe = ctx.b.pre_moe.slice(0, n);
  const tensor post = ctx.b.post.slice(0, n), comb = ctx.b.comb.slice(0, n);

  if (w.role.engram_slot >= 0) {
    run_engram(ctx, w.engram, w.role.engram_slot);
    ctx.show("engram_out", ctx.h);
  }
  if (is_tapped(ctx, w)) tap(ctx, w.role.tap);

  be.beside([&] { mix(ctx, w.attention_mix, pre_attention); });
  if (!chain.has_input) be.fold_norm(x, ctx.h, ctx.pre, w.attention.norm, ctx.c.eps); // by the mix of the half before
  ctx.show("attn_in", x);
  run_attention(ctx, w.attention, w.role, cache, y, x);
  ctx.show("attn_out", y);
  be.meet();
  ctx.show("hc_attn_pre", pre_attention);
  ctx.show("hc_attn_post", post);
  ctx.show("hc_attn_comb", comb);
  if (ctx.seen) { // and perhaps changed: the streams are shown before they are read
    be.expand(ctx.h, y, post, comb);
    ctx.show("stream_mid", ctx.h);
    be.fold_norm(x, ctx.h, pre_attention, w.moe.norm, ctx.c.eps);
  } else {
    be.expand_fold_norm(ctx.h, y, {}, post, comb, x, pre_attention, w.moe.norm, ctx.c.eps);
  }
  ctx.show("ffn_in", x);
  begin_shared_expert(ctx, w.moe, x);               // while the choice of experts leaves the device idle
  be.beside([&] { mix(ctx, w.moe_mix, pre_moe); }); // ctx.pre may be this buffer: it was used above
  tensor also = run_experts(ctx, w.moe, draft_stage ? ctx.c.draft.active_experts : ctx.c.active_experts, y, x);
  if (ctx.seen && also) {
    be.add(y, also);
    also = {};
  }
  ctx.show("moe_out", y);
  // Nothing comes between: no part of the next layer, nobody who looks and perhaps writes.
  const bool goes_on =
      chain.next != nullptr && !ctx.seen && chain.next->role.engram_slot < 0 && !is_tapped(ctx, *chain.next);
  if (goes_on)
    be.expand_fold_norm(ctx.h, y, also, post, comb, x, pre_moe, chain.next->attention.norm, ctx.c.eps);
  else if (also)
    be.expand_sum(ctx.h, y, also, post, comb);
  else
    be.expand(ctx.h, y, post, comb);
  ctx.pre = pre_moe;
  ctx.show("stream", ctx.h);
  ctx.show("hc_ffn_pre", pre_moe);
  return goes_on;
}

} // namespace troupe::deepseek_v41
