// The filling warps of attention_prompt.cu: one looks for the keys of each row, seven bring them into shared
// memory as f16. For .cu files only.
#pragma once

#include "gpu/attention_prompt.cuh"

namespace troupe::device {

// Keys up to the last that is one: selections that end early cost nothing. All lanes of a warp call it.
__device__ inline int64_t n_present(const attention_view& a, int64_t r, const key_span& s) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const int32_t* selected = a.selected + r * a.n_selected;
  int64_t n = a.n_selected;
  while (n > 0) {
    bool any[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t at = n - 1 - i * warp_lanes - lane;
      any[i] = at >= 0 && selected[at] >= 0;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned which = __ballot_sync(all_lanes, any[i]);
      if (which != 0) return s.n_window + s.n_block + n - i * warp_lanes - (__ffs(static_cast<int>(which)) - 1);
    }
    n -= 4 * warp_lanes;
  }
  return s.n_window + s.n_block;
}

__device__ __forceinline__ void prefetch_bytes(const void* at, uint32_t n_bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at), "r"(n_bytes) : "memory");
#endif
}

// Where the keys of a row are, with what key_of would read for each of them read once.
struct key_finder {
  const attention_view& a;
  const uint8_t* step; // rows of the step
  key_span span;
  int64_t row, n;
  const int32_t *selected, *tables; // of the row; selected[i]: of its key i
  uint32_t ring_row, n_cached;      // of the first key; keys that are in the ring
  int64_t ring_first, step_first;   // rows of caches: of slot, and of the row's key 0 if it were one of the step
  int32_t n_step;                   // keys that are none of selected

  __device__ key_finder(const prompt_view& view, int64_t r)
      : a(view.a), step(view.step), span(span_of(view.a, r)), row(r) {
    n = n_present(a, r, span);
    n_step = static_cast<int32_t>(span.n_window + span.n_block);
    selected = a.selected + r * a.n_selected - n_step;
    tables = a.selected != nullptr ? a.tables + a.table[r] * a.table_width : nullptr;
    ring_row = static_cast<uint32_t>(span.oldest % a.ring);
    ring_first = a.slot[r] * a.ring;
    n_cached = static_cast<uint32_t>(min(max(span.start - span.oldest, int64_t{0}), span.n_window));
    step_first = span.first + (a.whole_block ? -span.n_window : span.oldest - span.start);
  }
  // Keys first + lane + 32 h. All reads of a kind are under way together.
  template <int N> __device__ __forceinline__ void find(uint64_t (&key)[N], int first) const {
    const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
    int32_t entry[N], block[N];
#pragma unroll
    for (int h = 0; h < N; ++h) {
      const int at = first + h * warp_lanes + lane;
      entry[h] = at >= n_step && at < n ? selected[at] : -1;
    }
#pragma unroll
    for (int h = 0; h < N; ++h)
      block[h] = entry[h] >= 0 ? tables[static_cast<uint32_t>(entry[h]) / static_cast<uint32_t>(a.entries)] : 0;
#pragma unroll
    for (int h = 0; h < N; ++h) {
      const auto at = static_cast<uint32_t>(first + h * warp_lanes + lane);
      stored_row found{nullptr, row_kind::none};
      if (entry[h] >= 0)
        found =
            a.compressed.row(block[h] * a.entries + static_cast<uint32_t>(entry[h]) % static_cast<uint32_t>(a.entries));
      else if (at < n_cached)
        found = a.rings.row(ring_first + (ring_row + at) % static_cast<uint32_t>(a.ring));
      else if (static_cast<int32_t>(at) < n_step)
        found = {step + (step_first + at) * step_row_bytes, row_kind::halves};
      key[h] = packed(found);
    }
  }
};

// What is no key is zeros: its weight is zero, and zero times what is not finite would be NaN.
__device__ const uint4 zero_record[record_bytes(quantiser::fp4_e4m3_16, prompt_dim) / 16] = {};

// Ahead of the others, so that what a key's address waits for is hidden.
__device__ inline void find_keys(prompt_shared& s, const prompt_view& view, int64_t n_rows) {
  const attention_view& a = view.a;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  ring_place<tiles_ahead> place;
  const auto announce = [&] {
    warp_arrives(&s.found_full[place.stage]);
    place.next();
  };
  constexpr int batch = 2; // tiles
  const uint64_t no_key = packed({reinterpret_cast<const uint8_t*>(zero_record), row_kind::fp4});
  for (int64_t i = blockIdx.x; i < n_rows; i += gridDim.x) {
    const int64_t r = a.first + i;
    constexpr int part = prompt_heads * prompt_dim / warp_lanes;
    prefetch_bytes(a.q + r * (prompt_heads * prompt_dim) + lane * part, part * sizeof(float));
    const key_finder finder(view, r);
    const int n_tiles = max(static_cast<int>((finder.n + prompt_keys - 1) / prompt_keys), 1);
    for (int first = 0; first < n_tiles; first += batch) {
      uint64_t key[batch * 2];
      finder.find(key, first * prompt_keys);
#pragma unroll
      for (int u = 0; u < batch; ++u) {
        if (first + u >= n_tiles) break;
        wait(&s.found_empty[place.stage], place.round ^ 1);
        tile_keys& to = s.found[place.stage];
        bool plain = true;
        uint64_t seen = 0;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const uint64_t mine = key[2 * u + h];
          const row_kind kind = unpacked(mine).kind;
          to.key[h * warp_lanes + lane] = kind == row_kind::none ? no_key : mine;
          plain = plain && (kind == row_kind::fp4 || kind == row_kind::none);
          seen |= static_cast<uint64_t>(__ballot_sync(all_lanes, kind != row_kind::none)) << h * warp_lanes;
        }
        plain = __all_sync(all_lanes, plain);
        if (lane == 0) to.seen = seen, to.n_tiles = n_tiles, to.plain = plain ? 1 : 0;
        announce();
      }
    }
  }
  wait(&s.found_empty[place.stage], place.round ^ 1);
  if (lane == 0) s.found[place.stage].n_tiles = 0, s.found[place.stage].plain = 0;
  announce();
}

// Chunks of records: codes moved to the bits of an f16 are 2^-8 (e4m3) or 2^-14 (e2m1) of their value. A value
// of fp4 has six significant bits and is a multiple of 2^-10; one of fp8 is exact for scales 2^-15 .. 2^7, loses what
// is below 2^-24 for smaller ones and is not finite for larger ones. A poisoned group: NaN.
struct fp4_codes {
  uint4 codes;
  uint32_t scales; // two
};
__device__ __forceinline__ fp4_codes read_fp4(const uint8_t* at, int c) {
  return {__ldg(reinterpret_cast<const uint4*>(at) + c),
          __ldg(reinterpret_cast<const uint16_t*>(at + prompt_dim / 2) + c)};
}
__device__ __forceinline__ void store_chunk(f16_square* squares, int row, int c, const fp4_codes& v) {
  const __half2 both(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(v.scales), __NV_E4M3));
  const __half2 scale[2] = {__low2half2(both), __high2half2(both)}, unit = as_f16_pair(0x74007400U); // 2^14
  const uint32_t words[4] = {v.codes.x, v.codes.y, v.codes.z, v.codes.w};
  store_chunk(squares, row, c, [&](int i, int k) {
    const uint32_t w = words[k], signs = i < 3 ? w << (12 - 4 * i) : w, rest = i < 3 ? w << (9 - 4 * i) : w >> 3;
    const uint32_t pair = (signs & 0x80008000U) | (rest & 0x0E000E00U);
    return bits_of(__hmul2(__hmul2(as_f16_pair(pair), unit), scale[k / 2]));
  });
}
struct fp8_codes {
  uint4 codes[2];
  uint32_t scale;
};
__device__ __forceinline__ fp8_codes read_fp8(const uint8_t* at, int c) {
  const auto* from = reinterpret_cast<const uint4*>(at) + 2 * c;
  return {{__ldg(from), __ldg(from + 1)}, __ldg(at + prompt_dim + c)};
}
__device__ __forceinline__ void store_chunk(f16_square* squares, int row, int c, const fp8_codes& v) {
  // 2^(scale - 127 + 8): a subnormal f16 below 2^-14, infinite above 2^15.
  const float power = __uint_as_float(v.scale == 255 ? 0x7FC00000U : min(v.scale + 8, 254U) << 23);
  const __half2 by = __float2half2_rn(power);
  const uint32_t words[8] = {v.codes[0].x, v.codes[0].y, v.codes[0].z, v.codes[0].w,
                             v.codes[1].x, v.codes[1].y, v.codes[1].z, v.codes[1].w};
  store_chunk(squares, row, c, [&](int i, int k) { // byte i of both words on top of both halves
    const uint32_t on_top = __byte_perm(words[2 * k], words[2 * k + 1], (4 + i) << 12 | i << 4);
    return bits_of(__hmul2(as_f16_pair((on_top & 0x80008000U) | (on_top >> 1 & 0x3F803F80U)), by));
  });
}

// A thread's copies of 16 bytes: `to` is a shared address.
__device__ __forceinline__ void copy_piece(uint32_t to, const uint8_t* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#endif
}
__device__ __forceinline__ void copies_end() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// A filling warp has two keys at a time, one for each half of its lanes: pairs warp, warp + filler_warps ..
constexpr int key_pairs = (prompt_keys / 2 + filler_warps - 1) / filler_warps;
struct filler {
  int lane, warp, half, c; // c: the chunk of the lane
  __device__ filler()
      : lane(static_cast<int>(threadIdx.x) % warp_lanes),
        warp((static_cast<int>(threadIdx.x) - reader_threads) / warp_lanes), half(lane / 16), c(lane % 16) {}
  __device__ __forceinline__ bool has(int p) const { return p * filler_warps + warp < prompt_keys / 2; }
  __device__ __forceinline__ int key(int p) const { // of a pair it does not have: another's
    return (2 * (p * filler_warps + warp) + half) % prompt_keys;
  }
};

// The warp's keys of a tile of any kinds. Rows of the step are copied, all of them under way together; they are there
// when `copies_end` returns.
__device__ __forceinline__ void fill_any(f16_square* to, const tile_keys& keys, const filler& me) {
#pragma unroll 1
  for (int p = 0; p < key_pairs; ++p) {
    if (!me.has(p)) break;
    const int key = me.key(p);
    const stored_row row = unpacked(keys.key[key]);
    if (row.kind == row_kind::halves) {
      const int first = me.c / 8 * 4, piece = me.c % 8;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        copy_piece(shared_address(to[first + i]) + piece_at(key, piece), row.at + (8 * (first + i) + piece) * 16);
    } else if (row.kind == row_kind::fp8) {
      store_chunk(to, key, me.c, read_fp8(row.at, me.c));
    } else {
      store_chunk(to, key, me.c, read_fp4(row.at, me.c));
    }
  }
}

// Records of fp4 of up to `group_pairs` pairs are on their way to the warp's part of shared memory while those before
// them are decoded. Loads into registers would not do: a warp can wait for few of them apart from others.
struct staged_pairs {
  uint8_t* memory;
  // Pairs first .. first + N - 1 of a tile, of those that the warp has.
  template <int N> __device__ __forceinline__ void start(const tile_keys& keys, const filler& me, int first) const {
    if (keys.plain == 0) return;
    const uint8_t* from[N];
#pragma unroll
    for (int u = 0; u < N; ++u) from[u] = unpacked(keys.key[me.key(first + u)]).at + me.c * 16;
#pragma unroll
    for (int u = 0; u < N; ++u) {
      const uint32_t to = shared_address(memory + u * stage_bytes + me.half * fp4_bytes + me.c * 16);
      copy_piece(to, from[u]);
      if (me.c < 2) copy_piece(to + prompt_dim / 2, from[u] + prompt_dim / 2);
    }
  }
  // What was started, when it is there.
  template <int N> __device__ __forceinline__ void take(fp4_codes (&v)[N], const filler& me) const {
    copies_end();
    __syncwarp();
#pragma unroll
    for (int u = 0; u < N; ++u) {
      const uint8_t* at = memory + u * stage_bytes + me.half * fp4_bytes;
      v[u] = {*reinterpret_cast<const uint4*>(at + me.c * 16),
              *reinterpret_cast<const uint16_t*>(at + prompt_dim / 2 + me.c * 2)};
    }
    __syncwarp();
  }
};

// The keys of all rows of the block, in turn.
__device__ inline void fill_keys(prompt_shared& s) {
  const filler me;
  ring_place<tiles_ahead> place;
  const staged_pairs staged{s.stage[me.warp][0]};
  wait(&s.found_full[0], 0);
  staged.start<group_pairs>(s.found[0], me, 0);
  for (uint32_t tile = 0;; ++tile) {
    const int stage = place.stage;
    const tile_keys& now = s.found[stage];
    if (now.n_tiles == 0) return;
    place.next();
    wait(&s.found_full[place.stage], place.round);
    const tile_keys& next = s.found[place.stage];
    const uint32_t to = tile & 1;
    constexpr int rest = key_pairs - group_pairs;
    if (now.plain != 0) {
      fp4_codes codes[group_pairs], others[rest];
      staged.take(codes, me);
      staged.start<rest>(now, me, group_pairs);
      wait(&s.key_empty[to], (tile >> 1 & 1) ^ 1);
#pragma unroll
      for (int u = 0; u < group_pairs; ++u) store_chunk(s.key[to], me.key(u), me.c, codes[u]);
      staged.take(others, me);
      staged.start<group_pairs>(next, me, 0);
#pragma unroll
      for (int u = 0; u < rest; ++u)
        if (me.has(group_pairs + u)) store_chunk(s.key[to], me.key(group_pairs + u), me.c, others[u]);
    } else {
      staged.start<group_pairs>(next, me, 0);
      wait(&s.key_empty[to], (tile >> 1 & 1) ^ 1);
      fill_any(s.key[to], now, me);
      copies_end();
    }
    if (me.warp == 0 && me.lane == 0) s.seen[to] = now.seen, s.n_tiles[to] = now.n_tiles;
    show_writes();
    __syncwarp();
    if (me.lane == 0) {
      arrive(&s.key_full[to]);
      arrive(&s.found_empty[stage]);
    }
  }
}

} // namespace troupe::device
