// Keys of rows of 512 floats, or of records of them, on their way to products of bf16 pairs: which group of a row's
// keys is whose, and a warp's way of bringing a key into shared memory. For attention_few.cu.
#pragma once

#include "gpu/attention_keys.cuh"

namespace troupe::device::few {

inline constexpr int width = 512, group_keys = 16;   // keys of a group: rows of a product
inline constexpr int lane_dims = width / warp_lanes; // of a key that a warp brings: an fp4 group, half an fp8 group
inline constexpr int key_words = width / 2 + 4;      // of a key's pairs: 4 modulo 32, so a fragment meets all banks

// A row's facts, read once, and the groups of its keys.
struct few_row {
  int64_t r;
  int32_t slot, table;
  key_span span;
  int window_groups, block_groups, begin, end; // groups [begin, end) are of this block

  __device__ few_row(const attention_view& a, int64_t row, int rank, int n_ranks)
      : r(row), slot(a.slot[r]), table(a.n_selected > 0 ? a.table[r] : 0), span{} {
    if (a.whole_block) span = span_of(a, r);
    window_groups = groups_of(a.window), block_groups = groups_of(span.n_block);
    const int n = window_groups + block_groups + groups_of(a.n_selected);
    begin = n * rank / n_ranks, end = n * (rank + 1) / n_ranks;
    if (!a.whole_block && begin < window_groups) span = span_of(a, r);
  }
  __device__ static int groups_of(int64_t n) { return static_cast<int>((n + group_keys - 1) / group_keys); }

  __device__ stored_row key(const attention_view& a, int group, int i) const {
    const stored_row none{nullptr, row_kind::none};
    if (group < window_groups) {
      const int64_t at = int64_t{group} * group_keys + i, p = span.oldest + at;
      if (at >= span.n_window) return none;
      if (p >= span.start) return floats_at(a.step_kv + (span.first + p - span.start) * width);
      return a.rings.row(slot * a.ring + p % a.ring);
    }
    group -= window_groups;
    if (group < block_groups) {
      const int64_t at = int64_t{group} * group_keys + i;
      return at < span.n_block ? floats_at(a.step_kv + (span.first + at) * width) : none;
    }
    const int64_t at = int64_t{group - block_groups} * group_keys + i;
    const int32_t e = at < a.n_selected ? a.selected[r * a.n_selected + at] : -1;
    if (e < 0) return none;
    const auto entry = static_cast<uint32_t>(e), entries = static_cast<uint32_t>(a.entries);
    return a.compressed.row(int64_t{a.tables[table * a.table_width + entry / entries]} * entries + entry % entries);
  }
};

// A lane's 16 dims of a key into shared memory. Every other quad of lanes stores its second half first: all banks.
__device__ __forceinline__ void store_lane(uint32_t* row, int lane, const uint32_t (&w)[8]) {
  const bool swap = (lane & 4) != 0;
  const uint4 a = make_uint4(w[0], w[1], w[2], w[3]), b = make_uint4(w[4], w[5], w[6], w[7]);
  uint4* to = reinterpret_cast<uint4*>(row + lane * (lane_dims / 2));
  to[swap ? 1 : 0] = swap ? b : a;
  to[swap ? 0 : 1] = swap ? a : b;
}

// A key of floats: what bf16 holds of them, or what it leaves. Returns bits that are zero where it leaves nothing.
__device__ __forceinline__ uint32_t bring_floats(uint32_t* to, int lane, stored_row row, bool low_part) {
  uint4 v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = reinterpret_cast<const uint4*>(row.at)[lane * 4 + i];
  uint32_t w[8], lows = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const split_four s = split_raw(v[i], row_kind::floats);
    w[2 * i] = low_part ? s.first.low : s.first.high, w[2 * i + 1] = low_part ? s.second.low : s.second.high;
    lows |= s.first.low | s.second.low;
  }
  store_lane(to, lane, w);
  return lows;
}

// A lane's 16 dims of a record as they are there.
struct raw_lane {
  uint2 codes[2]; // fp4: the first only
  uint32_t scale;
};
__device__ __forceinline__ raw_lane read_record(stored_row row, int lane) {
  raw_lane v{};
  if (row.kind != row_kind::fp8 && row.kind != row_kind::fp4) return v;
  const bool eight = row.kind == row_kind::fp8;
  const uint8_t* codes = row.at + lane * (eight ? lane_dims : lane_dims / 2);
  v.codes[0] = *reinterpret_cast<const uint2*>(codes);
  if (eight) v.codes[1] = *reinterpret_cast<const uint2*>(codes + 8);
  v.scale = row.at[eight ? width + lane / 2 : width / 2 + lane];
  return v;
}
__device__ __forceinline__ void bring_record(uint32_t* to, int lane, const raw_lane& v, row_kind kind) {
  uint32_t w[8] = {};
  const auto put = [&](int i, four_halves h) { w[2 * i] = h.low, w[2 * i + 1] = h.high; };
  if (kind == row_kind::fp8) {
    put(0, decode_fp8(v.codes[0].x, v.scale)), put(1, decode_fp8(v.codes[0].y, v.scale));
    put(2, decode_fp8(v.codes[1].x, v.scale)), put(3, decode_fp8(v.codes[1].y, v.scale));
  } else if (kind == row_kind::fp4) {
    const uint32_t by = fp4_scales(v.scale);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      put(i, fp4_by_scales((i < 2 ? v.codes[0].x : v.codes[0].y) >> i % 2 * 16 & 0xFFFFU, by));
  }
  store_lane(to, lane, w);
}

} // namespace troupe::device::few
