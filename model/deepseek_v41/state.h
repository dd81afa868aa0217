// What a rank keeps between steps (caches) and what it computes with (work buffers). Spec: model.md section 4.
#pragma once

#include "gpu/backend.h"
#include "model/deepseek_v41/weights.h"

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace troupe::deepseek_v41 {

// Sees intermediates as they are made; tests only. `layer` counts draft stages after the backbone, -1: no layer.
// Tensors are device views, valid during the call.
using observer = std::function<void(std::string_view name, int32_t layer, tensor)>;

// Caches that a layer reads; those of a kv source are shared by the layers after it. All but `pending` hold what a
// quantiser left (fp8_32, fp4_e4m3_16, fp4_e8m0_32), as floats or as records.
struct layer_cache {
  tensor ring; // (slots, ring, head_dim)
  tensor compressed, keys,
      pending; // (blocks, entries, head_dim), (blocks, entries, index_dim), (slots, pairs, 2, head_dim) f32
};

struct cache_plan {
  cache_form form = cache_form::floats;
  int64_t slots = 0, blocks = 0, block_tokens = 0;
  int64_t ring = 0;          // rows of a window ring: the window and what a rejected draft may overwrite
  int64_t pending_pairs = 0; // even positions whose halves are kept, for the same reason
};
cache_plan plan_caches(const config&, cache_form, int64_t slots, int64_t blocks, int64_t block_tokens, bool with_draft);
std::vector<layer_cache> make_caches(backend&, const config&, const cache_plan&, bool with_draft); // stages last
// Device bytes of one block and of one slot.
int64_t bytes_per_block(const config&, cache_form, int64_t block_tokens);
int64_t bytes_per_slot(const config&, const cache_plan&, bool with_draft);

// Rows are the first dimension everywhere; activations in the backend's type, coefficients f32.
struct work_buffers {
  tensor h, h_tail;                                   // (R, M, D)
  tensor x, y;                                        // (R, D)
  tensor shared;                                      // (R, D) f32 of the shared expert; or empty: there is none
  tensor one_hot, pre_attention, pre_moe;             // (R, M) f32
  tensor post, comb;                                  // (R, M), (R, M, M) f32
  tensor qr, q, o, z, kv;                             // (R, q_rank), (R, heads, d) twice, (R, groups, o_rank), (R, d)
  tensor u, g, latent, index_k;                       // (R, d) three times, (R, index_dim)
  tensor index_q, index_w;                            // (R, index heads, index_dim), (R, index heads)
  tensor selected, selected_tail;                     // (R, index_topk) i32
  tensor candidates, candidates_tail;                 // (R, candidate_blocks) i32
  tensor scores;                                      // (R, entries) f32, only while an observer looks
  tensor moe_ids, moe_weights;                        // (R, k) i32, f32; k the largest of backbone and draft
  std::vector<tensor> records;                        // per Engram slot (R, columns of this rank, record bytes) u8
  tensor engram_local, engram_gathered, engram_order; // several ranks: (R, columns/n, w), (n, R, ..), (n R) i32
  tensor engram_rows, engram_kv, engram_gates;        // (R, columns, w), (R, M + 1, D), (R, M) f32
  tensor taps, taps_tail;                             // (R, taps, D)
  std::vector<tensor> tap_rows;                       // per tap (R) i32: row r -> r * taps + tap
};
work_buffers make_work_buffers(backend&, const config&, const rank_share&, const std::vector<found_table>& tables,
                               int64_t rows, bool with_draft);

// Columns of the Engram tables that a rank reads: a share where they divide evenly, else all of them.
int64_t engram_columns_of_rank(const config&, int n_ranks);

} // namespace troupe::deepseek_v41
