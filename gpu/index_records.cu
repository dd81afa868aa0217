// Index scores over keys kept as records of 128 elements (fp4_e8m0_32: 64 bytes of codes, four scales), by tensor cores
// and yet with the bits of the twin.
//
// Products of e2m1 numbers are whole numbers of a small unit, so a dot product rounds nowhere, in whatever order it is
// summed, if all that it can reach fits into the 24 bits of a float: those between the highest and the lowest bit of a
// head's query, those of a key (its largest scale over its smallest, and three), and nine for 128 products of two
// numbers. Where that fails for a head of a key, or scales leave bf16, a thread sums in the twin's order instead.
//
// Real shape: 32 heads x 128. An entry is 68 bytes and 4096 products. A warp owns 32 entries: it makes pairs of bf16 of
// their codes (five steps a pair), multiplies 64 times, and adds up the heads in order. By arithmetic a row of 1M
// entries is 16 us of bytes and about 19 us of steps; not yet measured.
#include "gpu/index_view.cuh"

#include "gpu/cuda_check.cuh"
#include "gpu/early_launch.cuh"
#include "gpu/mma.cuh"

#include <algorithm>

namespace troupe {
namespace {

using namespace device;

constexpr int n_warps = 8, threads = n_warps * warp_lanes;
constexpr int dim = 128, max_heads = 64, n_steps = dim / 16;
constexpr int tile_heads = 8, tile_keys = 32; // of a warp at a time
constexpr int code_words = dim / 8, key_words = code_words + 1;
constexpr int dot_stride = tile_keys + 4; // 4 modulo 16: the lanes of an accumulator meet every bank once
// Keys are multiplied as 2^-63 of themselves and queries as 2^63, so that a scale and the step from codes to bf16
// (2^126) are one factor; exponents in these bounds stay far inside bf16.
constexpr int shift = 63, least_exponent = -50, most_exponent = 60;
constexpr int product_bits = 9, exact_bits = 23; // one of the 24 is left for the sum inside an instruction

struct warp_memory {
  alignas(16) uint32_t codes[tile_keys * code_words];
  uint32_t scales[tile_keys];
  float dot[tile_heads * dot_stride];
};

// The exponents of the highest and of the lowest bit in each group of a head's query, plus 128; zeros leave 0 and 255,
// what is no bf16 in bounds 255 and 0.
struct head_span {
  uint8_t high[4], low[4];
};

// Fills the spans and tells how many bits lie between the highest and the lowest of a head, at most. A warp looks at
// every n_warps-th head, eight lanes at a group. All threads call it.
__device__ int span_queries(head_span* spans, const float* q, int heads, int* widest) {
  if (threadIdx.x == 0) *widest = 0;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  for (int h = static_cast<int>(threadIdx.x) / warp_lanes; h < heads; h += n_warps) {
    const float4 v = *reinterpret_cast<const float4*>(q + h * dim + 4 * lane);
    const float x[4] = {v.x, v.y, v.z, v.w};
    int high = -128, low = 127;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t u = __float_as_uint(x[i]) & 0x7FFFFFFFU;
      if (u == 0) continue;
      const int exponent = static_cast<int>(u >> 23) - 127, lowest = min(__ffs(static_cast<int>(u)) - 1, 23);
      const bool fits = exponent <= most_exponent && exponent >= least_exponent && lowest >= 16;
      high = max(high, fits ? exponent : 127), low = min(low, fits ? exponent - 23 + lowest : -128);
    }
#pragma unroll
    for (int step = 4; step > 0; step /= 2) {
      high = max(high, __shfl_xor_sync(all_lanes, high, step));
      low = min(low, __shfl_xor_sync(all_lanes, low, step));
    }
    if (lane % 8 == 0) {
      spans[h].high[lane / 8] = static_cast<uint8_t>(high + 128);
      spans[h].low[lane / 8] = static_cast<uint8_t>(low + 128);
    }
    high = __reduce_max_sync(all_lanes, high), low = __reduce_min_sync(all_lanes, low);
    if (lane == 0) atomicMax(widest, high - low); // nothing but zeros: below 0
  }
  __syncthreads();
  return *widest;
}

// Whether products with a key's codes reach no bit that a float loses: of scales and queries that span `width` bits
// together. The codes of a group add two bits above its scale and one below.
__device__ bool fits_float(int width) { return width + 3 + product_bits <= exact_bits; }
__device__ int scale_of(uint32_t scales, int group) { return static_cast<int>(scales >> (8 * group) & 255U); }
__device__ bool in_bounds(uint32_t scales) {
  bool all = true;
#pragma unroll
  for (int g = 0; g < 4; ++g)
    all = all && scale_of(scales, g) - 127 >= least_exponent && scale_of(scales, g) - 127 <= most_exponent;
  return all;
}
__device__ bool is_exact(uint32_t scales, int width) {
  int high = 0, low = 255;
#pragma unroll
  for (int g = 0; g < 4; ++g) high = max(high, scale_of(scales, g)), low = min(low, scale_of(scales, g));
  return in_bounds(scales) && fits_float(high - low + width);
}
__device__ bool is_exact(uint32_t scales, const head_span& head) {
  int high = 0, low = 1024;
#pragma unroll
  for (int g = 0; g < 4; ++g) {
    high = max(high, scale_of(scales, g) + head.high[g]);
    low = min(low, scale_of(scales, g) + head.low[g]);
  }
  return in_bounds(scales) && fits_float(high - low);
}

// A head's product with a key in the order of the twin, whatever they are.
__device__ __noinline__ float dot_in_order(const float* q, const uint32_t* codes, uint32_t scales) {
  float lane[dot_lanes] = {};
#pragma unroll 1
  for (int m = 0; m < n_steps; ++m) {
    const float scale = e8m0_to_f32(static_cast<uint8_t>(scale_of(scales, m / 2)));
#pragma unroll
    for (int i = 0; i < dot_lanes; ++i) {
      const auto code = static_cast<uint8_t>(codes[2 * m + i / 8] >> (i % 8 * 4) & 15U);
      lane[i] = fmaf(q[m * dot_lanes + i], e2m1_to_f32(code) * scale, lane[i]);
    }
  }
  return tree_sum(lane);
}

// The order of dims in a product is free, so a lane takes what lies together: lane (g, t) of a key g has group t, whose
// four words are two steps each; a pair of bf16 is codes i and i + 4 of a word, i = 0 .. 3. Queries follow.
__device__ void fill_query(uint2* query, const float* q, int heads) {
  for (int f = static_cast<int>(threadIdx.x); f < heads * (n_steps * warp_lanes / tile_heads); f += threads) {
    const int lane = f % warp_lanes, step = f / warp_lanes % n_steps, tile = f / warp_lanes / n_steps;
    const float* x = q + (tile * tile_heads + lane / 4) * dim + lane % 4 * 32 + step / 2 * 8 + step % 2 * 2;
    constexpr float by = 0x1p63F;
    query[f] = make_uint2(bits_of(__floats2bfloat162_rn(x[0] * by, x[4] * by)),
                          bits_of(__floats2bfloat162_rn(x[1] * by, x[5] * by)));
  }
}

template <int I> __device__ uint32_t code_pair(uint32_t word) { // 2^-126 of the values
  const uint32_t magnitude = I < 2 ? word << (I < 2 ? 6 - 4 * I : 0) : word >> (I < 2 ? 0 : 4 * I - 6);
  return (magnitude & 0x01C001C0U) | (word << (12 - 4 * I) & 0x80008000U);
}
template <int I> __device__ uint32_t key_pair(uint32_t word, uint32_t factor) {
  uint32_t pair = code_pair<I>(word);
  return bits_of(__hmul2(*reinterpret_cast<__nv_bfloat162*>(&pair), *reinterpret_cast<__nv_bfloat162*>(&factor)));
}

// keys[m][step]: rows 16 m + g and 16 m + g + 8 of the tile as a factor of 16 x 16.
__device__ void decode_tile(const warp_memory& from, uint32_t (&keys)[2][n_steps][4]) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 4; ++half) {
    const int row = half * 8 + g, m = half / 2, at = half % 2;
    const uint4 codes = *reinterpret_cast<const uint4*>(from.codes + row * code_words + 4 * t);
    const uint32_t factor = ((from.scales[row] >> (8 * t) & 255U) + shift) * 0x00800080U; // 2^(63 + exponent)
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      keys[m][2 * w][at] = key_pair<0>(words[w], factor), keys[m][2 * w][at + 2] = key_pair<1>(words[w], factor);
      keys[m][2 * w + 1][at] = key_pair<2>(words[w], factor),
                      keys[m][2 * w + 1][at + 2] = key_pair<3>(words[w], factor);
    }
  }
}

// The words of 32 records, lane l with words l, l + 32, ..; `entry` of the lane's own item, -1: none.
struct tile_words {
  uint32_t word[key_words];
  int64_t entry;
};
__device__ void read_tile(const index_view& a, int64_t r, int64_t first, int64_t n, int64_t visible, tile_words& to) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  to.entry = first + lane < n ? entry_of(a, r, first + lane, visible) : -1;
  const auto key = to.entry < 0 ? uint64_t{0} : reinterpret_cast<uint64_t>(key_of(a, r, to.entry));
  const uint64_t start = __shfl_sync(all_lanes, key, 0);
  const bool is_run = start != 0 && key == start + static_cast<uint64_t>(lane * key_words * 4);
  if (__all_sync(all_lanes, is_run) != 0) {
#pragma unroll
    for (int c = 0; c < key_words; ++c) to.word[c] = reinterpret_cast<const uint32_t*>(start)[c * warp_lanes + lane];
    return;
  }
#pragma unroll
  for (int c = 0; c < key_words; ++c) {
    const int at = c * warp_lanes + lane;
    const uint64_t from = __shfl_sync(all_lanes, key, at / key_words);
    to.word[c] = from == 0 ? 0 : reinterpret_cast<const uint32_t*>(from)[at % key_words];
  }
}
__device__ void store_tile(warp_memory& to, const tile_words& from) {
#pragma unroll
  for (int c = 0; c < key_words; ++c) {
    const int at = c * warp_lanes + static_cast<int>(threadIdx.x) % warp_lanes, key = at / key_words;
    const int word = at % key_words;
    *(word < code_words ? to.codes + key * code_words + word : to.scales + key) = from.word[c];
  }
}

// The dot products of a tile's keys with eight heads, to memory.
__device__ __forceinline__ void multiply_tile(warp_memory& to, const uint32_t (&keys)[2][n_steps][4],
                                              const uint2* query) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, g = lane / 4, t = lane % 4;
  float acc[2][4] = {};
#pragma unroll
  for (int s = 0; s < n_steps; ++s) {
    const uint2 b = query[s * warp_lanes + lane];
    const uint32_t heads[2] = {b.x, b.y};
    multiply_add(acc[0], keys[0][s], heads);
    multiply_add(acc[1], keys[1][s], heads);
  }
  __syncwarp(); // those before are read
#pragma unroll
  for (int i = 0; i < 8; ++i) // m, rows g and g + 8, heads 2t and 2t + 1
    to.dot[(2 * t + i % 2) * dot_stride + i / 4 * 16 + i / 2 % 2 * 8 + g] = acc[i / 4][i % 4];
  __syncwarp();
}

struct query_memory {
  uint2 pairs[max_heads / tile_heads * n_steps * warp_lanes];
  head_span spans[max_heads];
  float weight[max_heads];
  int widest;
};

// The score of the lane's own key, heads ascending: where no product rounds, and where some may.
__device__ float sum_heads(warp_memory& of, const query_memory& query, int heads) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  uint32_t keys[2][n_steps][4];
  decode_tile(of, keys);
  float sum = 0;
#pragma unroll 1
  for (int h = 0; h < heads; h += tile_heads) {
    multiply_tile(of, keys, query.pairs + h * n_steps * warp_lanes / tile_heads);
#pragma unroll
    for (int i = 0; i < tile_heads; ++i) sum = fmaf(query.weight[h + i], rectified(of.dot[i * dot_stride + lane]), sum);
  }
  return sum;
}
__device__ __noinline__ float sum_heads_in_order(warp_memory& of, const query_memory& query, int heads, const float* q,
                                                 bool has_key) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const uint32_t scales = of.scales[lane];
  float sum = 0;
#pragma unroll 1
  for (int h = 0; h < heads; h += tile_heads) {
    uint32_t keys[2][n_steps][4];
    decode_tile(of, keys);
    multiply_tile(of, keys, query.pairs + h * n_steps * warp_lanes / tile_heads);
#pragma unroll 1
    for (int i = 0; i < tile_heads; ++i) {
      float dot = of.dot[i * dot_stride + lane];
      if (has_key && !is_exact(scales, query.spans[h + i]))
        dot = dot_in_order(q + (h + i) * dim, of.codes + lane * code_words, scales);
      sum = fmaf(query.weight[h + i], rectified(dot), sum);
    }
  }
  return sum;
}

__global__ void __launch_bounds__(threads, 2) record_scores_kernel(index_view a) {
  begin_in_turn();
  __shared__ query_memory query;
  __shared__ warp_memory memory[n_warps];
  const int64_t r = a.first + blockIdx.y, visible = visible_of(a, r), n = items_of(a, visible);
  if (all_fit(a, visible) || static_cast<int64_t>(blockIdx.x) * n_warps * tile_keys >= n) return;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % warp_lanes;
  const float* q = a.q + r * a.heads * dim;
  fill_query(query.pairs, q, a.heads);
  for (int i = tid; i < a.heads; i += threads) query.weight[i] = a.weight[r * a.heads + i];
  const int width = span_queries(query.spans, q, a.heads, &query.widest); // and a barrier

  warp_memory& mine = memory[tid / warp_lanes];
  const int64_t step = static_cast<int64_t>(gridDim.x) * n_warps * tile_keys;
  int64_t first = (static_cast<int64_t>(blockIdx.x) * n_warps + tid / warp_lanes) * tile_keys;
  tile_words next;
  if (first < n) read_tile(a, r, first, n, visible, next);
  for (; first < n; first += step) {
    const int64_t entry = next.entry;
    store_tile(mine, next);
    __syncwarp();
    if (first + step < n) read_tile(a, r, first + step, n, visible, next);
    const bool is_sure = entry < 0 || is_exact(mine.scales[lane], width);
    const float sum = __all_sync(all_lanes, is_sure) != 0 ? sum_heads(mine, query, a.heads)
                                                          : sum_heads_in_order(mine, query, a.heads, q, entry >= 0);
    if (first + lane < n) store_score(a, r, first + lane, entry, sum);
    __syncwarp(); // before the next tile
  }
}

} // namespace

bool record_scores_serve(const index_view& a) {
  return a.are_records && a.dim == dim && a.heads % tile_heads == 0 && a.heads <= max_heads &&
         reinterpret_cast<uintptr_t>(a.q) % 16 == 0 && reinterpret_cast<uintptr_t>(a.keys) % 4 == 0;
}

void run_record_scores(const index_view& a, int64_t n_rows, int64_t n_items, const cuda_lane& lane) {
  constexpr int64_t block_items = n_warps * tile_keys;
  const int64_t wanted = (2 * static_cast<int64_t>(lane.n_multiprocessors) + n_rows - 1) / n_rows;
  const dim3 grid(static_cast<unsigned>(std::clamp<int64_t>((n_items + block_items - 1) / block_items, 1, wanted)),
                  static_cast<unsigned>(n_rows));
  launch_early(record_scores_kernel, grid, threads, 0, lane.on, "index scores of records", a);
}

} // namespace troupe
