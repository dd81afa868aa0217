// Attention of one layer: window rows, compressed rows, the indexer's selection.  Spec: model.md sections 2.3 - 2.5.
#include "model/deepseek_v41/block.h"

#include <array>
#include <cmath>
#include <vector>

namespace troupe::deepseek_v41 {
namespace {

void round_cache(step_context& ctx, tensor x, quantiser q) {
  if (ctx.round_caches) ctx.be.quantise(x, q);
}

// All products with x: qr, the window row, and what the compressor makes of it.
void project(step_context& ctx, const attention_weights& w, const layer_role& role, tensor x) {
  const int64_t n = ctx.rows.n;
  std::vector<tensor> y{ctx.b.qr.slice(0, n), ctx.b.kv.slice(0, n)};
  std::vector<const matrix*> by{w.wq_a.get(), w.wkv.get()};
  if (role.owns_kv) {
    y.push_back((role.ratio == 1 ? ctx.b.latent : ctx.b.u).slice(0, n));
    by.push_back(w.compressor.wkv.get());
  }
  if (role.owns_kv && role.ratio == 2) {
    y.push_back(ctx.b.g.slice(0, n));
    by.push_back(w.compressor.wgate.get());
  }
  ctx.be.linears(y, x, by);
}

// The products of it -> the window row.
void finish_window_row(step_context& ctx, const attention_weights& w, tensor frequencies, tensor kv) {
  ctx.be.rms_norm(kv, kv, w.kv_norm, ctx.c.eps);
  ctx.be.rope(kv, ctx.rows.rows.position, frequencies, false);
  round_cache(ctx, kv, quantiser::fp8_32);
}

// Entries that end at these rows -> the source's compressed rows and index keys.                      model.md 2.4
void compress(step_context& ctx, const compressor_weights& w, const layer_role& role, const layer_cache& cache) {
  const int64_t n = ctx.rows.n;
  backend& be = ctx.be;
  const tensor latent = ctx.b.latent.slice(0, n), key = ctx.b.index_k.slice(0, n);
  const tensor entries = ctx.rows.entries[role.ratio - 1], positions = ctx.rows.entry_positions[role.ratio - 1];
  if (role.ratio == 2)
    be.compress_pairs(latent, ctx.b.u.slice(0, n), ctx.b.g.slice(0, n), cache.pending, ctx.rows.rows);
  be.rms_norm(latent, latent, w.norm, ctx.c.eps);
  ctx.show("latent", latent);

  be.linear(key, latent, *w.index_wk); // of the latent before rotation and rounding
  be.rms_norm(key, key, w.index_norm, ctx.c.eps);
  be.rope(key, positions, ctx.compressed_frequencies, false);
  round_cache(ctx, key, quantiser::fp4_e8m0_32);
  be.scatter_entries(cache.keys, key, entries, quantiser::fp4_e8m0_32, ctx.rows.rows);
  ctx.show("index_k", key);

  be.rope(latent, positions, ctx.compressed_frequencies, false);
  round_cache(ctx, latent, quantiser::fp4_e4m3_16);
  be.scatter_entries(cache.compressed, latent, entries, quantiser::fp4_e4m3_16, ctx.rows.rows);
  ctx.show("comp", latent);
}

// What the indexer's heads count in each row.
void weigh_heads(step_context& ctx, const indexer_weights& w, tensor x) {
  const tensor weight = ctx.b.index_w.slice(0, ctx.rows.n);
  ctx.be.linear(weight, x, *w.weights_proj);
  const auto heads = static_cast<float>(ctx.c.index_heads), dim = static_cast<float>(ctx.c.index_dim);
  ctx.be.scale(weight, 1.0F / std::sqrt(dim) / std::sqrt(heads));
}

// The entries that this layer and those after it attend to. Precondition: weigh_heads.                model.md 2.5
void select(step_context& ctx, const layer_role& role, const layer_cache& cache) {
  const int64_t n = ctx.rows.n;
  backend& be = ctx.be;
  index_args a;
  a.q = ctx.b.index_q.slice(0, n);
  a.weight = ctx.b.index_w.slice(0, n);
  a.selected = ctx.selected;
  a.keys = cache.keys;
  a.ratio = role.ratio;
  a.candidate_block = ctx.c.candidate_block_size;
  if (role.makes_candidates) a.candidates_out = ctx.candidates;
  if (role.uses_candidates) a.candidates_in = ctx.candidates;
  if (ctx.b.scores) a.scores = ctx.b.scores.slice(0, n);
  be.select_entries(a, ctx.rows.rows);
  ctx.show("index_q", a.q);
  ctx.show("index_w", a.weight);
  if (a.scores) ctx.show("index_score", a.scores);
  ctx.show("index_topk", a.selected);
  if (role.makes_candidates) ctx.show("candidates", ctx.candidates);
}

// attention_project, with o to be looked at.
void project_seen(step_context& ctx, const attention_args& a, tensor frequencies, const attention_weights& w,
                  tensor z) {
  ctx.be.attention(a, ctx.rows.rows);
  ctx.show("attn_o", a.o);
  ctx.be.rope(a.o, ctx.rows.rows.position, frequencies, true);
  const auto groups = static_cast<int64_t>(w.wo_a.size());
  ctx.be.linear_grouped(z, a.o.reshape({ctx.rows.n, groups, a.o.row_elements() / groups}), w.wo_a_view);
}

} // namespace

void window_row(step_context& ctx, const attention_weights& w, tensor frequencies, tensor kv, tensor x) {
  ctx.be.linear(kv, x, *w.wkv);
  finish_window_row(ctx, w, frequencies, kv);
}

void run_attention(step_context& ctx, const attention_weights& w, const layer_role& role, const layer_cache& cache,
                   tensor y, tensor x) {
  const int64_t n = ctx.rows.n;
  backend& be = ctx.be;
  const tensor frequencies = role.ratio > 0 ? ctx.compressed_frequencies : ctx.window_frequencies;
  const tensor qr = ctx.b.qr.slice(0, n), q = ctx.b.q.slice(0, n), kv = ctx.b.kv.slice(0, n);
  if (role.owns_index) be.beside([&] { weigh_heads(ctx, w.indexer, x); }); // of x alone
  project(ctx, w, role, x);
  be.beside([&] { // of what project made: beside the way to q
    finish_window_row(ctx, w, frequencies, kv);
    if (role.owns_kv) compress(ctx, w.compressor, role, cache);
  });
  be.rms_norm(qr, qr, w.q_norm, ctx.c.eps);
  ctx.show("qr", qr);
  if (role.owns_index)
    be.linears(std::array{q, ctx.b.index_q.slice(0, n)}, qr,
               std::array<const matrix*, 2>{w.wq_b.get(), w.indexer.wq_b.get()});
  else
    be.linear(q, qr, *w.wq_b);
  // Queries of a prompt are turned where attention reads them, unless somebody looks.
  const head_turns turns{frequencies, !ctx.seen && ctx.rows.has_prompt()};
  if (!turns.of_queries) be.rope(q, ctx.rows.rows.position, frequencies, false);
  ctx.show("q", q);
  if (role.owns_index) {
    const tensor index_q = ctx.b.index_q.slice(0, n);
    be.rope(index_q, ctx.rows.rows.position, ctx.compressed_frequencies, false);
    round_cache(ctx, index_q, quantiser::fp4_e8m0_32);
  }
  be.meet();
  if (role.owns_index) select(ctx, role, cache);
  ctx.show("kv", kv);

  attention_args a;
  a.o = ctx.b.o.slice(0, n);
  a.q = q;
  a.step_kv = kv;
  a.rings = cache.ring;
  a.sink = w.sink;
  a.window = ctx.c.window;
  a.scale = 1.0F / std::sqrt(static_cast<float>(ctx.c.head_dim));
  if (ctx.drafting) a.seen = attention_args::visibility::draft_block;
  if (role.ratio > 0) {
    a.compressed = cache.compressed;
    a.selected = ctx.selected;
  }
  const tensor z = ctx.b.z.slice(0, n);
  if (ctx.seen)
    project_seen(ctx, a, frequencies, w, z);
  else
    be.attention_project(z, a, ctx.rows.rows, turns, w.wo_a_view);
  if (!ctx.drafting) be.beside([&] { be.write_rings(cache.ring, kv, ctx.rows.rows); });
  be.linear(y, z.reshape({n, z.row_elements()}), *w.wo_b);
  be.all_reduce_sum(y);
}

} // namespace troupe::deepseek_v41
