// Attention of prompt rows in one kernel of warp-group products: scores, softmax and weighted sum, a block a row.
//
// Real shape, a row: 64 heads x 512 with up to 640 keys. What the cache quantisers make is exact in bf16, so queries
// and weights in two bf16 and keys in one give 4 x 21 M products, 41 k clocks of a multiprocessor's tensor cores: 1.7
// ms for 8192 rows; queries in and sums out are 2.1 GB, 0.5 ms. By arithmetic; not yet measured.
//
// A block goes from row to row. Warp groups 0 and 1 multiply; each has half of the dims, of the queries as of the sums.
// They hand each other scores over their half of the dims, so that each takes the softmax of half of the heads. Group 2
// decodes keys into shared memory, where they are an operand of both products: 16 keys as soon as the last product with
// the 16 before them is done.
//
// The bits of a row: scores are a sum over dims 0 .. 255 and one over 256 .. 511, each 16 dims at a time, ascending,
// high parts before low parts of each 64; tiles of 64 keys in their order, each with the largest score so far; the
// weighted sum 16 keys at a time, ascending.
#include "gpu/attention_prompt.h"

#include "gpu/attention_prompt.cuh"
#include "gpu/cuda_check.cuh"
#include "gpu/early_launch.cuh"
#include "gpu/wgmma.cuh"

#include <algorithm>

namespace troupe {
namespace {

using namespace device;

constexpr float lowest = -INFINITY;
constexpr int prompt_shared_bytes = sizeof(prompt_shared) + 1024; // 1024: alignment
static_assert(prompt_shared_bytes <= 227 << 10);

#if defined(TROUPE_WGMMA)

__device__ __forceinline__ void readers_meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// Where a reading thread is: its group, and in it the rows of sums that its quad has, `row` and `row + 8`; of these it
// takes the softmax of `own`.
struct reader {
  int group, thread, lane, quad_lane, row, own;
  __device__ reader()
      : group(static_cast<int>(threadIdx.x) / 128), thread(static_cast<int>(threadIdx.x) % 128),
        lane(thread % warp_lanes), quad_lane(lane % 4), row(thread / warp_lanes * 16 + lane / 4), own(row + 8 * group) {
  }
};

// score (64 heads x 64 keys) over the dims of the group.
__device__ __forceinline__ void multiply_keys(float (&score)[32], const prompt_shared& s, int group) {
  const uint32_t high = wgmma::descriptor(s.query[0][group * 4]), low = wgmma::descriptor(s.query[1][group * 4]);
  const uint32_t key = wgmma::descriptor(s.key[group * 4]);
  constexpr uint32_t square = sizeof(bf16_square) / 16;
  wgmma::settle(score);
  wgmma::fence();
#pragma unroll
  for (uint32_t square_of = 0; square_of < 4; ++square_of)
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t at = square_of * square + i % 4 * 2;
      wgmma::multiply_shared(score, (i < 4 ? high : low) + at, key + at, square_of + i > 0);
    }
  wgmma::commit();
  wgmma::wait<0>();
  wgmma::settle(score);
}

// The scores of the thread's own row over all dims: of keys 8 j + 2 quad_lane + i in [2 j + i].
__device__ __forceinline__ void exchange(float (&own)[16], const float (&score)[32], prompt_shared& s,
                                         const reader& me) {
  const bool second = me.group != 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* v = score + 8 * i;
    s.partial[me.group][i][me.thread] =
        make_float4(second ? v[0] : v[2], second ? v[1] : v[3], second ? v[4] : v[6], second ? v[5] : v[7]);
  }
  readers_meet();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* v = score + 8 * i;
    const float4 other = s.partial[1 - me.group][i][me.thread];
    own[4 * i] = (second ? v[2] : v[0]) + other.x;
    own[4 * i + 1] = (second ? v[3] : v[1]) + other.y;
    own[4 * i + 2] = (second ? v[6] : v[4]) + other.z;
    own[4 * i + 3] = (second ? v[7] : v[5]) + other.w;
  }
}

// Weights of a tile's keys, into shared memory, with the factor that sums of the tiles before take on. `top`: of the
// row; `sum`: the thread's part.
__device__ __forceinline__ void weigh(const float (&score)[16], float& top, float& sum, float scale, prompt_shared& s,
                                      const reader& me) {
  const uint4 seen = *reinterpret_cast<const uint4*>(s.seen[me.quad_lane]);
  const uint32_t seen_words[4] = {seen.x, seen.y, seen.z, seen.w};
  float v[16], newest = lowest;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    v[i] = (seen_words[i / 4] >> i % 4 * 8 & 1U) != 0 ? score[i] * scale : lowest;
    newest = fmaxf(newest, v[i]);
  }
  newest = fmaxf(top, lanes_max(newest, 4));
  const bool sees = newest != lowest;
  const float factor = sees ? device::exp_f32(top - newest) : 1.0F;
  top = newest;
  float part = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float x = sees ? device::exp_f32(v[2 * j] - newest) : 0.0F;
    const float y = sees ? device::exp_f32(v[2 * j + 1] - newest) : 0.0F;
    part += x;
    part += y;
    const split_pair w = split(x, y);
    const uint32_t at = square_at(me.own, 8 * j + 2 * me.quad_lane);
    *reinterpret_cast<uint32_t*>(s.weight[0] + at) = w.high;
    *reinterpret_cast<uint32_t*>(s.weight[1] + at) = w.low;
  }
  sum = fmaf(sum, factor, part);
  if (me.quad_lane == 0) s.factor[me.own] = factor;
}

// o (64 heads x the dims of the group) += weights x keys; bands of keys are given back on the way.
__device__ __forceinline__ void multiply_weights(float (&o)[128], prompt_shared& s, const reader& me) {
  const float first = s.factor[me.row], second = s.factor[me.row + 8];
  if (__any_sync(all_lanes, first != 1.0F || second != 1.0F)) {
#pragma unroll
    for (int i = 0; i < 128; ++i) o[i] *= i % 4 < 2 ? first : second;
  }
  const uint32_t high = wgmma::descriptor(s.weight[0]), low = wgmma::descriptor(s.weight[1]);
  const uint32_t key = wgmma::turned_descriptor(s.key[me.group * 4], sizeof(bf16_square));
  wgmma::settle(o);
  wgmma::fence();
#pragma unroll
  for (uint32_t band = 0; band < n_bands; ++band) {
    wgmma::multiply_turned(o, high + 2 * band, key + 128 * band);
    wgmma::multiply_turned(o, low + 2 * band, key + 128 * band);
    wgmma::commit();
  }
  const auto done = [&](int band) {
    if (me.lane == 0) arrive(&s.band_empty[band]);
  };
  static_assert(n_bands == 4);
  wgmma::wait<3>(), done(0);
  wgmma::wait<2>(), done(1);
  wgmma::wait<1>(), done(2);
  wgmma::wait<0>(), done(3);
  wgmma::settle(o);
}

__device__ __forceinline__ void store_sums(const float (&o)[128], float top, float sum, prompt_shared& s,
                                           const attention_view& a, int64_t r, const reader& me) {
  sum = lanes_sum(sum, 4);
  if (me.quad_lane == 0) s.by[me.own] = top != lowest ? 1.0F / (sum + device::exp_f32(a.sink[me.own] - top)) : 1.0F;
  readers_meet();
  const float first = s.by[me.row], second = s.by[me.row + 8];
  float* to = a.o + (r * prompt_heads + me.row) * prompt_dim + me.group * (prompt_dim / 2) + 2 * me.quad_lane;
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    __stcs(reinterpret_cast<float2*>(to + 8 * j), make_float2(o[4 * j] * first, o[4 * j + 1] * first));
    __stcs(reinterpret_cast<float2*>(to + 8 * prompt_dim + 8 * j),
           make_float2(o[4 * j + 2] * second, o[4 * j + 3] * second));
  }
}

__device__ __forceinline__ void read_rows(prompt_shared& s, const attention_view& a, int64_t n_rows) {
  const reader me;
  uint32_t row_round = 0, tile_round = 0;
  for (int64_t i = blockIdx.x; i < n_rows; i += gridDim.x, row_round ^= 1) {
    float o[128] = {}, top = lowest, sum = 0;
    wait(&s.query_full, row_round);
    const int n_tiles = s.n_tiles;
    for (int tile = 0; tile < n_tiles; ++tile, tile_round ^= 1) {
      wait(&s.key_full, tile_round);
      float score[32], own[16];
      multiply_keys(score, s, me.group);
      if (tile + 1 == n_tiles && me.lane == 0) arrive(&s.query_empty);
      exchange(own, score, s, me);
      weigh(own, top, sum, a.scale, s, me);
      show_writes();
      readers_meet();
      multiply_weights(o, s, me);
    }
    store_sums(o, top, sum, s, a, a.first + i, me);
  }
}

#endif

__global__ void __launch_bounds__(prompt_readers + prompt_fillers, 1)
    attention_prompt_kernel(const attention_view a, const int64_t n_rows) {
#if defined(TROUPE_WGMMA)
  begin_in_turn();
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<prompt_shared*>(memory + (1024 - shared_address(memory) % 1024) % 1024);
  if (threadIdx.x == 0) s.begin();
  __syncthreads();
  // 2 * 200 + 104 = 3 * 168, what the launch gave each of the three groups.
  if (threadIdx.x >= prompt_readers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 104;");
    fill_rows(s, a, n_rows);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 200;");
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
  launch_early(attention_prompt_kernel, static_cast<unsigned>(n_blocks), prompt_readers + prompt_fillers,
               prompt_shared_bytes, lane.on, "attention of prompt rows", a, n_rows);
}

} // namespace troupe
