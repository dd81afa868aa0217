// Attention over latent rows of any shape: products with the keys, the softmax, the weighted sum of the keys. Three
// kernels, since a row's 64 heads share its keys and its keys are its own: each product is a small matrix product. On
// Hopper rows of 512 dims have kernels of their own: attention_few.cu to decode, attention_prompt.cu for prompts.
//
// Real shape, a row: 64 heads x 512 with 640 keys, 2 x 21 M fused steps on 215 KB of records. f32 steps would bound
// prefill (8192 rows: 10.3 ms at 67 TFLOP/s), so products run on tensor cores with floats split into two bf16 (mma.cuh;
// 1e-5 of the twin): two products where keys are of eight bits, three otherwise, 1.4 or 2.1 PFLOP. Measured on an
// H200: one row 47 us, bound by latency; 8192 rows at 8k 14.9 ms.
//
// An output's sum runs over 16 dims or 16 keys at a time, ascending, whatever the tile: both tile sizes give one row
// the same bits.
#include "gpu/attention_few.cuh"
#include "gpu/attention_keys.cuh"
#include "gpu/attention_prompt.h"
#include "gpu/cuda_check.cuh"
#include "gpu/cuda_ops.h"
#include "gpu/device_math.cuh"
#include "gpu/early_launch.cuh"
#include "gpu/mma.cuh"

#include <algorithm>

namespace troupe {
namespace {

using namespace device;

constexpr float lowest = -INFINITY;
constexpr int64_t max_slab = 4096; // rows a launch, so that blocks are counted in 32 bits

// Few rows: small tiles for many blocks, deep for many bytes in flight. Many rows: large ones, two blocks a
// multiprocessor.
using narrow_scores = tile<1, 4, 1, 1, 128>;
using wide_scores = tile<2, 4, 2, 4, 32>;
using narrow_values = tile<1, 4, 1, 1, 128>;
using wide_values = tile<2, 4, 2, 4, 32>;

// score[head][key] = q . key * scale of a tile of heads and keys of a row; minus infinity where there is no key.
template <class T> __global__ void __launch_bounds__(T::threads, 2) scores_kernel(attention_view a) {
  begin_in_turn();
  constexpr int n_rows = T::heads + T::others, quads = T::depth / 4, held_parts = n_rows * quads / T::threads;
  static_assert(n_rows * quads % T::threads == 0);
  __shared__ stored_row source[n_rows];
  __shared__ __align__(16) uint32_t high[n_rows * T::stride], low[n_rows * T::stride];
  const int tid = static_cast<int>(threadIdx.x);
  const int head_tiles = (a.heads + T::heads - 1) / T::heads, key_tiles = static_cast<int>(a.stride) / T::others;
  const int first_head = static_cast<int>(blockIdx.x) % head_tiles * T::heads;
  const int64_t first_key = static_cast<int64_t>(blockIdx.x) / head_tiles % key_tiles * T::others;
  const int64_t local = static_cast<int64_t>(blockIdx.x) / head_tiles / key_tiles, r = a.first + local;

  const key_span span = span_of(a, r);
  if (first_key == 0 && first_head == 0 && tid == 0) a.n_keys[local] = static_cast<int32_t>(span.n);
  if (first_key >= span.n) return;
  bool any = false;
  for (int i = tid; i < n_rows; i += T::threads) {
    stored_row row{nullptr, row_kind::none};
    if (i < T::heads) {
      if (first_head + i < a.heads) row = floats_at(a.q + (r * a.heads + first_head + i) * a.dim);
    } else {
      const int64_t key = first_key + i - T::heads;
      if (key < span.n) row = key_of(a, r, span, key);
      any = any || row.kind != row_kind::none;
      if (first_head == 0) a.key[local * a.stride + key] = packed(row);
    }
    source[i] = row;
  }
  any = __syncthreads_or(any) != 0;

  const int lane = tid % warp_lanes, g = lane / 4, t = lane % 4, warp = tid / warp_lanes;
  const int head = warp / T::other_warps * T::head_tiles * 16, key = warp % T::other_warps * T::other_tiles * 8;
  float acc[T::head_tiles][T::other_tiles][4] = {};
  uint4 held[held_parts];
  const auto load = [&](int dim) {
#pragma unroll
    for (int u = 0; u < held_parts; ++u) {
      const int i = u * T::threads + tid;
      held[u] = read_four(source[i / quads], dim + i % quads * 4, a.dim, a.fours);
    }
  };
  if (any) load(0);
  for (int dim = 0; any && dim < a.dim; dim += T::depth) {
    bool low_keys = false;
#pragma unroll
    for (int u = 0; u < held_parts; ++u) {
      const int i = u * T::threads + tid, at = i / quads * T::stride + i % quads * 2;
      const auto [x, y] = split_raw(held[u], source[i / quads].kind);
      *reinterpret_cast<uint2*>(high + at) = make_uint2(x.high, y.high);
      *reinterpret_cast<uint2*>(low + at) = make_uint2(x.low, y.low);
      low_keys = low_keys || (i / quads >= T::heads && (x.low | y.low) != 0);
    }
    const bool with_low = __syncthreads_or(low_keys) != 0;
    if (dim + T::depth < a.dim) load(dim + T::depth);
    multiply_tiles<T, 8 * T::stride, 1>(acc, high + (head + g) * T::stride + t, low + (head + g) * T::stride + t,
                                        high + (T::heads + key + g) * T::stride + t,
                                        low + (T::heads + key + g) * T::stride + t, with_low);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < T::head_tiles * T::other_tiles * 2; ++i) {
    const int m = i / 2 / T::other_tiles, n = i / 2 % T::other_tiles, half = i % 2;
    const int h = first_head + head + m * 16 + half * 8 + g, k = key + n * 8 + 2 * t;
    if (h >= a.heads) continue;
    const stored_row* of = source + T::heads + k;
    const float x = of[0].kind != row_kind::none ? acc[m][n][half * 2] * a.scale : lowest;
    const float y = of[1].kind != row_kind::none ? acc[m][n][half * 2 + 1] * a.scale : lowest;
    *reinterpret_cast<float2*>(a.score + (local * a.heads + h) * a.stride + first_key + k) = make_float2(x, y);
  }
}

// Scores become weights e^(score - top), not yet divided by their sum. A warp owns a head of a row.
__global__ void __launch_bounds__(256) softmax_kernel(attention_view a, int64_t n_heads) {
  begin_in_turn();
  const int64_t which = static_cast<int64_t>(blockIdx.x) * (blockDim.x / warp_lanes) + threadIdx.x / warp_lanes;
  if (which >= n_heads) return;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, n = a.n_keys[which / a.heads];
  float* score = a.score + which * a.stride;
  float top = lowest;
#pragma unroll 8
  for (int i = lane; i < n; i += warp_lanes) top = fmaxf(top, score[i]);
  top = lanes_max(top);
  const bool sees = top != lowest;
  float sum = 0;
#pragma unroll 4
  for (int i = lane; i < (n + key_round - 1) / key_round * key_round; i += warp_lanes) {
    const float p = sees && i < n ? device::exp_f32(score[i] - top) : 0.0F;
    sum += p;
    const split_pair s = split(p, 0);
    reinterpret_cast<uint32_t*>(score)[i] = s.high << 16 | (s.low & 0xFFFFU);
  }
  sum = lanes_sum(sum);
  if (lane == 0) a.sum[which] = sees ? sum + device::exp_f32(a.sink[which % a.heads] - top) : 1.0F;
}

// o[head][dim] = sum of weight[head][key] * key[dim] / sum of the weights, a tile of heads and dims of a row.
template <class T> __global__ void __launch_bounds__(T::threads, 2) values_kernel(attention_view a) {
  begin_in_turn();
  constexpr int value_parts = T::words * (T::others / 4) / T::threads, weight_quads = T::depth / 4;
  constexpr int weight_parts = T::heads * weight_quads / T::threads;
  static_assert(T::words * (T::others / 4) % T::threads == 0 && T::heads * weight_quads % T::threads == 0);
  __shared__ __align__(16) uint32_t weight_high[T::heads * T::stride], weight_low[T::heads * T::stride];
  __shared__ __align__(16) uint32_t value_high[T::words * T::wide_stride], value_low[T::words * T::wide_stride];
  const int tid = static_cast<int>(threadIdx.x);
  const int head_tiles = (a.heads + T::heads - 1) / T::heads, dim_tiles = (a.dim + T::others - 1) / T::others;
  const int first_head = static_cast<int>(blockIdx.x) % head_tiles * T::heads;
  const int first_dim = static_cast<int>(blockIdx.x) / head_tiles % dim_tiles * T::others;
  const int64_t local = static_cast<int64_t>(blockIdx.x) / head_tiles / dim_tiles;
  const int n_keys = a.n_keys[local];
  const uint32_t* weights = reinterpret_cast<const uint32_t*>(a.score) + local * a.heads * a.stride;
  const uint64_t* keys = a.key + local * a.stride;

  uint64_t pair[value_parts][2]; // rows of the part to be loaded next, packed
  uint4 value[value_parts][2];
  uint32_t kinds = 0; // of the values, two bits each
  uint4 weight[weight_parts];
  const auto find = [&](int first) {
#pragma unroll
    for (int u = 0; u < value_parts; ++u) {
      const int key = first + (u * T::threads + tid) / (T::others / 4) * 2;
      pair[u][0] = key < n_keys ? keys[key] : 0;
      pair[u][1] = key + 1 < n_keys ? keys[key + 1] : 0;
    }
  };
  const auto load = [&](int first) {
    kinds = 0;
#pragma unroll
    for (int u = 0; u < value_parts; ++u) {
      const int dim = first_dim + (u * T::threads + tid) % (T::others / 4) * 4;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const stored_row row = unpacked(pair[u][i]);
        value[u][i] = read_four(row, dim, a.dim, a.fours);
        kinds |= static_cast<uint32_t>(row.kind) << (4 * u + 2 * i);
      }
    }
#pragma unroll
    for (int u = 0; u < weight_parts; ++u) {
      const int i = u * T::threads + tid, h = first_head + i / weight_quads;
      weight[u] = make_uint4(0, 0, 0, 0);
      if (h < a.heads)
        weight[u] = *reinterpret_cast<const uint4*>(weights + h * a.stride + first + i % weight_quads * 4);
    }
  };
  const int lane = tid % warp_lanes, g = lane / 4, t = lane % 4, warp = tid / warp_lanes;
  const int head = warp / T::other_warps * T::head_tiles * 16, column = warp % T::other_warps * T::other_tiles * 8;
  float acc[T::head_tiles][T::other_tiles][4] = {};
  find(0);
  if (n_keys > 0) load(0);
  find(T::depth);
  for (int first = 0; first < n_keys; first += T::depth) {
    uint32_t lows = 0;
#pragma unroll
    for (int u = 0; u < value_parts; ++u) {
      const int i = u * T::threads + tid, at = i / (T::others / 4) * T::wide_stride + i % (T::others / 4) * 4;
      const split_four x = split_raw(value[u][0], static_cast<row_kind>(kinds >> 4 * u & 3U));
      const split_four y = split_raw(value[u][1], static_cast<row_kind>(kinds >> (4 * u + 2) & 3U));
      const split_pair v[4] = {firsts(x.first, y.first), seconds(x.first, y.first), firsts(x.second, y.second),
                               seconds(x.second, y.second)};
      store_words(value_high + at, value_low + at, v);
      lows |= v[0].low | v[1].low | v[2].low | v[3].low;
    }
#pragma unroll
    for (int u = 0; u < weight_parts; ++u) {
      const int i = u * T::threads + tid, at = i / weight_quads * T::stride + i % weight_quads * 2;
      const uint4 w = weight[u];
      *reinterpret_cast<uint2*>(weight_high + at) =
          make_uint2(w.x >> 16 | (w.y & 0xFFFF0000U), w.z >> 16 | (w.w & 0xFFFF0000U));
      *reinterpret_cast<uint2*>(weight_low + at) = make_uint2((w.x & 0xFFFFU) | w.y << 16, (w.z & 0xFFFFU) | w.w << 16);
    }
    const bool with_low = __syncthreads_or(lows != 0) != 0;
    if (first + T::depth < n_keys) load(first + T::depth);
    find(first + 2 * T::depth);
    const int a_at = (head + g) * T::stride + t, b_at = t * T::wide_stride + column + g;
    multiply_tiles<T, 8, T::wide_stride>(acc, weight_high + a_at, weight_low + a_at, value_high + b_at,
                                         value_low + b_at, with_low);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < T::head_tiles * T::other_tiles * 2; ++i) {
    const int m = i / 2 / T::other_tiles, n = i / 2 % T::other_tiles, half = i % 2;
    const int h = first_head + head + m * 16 + half * 8 + g, d = first_dim + column + n * 8 + 2 * t;
    if (h >= a.heads || d >= a.dim) continue;
    const float by = a.sum[local * a.heads + h];
    float* o = a.o + ((a.first + local) * a.heads + h) * a.dim + d;
    const float x = acc[m][n][half * 2] / by, y = acc[m][n][half * 2 + 1] / by;
    if (a.fours) {
      *reinterpret_cast<float2*>(o) = make_float2(x, y);
    } else {
      o[0] = x;
      if (d + 1 < a.dim) o[1] = y;
    }
  }
}

template <class Scores, class Values> void run_slab(const attention_view& a, int64_t n, cuda_stream on) {
  const int64_t head_tiles = (a.heads + Scores::heads - 1) / Scores::heads;
  const auto scores_blocks = static_cast<unsigned>(n * head_tiles * (a.stride / Scores::others));
  launch_early(scores_kernel<Scores>, scores_blocks, Scores::threads, 0, on, "attention scores", a);
  launch_early(softmax_kernel, static_cast<unsigned>((n * a.heads + 7) / 8), 256, 0, on, "attention softmax", a,
               n * a.heads);
  const int64_t value_heads = (a.heads + Values::heads - 1) / Values::heads;
  const auto values_blocks = static_cast<unsigned>(n * value_heads * ((a.dim + Values::others - 1) / Values::others));
  launch_early(values_kernel<Values>, values_blocks, Values::threads, 0, on, "attention values", a);
}

// Any shape, either class.
void attention_any(attention_view a, int64_t first, int64_t n_rows, const cuda_lane& lane) {
  const int64_t row_bytes = a.stride * (a.heads * 4 + 8) + a.heads * 4 + 4;
  const int64_t slab = std::min({lane.scratch_bytes / row_bytes, max_slab, n_rows});
  TROUPE_CHECK(slab > 0, "scratch holds the scores of one row");
  // Widest elements first, so each array is aligned: strides are whole cache lines.
  std::byte* at = lane.scratch;
  a.score = reinterpret_cast<float*>(at), at += slab * a.heads * a.stride * 4;
  a.key = reinterpret_cast<uint64_t*>(at), at += slab * a.stride * 8;
  a.sum = reinterpret_cast<float*>(at), at += slab * a.heads * 4;
  a.n_keys = reinterpret_cast<int32_t*>(at);
  const bool wide = n_rows * (a.stride / wide_scores::others) >= lane.n_multiprocessors;
  for (a.first = first; a.first < first + n_rows; a.first += slab) {
    const int64_t n = std::min(slab, first + n_rows - a.first);
    if (wide)
      run_slab<wide_scores, wide_values>(a, n, lane.on);
    else
      run_slab<narrow_scores, narrow_values>(a, n, lane.on);
  }
}

} // namespace

void attention_cuda(const attention_args& args, const step_rows& rows, int64_t first, int64_t n_rows,
                    const cuda_lane& lane) {
  if (n_rows == 0) return;
  attention_view a = view_of(args, rows);
  TROUPE_CHECK(a.window >= 1 && a.ring >= 1, "a row sees a window of a ring");
  TROUPE_CHECK(first >= 0 && first + n_rows <= a.n_rows, "attention is for rows of the step");
  if (lane.rows == row_class::prefill && attention_prompt_serves(args, lane))
    attention_prompt_cuda(args, rows, first, n_rows, lane);
  else if (lane.rows == row_class::decode && attention_few_serves(a, lane))
    attention_few(a, first, n_rows, lane);
  else
    attention_any(a, first, n_rows, lane);
}

} // namespace troupe
