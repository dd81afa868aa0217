// Attention of prompt rows in one kernel of warp-group products: scores, softmax and weighted sum.
//
// Real shape, a row: 64 heads x 512 with up to 640 keys, ten tiles of 64. Queries, weights and keys are one f16 each: 2
// x 21 M products, 20 k clocks of a multiprocessor's tensor cores, 0.7 ms for 8192 rows; queries in and sums out
// are 2.1 GB, 0.5 ms. Measured (H200, 2026-11): 2.2 ms, 62 k clocks a row. Bound by the warps that fill: 11 k clocks
// for a tile of floats (rows of the step itself, 128 KB that arrive 2 KB a warp at a time), 3.5 k for one of fp4.
//
// A block goes from row to row. Warp groups 0 and 1 multiply. They have the scores and the softmax of tiles in turn and
// each the sums of half of the dims of all tiles, so that one's softmax runs beside the other's products; what they
// hand each other is weights and the largest score. Seven warps decode keys into one of two tiles while the other is
// multiplied, an eighth finds where keys are. Queries are read by the groups that multiply, between two rows.
//
// The bits of a row: scores are a sum over 512 dims, 16 at a time, ascending in the order of attention_prompt.cuh.
// Tiles of 64 keys in their order, with weights relative to the largest score of the first of them, or of a later one
// where that is larger by more than `slack`. The weighted sum 16 keys at a time, ascending; the sum of weights over
// even tiles and over odd ones. Which group has a tile changes nothing.
#include "gpu/attention_prompt.h"

#include "gpu/attention_prompt_keys.cuh"
#include "gpu/cuda_check.cuh"
#include "gpu/early_launch.cuh"
#include "gpu/wgmma.cuh"

#include <algorithm>

namespace troupe {
namespace {

using namespace device;

constexpr float lowest = -INFINITY;
constexpr float slack = 8; // weights may grow to 2^8 before they become relative to a larger score
constexpr int prompt_threads = reader_threads + filler_threads;
constexpr int prompt_shared_bytes = sizeof(prompt_shared) + 1024; // 1024: alignment
static_assert(prompt_shared_bytes <= 227 << 10);

#if defined(TROUPE_WGMMA)

__device__ __forceinline__ void readers_meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
__device__ __forceinline__ float power_of_two(float x) { // 2^-22 off; 0 for -inf
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A reading thread: its group, and in it the rows of sums that its quad has, `row` and `row + 8`. Scores are exponents
// of two here, not of e.
struct reader {
  int group, lane, quad_lane, row;
  float top[2], sum[2];       // what weights are relative to; the thread's part, of tiles of its group
  float o[2][prompt_dim / 8]; // of row `row` in [4 j], [4 j + 1], of the other in the two behind
  __device__ reader()
      : group(static_cast<int>(threadIdx.x) / 128), lane(static_cast<int>(threadIdx.x) % warp_lanes),
        quad_lane(lane % 4), row(static_cast<int>(threadIdx.x) % 128 / warp_lanes * 16 + lane / 4) {}
};

// What sums so far take on where weights become relative to `newest`.
__device__ __forceinline__ float factor_of(float top, float newest) {
  return newest == top ? 1.0F : power_of_two(top - newest);
}
__device__ __forceinline__ void rescale(reader& me, const float (&factor)[2]) {
  if (!__any_sync(all_lanes, factor[0] != 1.0F || factor[1] != 1.0F)) return;
#pragma unroll
  for (int i = 0; i < 128; ++i) me.o[i / 64][i % 64] *= factor[i % 4 / 2];
}

// score (64 heads x 64 keys): keys 8 j + 2 quad_lane + i of row `row` in [4 j + i], of the other in [4 j + 2 + i].
__device__ __forceinline__ void multiply_keys(float (&score)[32], const prompt_shared& s, int place) {
  const uint32_t query = wgmma::descriptor(s.query[0]), key = wgmma::descriptor(s.key[place][0]);
  wgmma::settle(score);
  wgmma::fence();
#pragma unroll
  for (uint32_t i = 0; i < prompt_dim / 16; ++i) {
    const uint32_t at = i / 4 * (sizeof(f16_square) / 16) + i % 4 * 2;
    wgmma::multiply_shared(score, query + at, key + at, i > 0);
  }
  wgmma::commit();
  wgmma::wait<0>();
  wgmma::settle(score);
}

// Scores as exponents, -inf where the tile has no key; the largest of each row.
__device__ __forceinline__ void scale_scores(float (&score)[32], float (&newest)[2], const prompt_shared& s,
                                             const reader& me) {
  const float by[2] = {s.query_by[me.row], s.query_by[me.row + 8]};
  const uint64_t seen = s.seen[me.group];
#pragma unroll
  for (int i = 0; i < 32; ++i) score[i] *= by[i % 4 / 2];
  if (seen != ~0ULL) {
    const auto low = static_cast<uint32_t>(seen >> 2 * me.quad_lane),
               high = static_cast<uint32_t>(seen >> 32 >> 2 * me.quad_lane);
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (((j < 4 ? low : high) >> (j % 4 * 8 + i % 2) & 1U) == 0) score[4 * j + i] = lowest;
  }
  newest[0] = newest[1] = lowest;
#pragma unroll
  for (int i = 0; i < 32; ++i) newest[i % 4 / 2] = fmaxf(newest[i % 4 / 2], score[i]);
#pragma unroll
  for (float& v : newest) v = lanes_max(v, 4);
}

// Weights of a tile as the A of products, and in shared memory for the other group.
__device__ __forceinline__ void weigh(uint32_t (&weight)[4][4], const float (&score)[32], prompt_shared& s,
                                      reader& me) {
  const float from[2] = {me.top[0] == lowest ? 0.0F : me.top[0], me.top[1] == lowest ? 0.0F : me.top[1]};
  float part[2] = {};
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float x = power_of_two(score[4 * j + 2 * h] - from[h]),
                  y = power_of_two(score[4 * j + 2 * h + 1] - from[h]);
      part[h] += x;
      part[h] += y;
      const uint32_t pair = bits_of(__floats2half2_rn(x, y));
      weight[j / 2][j % 2 * 2 + h] = pair;
      *reinterpret_cast<uint32_t*>(s.weight[me.group] + piece_at(me.row + 8 * h, j) + 4 * me.quad_lane) = pair;
    }
#pragma unroll
  for (int h = 0; h < 2; ++h) me.sum[h] += part[h];
}

// Sums (64 heads x the dims of the group) of a tile of keys: started, and awaited.
__device__ __forceinline__ uint32_t values_of(const prompt_shared& s, int place, const reader& me) {
  return wgmma::turned_descriptor(s.key[place][me.group * 4], sizeof(f16_square));
}
__device__ __forceinline__ void add_others(reader& me, const prompt_shared& s) {
  const uint32_t weight = wgmma::descriptor(s.weight[1 - me.group]), key = values_of(s, 1 - me.group, me);
  wgmma::settle(me.o[0]), wgmma::settle(me.o[1]);
  wgmma::fence();
#pragma unroll
  for (uint32_t i = 0; i < prompt_keys / 16; ++i) {
    wgmma::multiply_turned(me.o[0], weight + 2 * i, key + 128 * i);
    wgmma::multiply_turned(me.o[1], weight + 2 * i, key + 1024 + 128 * i);
  }
  wgmma::commit();
}
__device__ __forceinline__ void add_own(reader& me, const uint32_t (&weight)[4][4], const prompt_shared& s) {
  const uint32_t key = values_of(s, me.group, me);
  wgmma::settle(me.o[0]), wgmma::settle(me.o[1]);
  wgmma::fence();
#pragma unroll
  for (uint32_t i = 0; i < prompt_keys / 16; ++i) {
    wgmma::multiply_turned(me.o[0], weight[i], key + 128 * i);
    wgmma::multiply_turned(me.o[1], weight[i], key + 1024 + 128 * i);
  }
  wgmma::commit();
}
__device__ __forceinline__ void end_products(reader& me, prompt_shared& s, int place) {
  wgmma::wait<0>();
  wgmma::settle(me.o[0]), wgmma::settle(me.o[1]);
  warp_arrives(&s.key_empty[place]);
}

// The largest scores of the other group's tile are there: what the sums before it take on.
__device__ __forceinline__ void take_top(float (&factor)[2], reader& me, const prompt_shared& s, uint32_t round) {
  wait(&s.top_full[1 - me.group], round);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float newest = s.top[1 - me.group][me.row + 8 * h];
    factor[h] = factor_of(me.top[h], newest);
    me.top[h] = newest;
    me.sum[h] *= factor[h];
  }
}
__device__ __forceinline__ void begin_others(reader& me, const float (&factor)[2], prompt_shared& s, uint32_t round) {
  rescale(me, factor);
  wait(&s.weight_full[1 - me.group], round);
  add_others(me, s);
}

// Tile `at` of the block, one of the group's: the first of its row or behind one of the other group.
template <bool First> __device__ __forceinline__ void add_tile(reader& me, prompt_shared& s, uint32_t at) {
  const uint32_t round = at >> 1 & 1, round_before = (at - 1) >> 1 & 1;
  float score[32], newest[2], factor[2], factor_before[2];
  wait(&s.key_full[me.group], round);
  multiply_keys(score, s, me.group);
  scale_scores(score, newest, s, me);
  if constexpr (!First) take_top(factor_before, me, s, round_before);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    newest[h] = newest[h] > me.top[h] + slack ? newest[h] : me.top[h];
    factor[h] = factor_of(me.top[h], newest[h]);
    me.top[h] = newest[h];
    me.sum[h] *= factor[h];
    if (me.quad_lane == 0) s.top[me.group][me.row + 8 * h] = newest[h];
  }
  warp_arrives(&s.top_full[me.group]);
  if constexpr (!First) begin_others(me, factor_before, s, round_before);
  uint32_t weight[4][4];
  weigh(weight, score, s, me);
  show_writes();
  warp_arrives(&s.weight_full[me.group]);
  if constexpr (!First) end_products(me, s, 1 - me.group);
  rescale(me, factor);
  add_own(me, weight, s);
  end_products(me, s, me.group);
}

__device__ __forceinline__ void store_sums(reader& me, prompt_shared& s, const attention_view& a, int64_t r,
                                           uint32_t row_round) {
  auto& sums = s.sum[row_round];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = lanes_sum(me.sum[h], 4);
    if (me.quad_lane == 0) sums[me.group][me.row + 8 * h] = sum;
  }
  readers_meet();
  float* to = a.o + (r * prompt_heads + me.row) * prompt_dim + me.group * (prompt_dim / 2) + me.quad_lane / 2 * 16 +
              me.quad_lane % 2 * 4;
#pragma unroll
  for (int h = 0; h < 2; ++h, to += 8 * prompt_dim) {
    const int row = me.row + 8 * h;
    const float sink = power_of_two(fmaf(a.sink[row], exp_constants::log2_e, -me.top[h]));
    const float by = me.top[h] == lowest ? 1.0F : 1.0F / (sums[0][row] + sums[1][row] + sink);
#pragma unroll
    for (int c = 0; c < 8; ++c) { // a chunk of the quad; the lane's dims i + 4 e are in squares i
      float4 v[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int at = 4 * c + 2 * h + e;
        v[e] = make_float4(me.o[0][at] * by, me.o[0][at + 32] * by, me.o[1][at] * by, me.o[1][at + 32] * by);
      }
      swap_with_neighbour(v[0], v[1]);
      __stcs(reinterpret_cast<float4*>(to + 32 * c), v[0]);
      __stcs(reinterpret_cast<float4*>(to + 32 * c + 8), v[1]);
    }
  }
}

// A head of the queries of a row in a warp. The largest goes to 2^14, so that nothing leaves the range of f16 and what
// is 2^-28 of it still has all bits.
struct head_part {
  float4 v[2][2];
  __device__ __forceinline__ void read(const float* q, int lane) {
#pragma unroll
    for (int u = 0; u < 2; ++u)
#pragma unroll
      for (int h = 0; h < 2; ++h) v[u][h] = __ldg(reinterpret_cast<const float4*>(q) + (2 * u + h) * warp_lanes + lane);
  }
  __device__ __forceinline__ void store(prompt_shared& s, int head, int lane, float scale) {
    uint32_t top = 0;
#pragma unroll
    for (int u = 0; u < 2; ++u)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        for (const float x : {v[u][h].x, v[u][h].y, v[u][h].z, v[u][h].w})
          top = max(top, __float_as_uint(x) & 0x7FFFFFFFU);
    top = __reduce_max_sync(all_lanes, top);
    const int binade = static_cast<int>(top >> 23) - 127;
    const int exponent = top == 0 || binade == 128 ? 0 : min(14 - binade, 126);
    const float by = __int_as_float((exponent + 127) << 23);
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      swap_with_neighbour(v[u][0], v[u][1]);
      store_eight(s.query, head, u * warp_lanes + lane % 2 * 16 + lane / 2, v[u][0], v[u][1], by);
    }
    if (lane == 0) s.query_by[head] = scale * exp_constants::log2_e * __int_as_float((127 - exponent) << 23);
  }
};
// By the readers, who have the registers for all of a row under way at once.
__device__ __forceinline__ void read_queries(prompt_shared& s, const attention_view& a, int64_t r) {
  constexpr int heads = prompt_heads / reader_warps;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const int first = static_cast<int>(threadIdx.x) / warp_lanes * heads;
  head_part part[heads];
#pragma unroll
  for (int i = 0; i < heads; ++i) part[i].read(a.q + (r * prompt_heads + first + i) * prompt_dim, lane);
#pragma unroll
  for (int i = 0; i < heads; ++i) part[i].store(s, first + i, lane, a.scale);
  show_writes();
  readers_meet();
}

__device__ __forceinline__ void read_rows(prompt_shared& s, const attention_view& a, int64_t n_rows) {
  reader me;
  uint32_t row_round = 0, tile = 0; // of the block, over all rows
  for (auto i = static_cast<int32_t>(blockIdx.x); i < n_rows; i += static_cast<int32_t>(gridDim.x), row_round ^= 1) {
    read_queries(s, a, a.first + i);
#pragma unroll
    for (int u = 0; u < 64; ++u) me.o[0][u] = me.o[1][u] = 0;
    wait(&s.key_full[tile & 1], tile >> 1 & 1);
    const uint32_t end = tile + static_cast<uint32_t>(s.n_tiles[tile & 1]);
#pragma unroll
    for (int h = 0; h < 2; ++h) me.top[h] = lowest, me.sum[h] = 0;
    uint32_t at = tile + ((tile & 1) == static_cast<uint32_t>(me.group) ? 0 : 1);
    if (at == tile) add_tile<true>(me, s, at), at += 2;
    for (; at < end; at += 2) add_tile<false>(me, s, at);
    if (at == end) { // the last tile was the other group's
      float factor[2];
      take_top(factor, me, s, (end - 1) >> 1 & 1);
      begin_others(me, factor, s, (end - 1) >> 1 & 1);
      end_products(me, s, 1 - me.group);
    }
    tile = end;
    store_sums(me, s, a, a.first + i, row_round);
  }
}

#endif

__global__ void __launch_bounds__(prompt_threads, 1)
    attention_prompt_kernel(const attention_view a, const int64_t n_rows) {
#if defined(TROUPE_WGMMA)
  begin_in_turn();
  extern __shared__ __align__(1024) uint8_t memory[];
  uint32_t at = (1024 - shared_address(memory) % 1024) % 1024;
  if (threadIdx.x == 0) reinterpret_cast<prompt_shared*>(memory + at)->begin();
  __syncthreads();
  // 2 * 200 + 2 * 56 = 4 * 128, what the launch gave each of the four groups. `at` is each side's own, lest
  // addresses that both sides need are held from here on.
  if (threadIdx.x >= reader_threads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;\n" : "+r"(at));
    auto& s = *reinterpret_cast<prompt_shared*>(memory + at);
    if (threadIdx.x < reader_threads + filler_warps * warp_lanes)
      fill_keys(s);
    else
      find_keys(s, a, n_rows);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 200;\n" : "+r"(at));
    auto& s = *reinterpret_cast<prompt_shared*>(memory + at);
    read_rows(s, a, n_rows);
  }
#else
  __trap(); // cuda_lane::has_prompt_attention was wrong: the build has no code for sm_90a
#endif
}

} // namespace

bool attention_prompt_serves(const attention_args& a, const cuda_lane& lane) {
  return lane.has_prompt_attention && a.q.shape[1] == prompt_heads && a.q.shape[2] == prompt_dim &&
         a.rings.type == dtype::u8 && (!a.selected || a.compressed.type == dtype::u8);
}

void attention_prompt_cuda(const attention_args& args, const step_rows& rows, int64_t first, int64_t n_rows,
                           const cuda_lane& lane) {
  attention_view a = view_of(args, rows);
  a.first = first;
  TROUPE_CHECK(a.fours, "queries, sums, rows and records are read 16 bytes at a time");
  cuda_check(
      cudaFuncSetAttribute(attention_prompt_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, prompt_shared_bytes),
      "attention_prompt: shared memory");
  const int64_t n_blocks = std::min<int64_t>(n_rows, lane.n_multiprocessors);
  launch_early(attention_prompt_kernel, static_cast<unsigned>(n_blocks), prompt_threads, prompt_shared_bytes, lane.on,
               "attention of prompt rows", a, n_rows);
}

} // namespace troupe
