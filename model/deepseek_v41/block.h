// One layer in reading order: Engram, attention half, expert half, each around the residual copies. Spec: model.md 2.1.
#pragma once

#include "model/deepseek_v41/rows.h"
#include "model/deepseek_v41/state.h"

namespace troupe::deepseek_v41 {

// What a layer works with. The first part holds for a model's life, the second for a step.
struct step_context {
  backend& be;
  const config& c;
  const rank_share& share;
  work_buffers& b;
  tensor window_frequencies, compressed_frequencies; // (rope_dim / 2) f32
  observer seen;                                     // empty: nobody looks
  bool round_caches = true; // false: the three QDQ operations are identities; for tests against expected_noqdq

  row_set rows;
  tensor h;                    // (n, M, D)
  tensor pre;                  // (n, M): the mix that the next attention half folds with
  tensor selected, candidates; // (n, k): of the last index source and of the candidate source
  int32_t layer = 0;           // draft stages count on after the backbone
  bool drafting = false;       // rows are draft blocks: they see each other and leave no cache rows

  void run_on(const row_set& on) {
    rows = on;
    be.set_row_classes(on.runs);
  }
  void show(std::string_view name, tensor t) const {
    if (seen) seen(name, layer, t);
  }
};

// The layer that run_block is told to go on with, of the same rows; nullptr: none, or none that is known to have them.
struct block_chain {
  const block_weights* next = nullptr;
  bool has_input = false; // ctx.b.x is this layer's folded and normed input: the one before has made it
};
// ctx.h and ctx.pre become those after the layer. Returns whether ctx.b.x is the input of `next`.
bool run_block(step_context& ctx, const block_weights& w, const layer_cache& cache, const block_chain& chain);

// y (n, D) f32 = attention(x); x (n, D) after attn_norm. Appends to the layer's caches.               model.md 2.3
// - 2.5
void run_attention(step_context& ctx, const attention_weights& w, const layer_role& role, const layer_cache& cache,
                   tensor y, tensor x);
// The window row of x: rms(wkv x), rotated, rounded -> kv (n, d). Also the draft's context rows (dspark.md 3).
void window_row(step_context& ctx, const attention_weights& w, tensor frequencies, tensor kv, tensor x);

// Begins the shared expert of x (n, D), after ffn_norm, beside what follows. Before run_experts().      model.md 2.6
void begin_shared_expert(step_context& ctx, const moe_weights& w, tensor x);
// y (n, D) f32 = routed and shared experts of x. Returns what is still to be added to y; empty: nothing.
tensor run_experts(step_context& ctx, const moe_weights& w, int32_t n_active, tensor y, tensor x);

// ctx.h += gate * value, from the step's records.                                                     engram.md 5
void run_engram(step_context& ctx, const engram_weights& w, int32_t slot);

} // namespace troupe::deepseek_v41
