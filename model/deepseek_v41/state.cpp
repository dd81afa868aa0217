// Sizes of caches and buffers, and their allocation.
#include "model/deepseek_v41/state.h"

#include "gpu/cache_rows.h"

#include <algorithm>
#include <string>

namespace troupe::deepseek_v41 {

int64_t engram_columns_of_rank(const config& c, int n_ranks) {
  const int64_t all = c.engram.columns();
  return all % n_ranks == 0 ? all / n_ranks : all;
}

cache_plan plan_caches(const config& c, cache_form form, int64_t slots, int64_t blocks, int64_t block_tokens,
                       bool with_draft) {
  cache_plan p;
  p.form = form;
  p.slots = slots;
  p.blocks = blocks;
  p.block_tokens = block_tokens;
  const int64_t drafts = with_draft ? c.draft.block : 0; // rows after the newest accepted one
  p.ring = c.window + drafts;
  p.pending_pairs = drafts / 2 + 2;
  return p;
}

std::vector<layer_cache> make_caches(backend& be, const config& c, const cache_plan& p, bool with_draft) {
  const auto make = [&](int64_t n, int64_t rows, quantiser how, int64_t dim, const std::string& what) {
    return p.form == cache_form::records ? be.allocate(dtype::u8, {n, rows, record_bytes(how, dim)}, what)
                                         : be.allocate(dtype::f32, {n, rows, dim}, what);
  };
  std::vector<layer_cache> caches(static_cast<size_t>(c.layers + (with_draft ? c.draft.stages : 0)));
  for (int32_t l = 0; l < static_cast<int32_t>(caches.size()); ++l) {
    layer_cache& cache = caches[static_cast<size_t>(l)];
    const std::string of =
        l < c.layers ? " of layer " + std::to_string(l) : " of draft stage " + std::to_string(l - c.layers);
    cache.ring = make(p.slots, p.ring, quantiser::fp8_32, c.head_dim, "window ring" + of);
    const layer_role r = c.role(l);
    if (r.ratio == 0) continue;
    if (!r.owns_kv) {
      const layer_cache& source = caches[static_cast<size_t>(r.kv_source)];
      cache.compressed = source.compressed;
      cache.keys = source.keys;
      continue;
    }
    const int64_t entries = p.block_tokens / r.ratio;
    cache.compressed = make(p.blocks, entries, quantiser::fp4_e4m3_16, c.head_dim, "compressed rows" + of);
    cache.keys = make(p.blocks, entries, quantiser::fp4_e8m0_32, c.index_dim, "index keys" + of);
    if (r.ratio == 2)
      cache.pending = be.allocate(dtype::f32, {p.slots, p.pending_pairs, 2, c.head_dim}, "pending halves" + of);
  }
  return caches;
}

int64_t bytes_per_block(const config& c, cache_form form, int64_t block_tokens) {
  const int64_t entry = cache_row_bytes(form, quantiser::fp4_e4m3_16, c.head_dim) +
                        cache_row_bytes(form, quantiser::fp4_e8m0_32, c.index_dim);
  int64_t bytes = 0;
  for (const int32_t l : c.kv_sources) bytes += block_tokens / c.role(l).ratio * entry;
  return bytes;
}

int64_t bytes_per_slot(const config& c, const cache_plan& p, bool with_draft) {
  int64_t bytes =
      (c.layers + (with_draft ? c.draft.stages : 0)) * p.ring * cache_row_bytes(p.form, quantiser::fp8_32, c.head_dim);
  for (const int32_t l : c.kv_sources)
    if (c.role(l).ratio == 2) bytes += p.pending_pairs * 2 * c.head_dim * 4;
  return bytes;
}

namespace {

void add_engram_buffers(work_buffers& b, backend& be, const config& c, int n_ranks,
                        const std::vector<found_table>& tables, int64_t rows) {
  const int64_t columns = c.engram.columns(), own = engram_columns_of_rank(c, n_ranks), w = c.engram.head_dim;
  const dtype type = be.activation_type();
  for (const found_table& t : tables)
    b.records.push_back(be.allocate(dtype::u8, {rows, own, t.record_bytes}, "Engram records"));
  b.engram_rows = be.allocate(type, {rows, columns, w}, "Engram rows");
  b.engram_kv = be.allocate(type, {rows, c.copies + 1, c.dim}, "Engram keys and value");
  b.engram_gates = be.allocate(dtype::f32, {rows, c.copies}, "Engram gates");
  if (own == columns) return;
  b.engram_local = be.allocate(dtype::f32, {rows, own, w}, "Engram rows of this rank");
  b.engram_gathered = be.allocate(dtype::f32, {n_ranks, rows * own * w}, "Engram rows of all ranks");
  b.engram_order = be.allocate(dtype::i32, {rows * n_ranks}, "Engram row order");
}

} // namespace

work_buffers make_work_buffers(backend& be, const config& c, const rank_share& share,
                               const std::vector<found_table>& tables, int64_t rows, bool with_draft) {
  const dtype type = be.activation_type();
  const auto make = [&](dtype t, std::initializer_list<int64_t> shape) {
    return be.allocate(t, shape, "work buffers");
  };
  work_buffers b;
  b.h = make(type, {rows, c.copies, c.dim});
  b.h_tail = make(type, {rows, c.copies, c.dim});
  b.x = make(type, {rows, c.dim});
  b.y = make(dtype::f32, {rows, c.dim});
  if (c.shared_experts > 0) b.shared = make(dtype::f32, {rows, c.dim});
  b.one_hot = make(dtype::f32, {rows, c.copies});
  std::vector<float> one_hot(static_cast<size_t>(rows * c.copies));
  for (int64_t r = 0; r < rows; ++r) one_hot[static_cast<size_t>(r * c.copies)] = 1;
  be.upload(b.one_hot, one_hot.data(), b.one_hot.size_bytes());
  b.pre_attention = make(dtype::f32, {rows, c.copies});
  b.pre_moe = make(dtype::f32, {rows, c.copies});
  b.post = make(dtype::f32, {rows, c.copies});
  b.comb = make(dtype::f32, {rows, c.copies, c.copies});
  b.qr = make(type, {rows, c.q_rank});
  b.q = make(type, {rows, share.heads, c.head_dim});
  b.o = make(type, {rows, share.heads, c.head_dim});
  b.z = make(type, {rows, share.groups, c.o_rank});
  for (tensor* t : {&b.kv, &b.u, &b.g, &b.latent}) *t = make(type, {rows, c.head_dim});
  b.index_k = make(type, {rows, c.index_dim});
  b.index_q = make(type, {rows, c.index_heads, c.index_dim});
  b.index_w = make(type, {rows, c.index_heads});
  for (tensor* t : {&b.selected, &b.selected_tail}) *t = make(dtype::i32, {rows, c.index_topk});
  for (tensor* t : {&b.candidates, &b.candidates_tail}) *t = make(dtype::i32, {rows, c.candidate_blocks});
  const int64_t active = std::max(c.active_experts, c.draft.active_experts);
  b.moe_ids = make(dtype::i32, {rows * active});
  b.moe_weights = make(dtype::f32, {rows * active});
  if (!c.engram.layers.empty()) add_engram_buffers(b, be, c, share.n_ranks, tables, rows);
  const auto taps = static_cast<int64_t>(c.draft.taps.size());
  if (!with_draft || taps == 0) return b;
  b.taps = make(type, {rows, taps, c.dim});
  b.taps_tail = make(type, {rows, taps, c.dim});
  std::vector<int32_t> order(static_cast<size_t>(rows));
  for (int64_t i = 0; i < taps; ++i) {
    for (int64_t r = 0; r < rows; ++r) order[static_cast<size_t>(r)] = static_cast<int32_t>(r * taps + i);
    b.tap_rows.push_back(make(dtype::i32, {rows}));
    be.upload(b.tap_rows.back(), order.data(), b.tap_rows.back().size_bytes());
  }
  return b;
}

} // namespace troupe::deepseek_v41
