// The keys that a row sees, in device code, and what the attention kernels are given. For .cu files only.
#pragma once

#include "gpu/backend.h"
#include "gpu/cache_rows.cuh"

#include <cstdint>

namespace troupe::device {

inline constexpr int key_round = 128; // scores of a head are padded to it: a multiple of every tile of keys

// The rows of a cache, one after another over its slots or blocks.
struct cache_view {
  const uint8_t* rows;
  int64_t row_bytes;
  row_kind kind;
  __device__ stored_row row(int64_t i) const { return {rows + i * row_bytes, kind}; }
};

struct attention_view {
  float* o;
  const float *q, *step_kv, *sink;
  cache_view rings, compressed;
  const int32_t *selected, *slot, *first_row, *table, *tables;
  const int64_t *position, *floor;
  int64_t n_rows, ring, window, n_selected, entries, table_width;
  int64_t first; // of the slab
  int heads, dim;
  float scale;
  bool whole_block; // visibility::draft_block
  bool fours;       // all rows of floats can be read 16 bytes at a time
  // Scratch of the slab.
  float* score;    // (slab, heads, stride), after the softmax the weights as bf16: high part << 16 | low part
  uint64_t* key;   // (slab, stride), packed
  float* sum;      // (slab, heads)
  int32_t* n_keys; // (slab), of which some may be none
  int64_t stride;
};

// What row r sees: window rows, rows of its own block, selected entries, in this order.
struct key_span {
  int64_t first, start, oldest; // first row of the sequence, its position, oldest position of the window
  int64_t n_window, n_block, n;
};

// All lanes of a warp call it.
__device__ inline key_span span_of(const attention_view& a, int64_t r) {
  key_span s{};
  s.first = a.first_row[r];
  s.start = a.position[s.first];
  const int64_t newest = a.whole_block ? s.start - 1 : a.position[r];
  s.oldest = max(max(a.floor[r], newest - a.window + 1), int64_t{0});
  s.n_window = max(newest - s.oldest + 1, int64_t{0});
  unsigned same = a.whole_block ? all_lanes : 0;
  while (same == all_lanes) {
    const int64_t i = s.first + s.n_block + threadIdx.x % warp_lanes;
    same = __ballot_sync(all_lanes, i < a.n_rows && a.first_row[i] == s.first);
    s.n_block += same == all_lanes ? warp_lanes : __ffs(static_cast<int>(~same)) - 1;
  }
  s.n = s.n_window + s.n_block + a.n_selected;
  return s;
}

__device__ inline stored_row floats_at(const float* row) {
  return {reinterpret_cast<const uint8_t*>(row), row_kind::floats};
}

__device__ inline stored_row key_of(const attention_view& a, int64_t r, const key_span& s, int64_t i) {
  if (i < s.n_window) {
    const int64_t p = s.oldest + i;
    return p < s.start ? a.rings.row(a.slot[r] * a.ring + p % a.ring)
                       : floats_at(a.step_kv + (s.first + p - s.start) * a.dim);
  }
  i -= s.n_window;
  if (i < s.n_block) return floats_at(a.step_kv + (s.first + i) * a.dim);
  const int32_t e = a.selected[r * a.n_selected + i - s.n_block];
  if (e < 0) return {nullptr, row_kind::none};
  const int64_t block = a.tables[a.table[r] * a.table_width + e / a.entries];
  return a.compressed.row(block * a.entries + e % a.entries);
}

inline cache_view view_of(const tensor& cache, quantiser how, int64_t dim) {
  const row_kind records = how == quantiser::fp8_32 ? row_kind::fp8 : row_kind::fp4;
  return {cache.as<uint8_t>(), stored_row_bytes(cache), holds_records(cache, how, dim) ? records : row_kind::floats};
}

// All but what lies in scratch.
inline attention_view view_of(const attention_args& a, const step_rows& rows) {
  attention_view x{};
  x.o = a.o.f32(), x.q = a.q.f32(), x.step_kv = a.step_kv.f32(), x.sink = a.sink.f32();
  x.rings = view_of(a.rings, quantiser::fp8_32, a.q.shape[2]);
  x.slot = rows.slot.i32(), x.first_row = rows.first_row.i32(), x.table = rows.table.i32();
  x.position = rows.position.i64(), x.floor = rows.floor.i64();
  x.n_rows = a.q.rows(), x.ring = a.rings.shape[1], x.window = a.window;
  x.heads = static_cast<int>(a.q.shape[1]), x.dim = static_cast<int>(a.q.shape[2]), x.scale = a.scale;
  x.whole_block = a.seen == attention_args::visibility::draft_block;
  if (a.selected) {
    x.selected = a.selected.i32(), x.tables = rows.tables.i32();
    x.compressed = view_of(a.compressed, quantiser::fp4_e4m3_16, a.q.shape[2]);
    x.n_selected = a.selected.shape[1], x.entries = a.compressed.shape[1], x.table_width = rows.tables.shape[1];
  }
  x.fours = x.dim % 4 == 0;
  for (const void* p :
       {static_cast<const void*>(x.o), static_cast<const void*>(x.q), static_cast<const void*>(x.step_kv),
        static_cast<const void*>(x.rings.rows), static_cast<const void*>(x.compressed.rows)})
    x.fours = x.fours && reinterpret_cast<uintptr_t>(p) % 16 == 0;
  x.stride = (x.window + (x.whole_block ? x.n_rows : 0) + x.n_selected + key_round - 1) / key_round * key_round;
  return x;
}

} // namespace troupe::device
