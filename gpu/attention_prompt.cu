// Attention of prompt rows in one kernel of warp-group products: scores, softmax and weighted sum.
//
// Real shape, a row: 64 heads x 512 with up to 640 keys, ten tiles of 64. Queries, weights and keys are one f16 each: 2
// x 21 M products, 20 k clocks of a multiprocessor's tensor cores, 0.7 ms for 8192 rows; queries in and sums out
// are 2.1 GB, 0.5 ms. Measured (H200, 2026-12): 1.86 ms, 52 k clocks a row: 3.4 k a tile, of which shared memory is
// busy for 2.4 k by count (both sides of a score's products come from it), and 18 k between rows, when queries arrive,
// sums leave and only two tiles are filled ahead. Where the sums become rows of products (0.54 GB for 1.07) that takes
// 5 k more, fifteen instructions an element, in place of 0.55 ms of kernels behind it.
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
#include "gpu/attention_prompt_rows.cuh"
#include "gpu/cuda_check.cuh"
#include "gpu/early_launch.cuh"

#include <algorithm>

namespace troupe {
namespace {

using namespace device;

constexpr float slack = 8; // weights may grow to 2^8 before they become relative to a larger score
constexpr int prompt_threads = reader_threads + filler_threads;
constexpr int prompt_shared_bytes = sizeof(prompt_shared) + 1024; // 1024: alignment
static_assert(prompt_shared_bytes <= 227 << 10);

#if defined(TROUPE_WGMMA)

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

template <bool Projects>
__device__ __forceinline__ void read_rows(prompt_shared& s, const prompt_view& v, int64_t n_rows) {
  reader me;
  uint32_t row_round = 0, tile = 0; // of the block, over all rows
  for (auto i = static_cast<int32_t>(blockIdx.x); i < n_rows; i += static_cast<int32_t>(gridDim.x), row_round ^= 1) {
    read_queries<Projects>(s, v, v.a.first + i, row_round);
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
    if constexpr (Projects)
      store_products(me, s, v, i, row_round);
    else
      store_sums(me, s, v.a, v.a.first + i, row_round);
  }
}

#endif

template <bool Projects>
__global__ void __launch_bounds__(prompt_threads, 1)
    attention_prompt_kernel(const __grid_constant__ prompt_view v, const int64_t n_rows) {
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
      find_keys(s, v, n_rows);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 200;\n" : "+r"(at));
    auto& s = *reinterpret_cast<prompt_shared*>(memory + at);
    read_rows<Projects>(s, v, n_rows);
  }
#else
  __trap(); // cuda_lane::has_prompt_attention was wrong: the build has no code for sm_90a
#endif
}

// Rows of the step in f16 (step_row_bytes), eight dims a thread. Bound by bytes, and few: 10 us for 8192 rows.
constexpr int step_threads = 256;
__global__ void __launch_bounds__(step_threads) step_rows_kernel(uint8_t* to, const float* x, int64_t n_rows) {
  begin_in_turn();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * step_threads + threadIdx.x, row = at / (prompt_dim / 8);
  if (row >= n_rows) return;
  const int eighth = static_cast<int>(at % (prompt_dim / 8));
  const auto* from = reinterpret_cast<const float4*>(x + at * 8);
  const eight_pairs pairs(from[0], from[1], 1);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    *reinterpret_cast<uint32_t*>(to + row * step_row_bytes + (eighth / 32 * 4 + i) * 128 + eighth % 32 * 4) =
        pairs.of_square[i];
}

} // namespace

bool attention_prompt_serves(const attention_args& a, const cuda_lane& lane) {
  return lane.has_prompt_attention && a.q.shape[1] == prompt_heads && a.q.shape[2] == prompt_dim &&
         a.rings.type == dtype::u8 && (!a.selected || a.compressed.type == dtype::u8);
}

void attention_prompt_cuda(const attention_args& args, const step_rows& rows, int64_t first, int64_t n_rows,
                           const cuda_lane& lane, const prompt_products& to) {
  prompt_view v{view_of(args, rows), to, reinterpret_cast<const uint8_t*>(lane.scratch)};
  v.a.first = first;
  TROUPE_CHECK(v.a.fours, "queries, sums, rows and records are read 16 bytes at a time");
  TROUPE_CHECK(v.a.n_rows * step_row_bytes <= lane.scratch_bytes, "the scratch of a lane holds the rows of a step");
  const int64_t eighths = v.a.n_rows * (prompt_dim / 8);
  launch_early(step_rows_kernel, static_cast<unsigned>((eighths + step_threads - 1) / step_threads), step_threads, 0,
               lane.on, "attention: rows of the step", reinterpret_cast<uint8_t*>(lane.scratch), v.a.step_kv,
               v.a.n_rows);
  const auto kernel = to.frequencies != nullptr ? attention_prompt_kernel<true> : attention_prompt_kernel<false>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, prompt_shared_bytes),
             "attention_prompt: shared memory");
  const int64_t n_blocks = std::min<int64_t>(n_rows, lane.n_multiprocessors);
  launch_early(kernel, static_cast<unsigned>(n_blocks), prompt_threads, prompt_shared_bytes, lane.on,
               "attention of prompt rows", v, n_rows);
}

} // namespace troupe
