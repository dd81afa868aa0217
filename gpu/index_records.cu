// Index scores over keys kept as records of 128 elements (fp4_e8m0_32: 64 bytes of codes, four scales), by tensor cores
// and yet with the bits of the twin.
//
// Products of e2m1 numbers are whole numbers of a small unit, so a dot product rounds nowhere, in whatever order it is
// summed, if all that it can reach fits into the 24 bits of a float: those between the highest and the lowest bit of a
// head's query, those of a key (its largest scale over its smallest, and three), and nine for 128 products of two
// numbers. Where that fails for a head of a key, or scales leave bf16, a thread sums in the twin's order instead.
//
// Real shape: 32 heads x 128. An entry is 68 bytes and 4096 products. A warp owns 32 entries: it makes pairs of bf16 of
// their codes (five steps a pair), multiplies 64 times for each row, and adds up the heads in order. Rows of a prompt
// see the same entries, so a block has six of them and decodes once for all. Bound by latency and shared memory, 61 %
// busy with queries and with sums that change lanes: 8192 rows at 8k took 616 us for 1190 with a row a block (H200,
// 2026-11-30).
#include "gpu/index_view.cuh"

#include "gpu/async_copy.cuh"
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
// Rows of a block, as many as let two of them share a multiprocessor; the most heads then; from so many rows on.
constexpr int grouped_rows = 6, grouped_heads = 32;
constexpr int64_t fewest_grouped = 64;
constexpr int code_words = dim / 8, key_words = code_words + 1;
// Of a key; four heads i of key k at place i ^ (k / 4 & 1): lanes that write two heads each of four keys, or read four
// of eight, meet every bank once.
constexpr int dot_stride = 2 * tile_heads + 8;
// Keys are multiplied as 2^-63 of themselves and queries as 2^63, so that a scale and the step from codes to bf16
// (2^126) are one factor; exponents in these bounds stay far inside bf16.
constexpr int shift = 63, least_exponent = -50, most_exponent = 60;
constexpr int product_bits = 9, exact_bits = 23; // one of the 24 is left for the sum inside an instruction

struct tile_records {
  alignas(16) uint32_t codes[tile_keys * code_words];
  uint32_t scales[tile_keys];
};
struct warp_memory {
  tile_records tile[2]; // one in use, one on its way
  alignas(16) float dot[tile_keys * dot_stride];
};

// The exponents of the highest and of the lowest bit in each group of a head's query, plus 128; zeros leave 0 and 255,
// what is no bf16 in bounds 255 and 0.
struct head_span {
  uint8_t high[4], low[4];
};

// The spans of a head, by a warp, eight lanes a group; tells how many bits lie between its highest and its lowest.
__device__ int span_head(head_span& to, const float* q) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const float4 v = *reinterpret_cast<const float4*>(q + 4 * lane);
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
    to.high[lane / 8] = static_cast<uint8_t>(high + 128);
    to.low[lane / 8] = static_cast<uint8_t>(low + 128);
  }
  return __reduce_max_sync(all_lanes, high) - __reduce_min_sync(all_lanes, low); // nothing but zeros: below 0
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
// The bits that a key's scales span, more than any float where they are out of bounds.
__device__ int span_of(uint32_t scales) {
  int high = 0, low = 255;
#pragma unroll
  for (int g = 0; g < 4; ++g) high = max(high, scale_of(scales, g)), low = min(low, scale_of(scales, g));
  return in_bounds(scales) ? high - low : 1024;
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
__device__ void fill_query(uint4* query, const float* q, int heads) {
  for (int f = static_cast<int>(threadIdx.x); f < heads * (n_steps / 2 * warp_lanes / tile_heads); f += threads) {
    const int lane = f % warp_lanes, steps = f / warp_lanes % (n_steps / 2), tile = f / warp_lanes / (n_steps / 2);
    const auto* x =
        reinterpret_cast<const float4*>(q + (tile * tile_heads + lane / 4) * dim + lane % 4 * 32 + steps * 8);
    const float4 v = x[0], w = x[1];
    const auto pair = [](float a, float b) { return bits_of(__floats2bfloat162_rn(a * 0x1p63F, b * 0x1p63F)); };
    query[f] = make_uint4(pair(v.x, w.x), pair(v.y, w.y), pair(v.z, w.z), pair(v.w, w.w));
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
__device__ void decode_tile(const tile_records& from, uint32_t (&keys)[2][n_steps][4]) {
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

// Starts copies of 32 records, lane l of words l, l + 32, ..; tells the entry of the lane's own item, -1: none. Their
// addresses are those of 68 bytes each, so they come as words.
__device__ int read_tile(const index_view& a, int64_t r, int first, int n, int64_t visible, tile_records& to) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const int64_t entry = first + lane < n ? entry_of(a, r, first + lane, visible) : -1;
  const auto key = entry < 0 ? uint64_t{0} : reinterpret_cast<uint64_t>(key_of(a, r, entry));
  const uint64_t start = __shfl_sync(all_lanes, key, 0);
  const bool is_run = __all_sync(all_lanes, start != 0 && key == start + static_cast<uint64_t>(lane * key_words * 4));
#pragma unroll
  for (int c = 0; c < key_words; ++c) {
    const int at = c * warp_lanes + lane, row = at / key_words, word = at % key_words;
    const uint64_t own = is_run ? start + static_cast<uint64_t>(row * key_words * 4) : __shfl_sync(all_lanes, key, row);
    const uint64_t from = own == 0 ? reinterpret_cast<uint64_t>(a.keys) : own + static_cast<uint64_t>(word * 4);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(
                     shared_address(word < code_words ? to.codes + row * code_words + word : to.scales + row)),
                 "l"(from), "r"(own == 0 ? 0 : 4)
                 : "memory");
  }
  return static_cast<int>(entry);
}
__device__ __forceinline__ void await_tile() {
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncwarp();
}

// The dot products of a tile's keys with eight heads, or sixteen; the lane's own key with each of them.
template <int Tiles>
__device__ __forceinline__ void multiply_tile(float* by_way_of, const uint32_t (&keys)[2][n_steps][4],
                                              const uint4* query, float (&dot)[Tiles * tile_heads]) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, g = lane / 4, t = lane % 4;
  float acc[Tiles][2][4] = {};
#pragma unroll
  for (int s = 0; s < n_steps; s += 2)
#pragma unroll
    for (int j = 0; j < Tiles; ++j) {
      const uint4 b = query[(j * n_steps + s) / 2 * warp_lanes + lane];
      const uint32_t first[2] = {b.x, b.y}, second[2] = {b.z, b.w};
#pragma unroll
      for (int m = 0; m < 2; ++m) multiply_add(acc[j][m], keys[m][s], first);
#pragma unroll
      for (int m = 0; m < 2; ++m) multiply_add(acc[j][m], keys[m][s + 1], second);
    }
  __syncwarp(); // those before are read
#pragma unroll
  for (int j = 0; j < Tiles; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) // m, rows g and g + 8; heads 2t and 2t + 1
      *reinterpret_cast<float2*>(by_way_of + (i / 2 * 16 + i % 2 * 8 + g) * dot_stride + j * tile_heads +
                                 (2 * t ^ (g & 4))) =
          make_float2(acc[j][i / 2][i % 2 * 2], acc[j][i / 2][i % 2 * 2 + 1]);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < Tiles * tile_heads; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(by_way_of + lane * dot_stride + (i ^ (lane & 4)));
    dot[i] = four.x, dot[i + 1] = four.y, dot[i + 2] = four.z, dot[i + 3] = four.w;
  }
}

// Of one row.
template <int MaxHeads> struct query_memory {
  uint4 pairs[MaxHeads / tile_heads * n_steps / 2 * warp_lanes];
  alignas(16) float weight[MaxHeads];
  head_span spans[MaxHeads];
  int widest, visible, n_items; // 0: none is scored
};

// The score of the lane's own key, heads ascending: where no product rounds, and where some may. The former are
// numbers, of which fmaxf makes what `rectified` would.
template <int Tiles, int MaxHeads>
__device__ __forceinline__ void add_heads(float& sum, float* by_way_of, const uint32_t (&keys)[2][n_steps][4],
                                          const query_memory<MaxHeads>& query, int h) {
  float dot[Tiles * tile_heads];
  multiply_tile<Tiles>(by_way_of, keys, query.pairs + h * (n_steps / 2 * warp_lanes / tile_heads), dot);
#pragma unroll
  for (int i = 0; i < Tiles * tile_heads; i += 4) {
    const float4 w = *reinterpret_cast<const float4*>(query.weight + h + i);
    sum = fmaf(w.x, fmaxf(dot[i], 0.0F), sum), sum = fmaf(w.y, fmaxf(dot[i + 1], 0.0F), sum);
    sum = fmaf(w.z, fmaxf(dot[i + 2], 0.0F), sum), sum = fmaf(w.w, fmaxf(dot[i + 3], 0.0F), sum);
  }
}
template <int MaxHeads>
__device__ __forceinline__ float sum_heads(float* by_way_of, const uint32_t (&keys)[2][n_steps][4],
                                           const query_memory<MaxHeads>& query, int heads) {
  float sum = 0;
  int h = 0;
#pragma unroll 1
  for (; h + 2 * tile_heads <= heads; h += 2 * tile_heads) add_heads<2>(sum, by_way_of, keys, query, h);
  if (h < heads) add_heads<1>(sum, by_way_of, keys, query, h);
  return sum;
}
template <int MaxHeads>
__device__ __noinline__ float sum_heads_in_order(const tile_records& of, float* by_way_of,
                                                 const query_memory<MaxHeads>& query, int heads, const float* q,
                                                 bool has_key) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const uint32_t scales = of.scales[lane];
  float sum = 0;
#pragma unroll 1
  for (int h = 0; h < heads; h += tile_heads) {
    uint32_t keys[2][n_steps][4];
    decode_tile(of, keys);
    float dot[tile_heads];
    multiply_tile<1>(by_way_of, keys, query.pairs + h * (n_steps / 2 * warp_lanes / tile_heads), dot);
#pragma unroll
    for (int i = 0; i < tile_heads; ++i) {
      if (has_key && !is_exact(scales, query.spans[h + i]))
        dot[i] = dot_in_order(q + (h + i) * dim, of.codes + lane * code_words, scales);
      sum = fmaf(query.weight[h + i], rectified(dot[i]), sum);
    }
  }
  return sum;
}

template <int Rows, int MaxHeads> struct scores_memory {
  query_memory<MaxHeads> query[Rows];
  warp_memory memory[n_warps];
};

// Scores of rows [from, to) of the block's own, which see entries of one table: a tile of keys is decoded once for all
// of them.
template <int Rows, int MaxHeads>
__device__ __forceinline__ void score_run(const index_view& a, scores_memory<Rows, MaxHeads>& s, int64_t first_row,
                                          int from, int to) {
  int visible = 0, n = 0;
  for (int i = from; i < to; ++i) visible = max(visible, s.query[i].visible), n = max(n, s.query[i].n_items);
  const int tid = static_cast<int>(threadIdx.x), lane = tid % warp_lanes;
  warp_memory& mine = s.memory[tid / warp_lanes];
  const int64_t r = first_row + from;
  const int step = static_cast<int>(gridDim.x) * n_warps * tile_keys;
  int first = (static_cast<int>(blockIdx.x) * n_warps + tid / warp_lanes) * tile_keys, next = 0, at = 0;
  if (first < n) next = read_tile(a, r, first, n, visible, mine.tile[0]);
  for (; first < n; first += step, at ^= 1) {
    const int entry = next;
    const tile_records& tile = mine.tile[at];
    await_tile();
    if (first + step < n) next = read_tile(a, r, first + step, n, visible, mine.tile[at ^ 1]);
    uint32_t keys[2][n_steps][4];
    decode_tile(tile, keys);
    const int span = span_of(tile.scales[lane]);
#pragma unroll 1
    for (int i = from; i < to; ++i) {
      const query_memory<MaxHeads>& query = s.query[i];
      if (first >= query.n_items) continue;
      const int own = entry < query.visible ? entry : -1;
      const bool is_sure = own < 0 || fits_float(span + query.widest);
      float sum;
      if (__all_sync(all_lanes, is_sure) != 0) {
        sum = sum_heads(mine.dot, keys, query, a.heads);
      } else {
        sum = sum_heads_in_order(tile, mine.dot, query, a.heads, a.q + (first_row + i) * a.heads * dim, own >= 0);
        decode_tile(tile, keys); // rather than keep 64 registers over a call
      }
      if (first + lane < query.n_items) store_score(a, first_row + i, first + lane, own, sum);
    }
    __syncwarp(); // before the next tile
  }
}

// A block owns Rows rows, the last of the step first: they see the most.
template <int Rows, int MaxHeads>
__global__ void __launch_bounds__(threads, 2) record_scores_kernel(index_view a, int64_t n_rows) {
  begin_in_turn();
  extern __shared__ __align__(16) uint8_t memory[];
  auto& s = *reinterpret_cast<scores_memory<Rows, MaxHeads>*>(memory);
  const int64_t group = gridDim.y - 1 - blockIdx.y, first_row = a.first + group * Rows;
  const int n_own = static_cast<int>(min(int64_t{Rows}, n_rows - group * Rows)), tid = static_cast<int>(threadIdx.x);
  const int warp = tid / warp_lanes;
  int64_t most = 0;
  for (int i = 0; i < n_own; ++i) {
    const int64_t visible = visible_of(a, first_row + i), n = all_fit(a, visible) ? 0 : items_of(a, visible);
    if (tid == 0)
      s.query[i].visible = static_cast<int>(visible), s.query[i].n_items = static_cast<int>(n), s.query[i].widest = 0;
    most = max(most, n);
  }
  if (static_cast<int64_t>(blockIdx.x) * n_warps * tile_keys >= most) return;
  __syncthreads();
#pragma unroll 2
  for (int i = 0; i < n_own; ++i) {
    const float* q = a.q + (first_row + i) * a.heads * dim;
    fill_query(s.query[i].pairs, q, a.heads);
    for (int h = tid; h < a.heads; h += threads) s.query[i].weight[h] = a.weight[(first_row + i) * a.heads + h];
    int widest = 0;
    for (int h = warp; h < a.heads; h += n_warps) widest = max(widest, span_head(s.query[i].spans[h], q + h * dim));
    if (tid % warp_lanes == 0) atomicMax(&s.query[i].widest, widest);
  }
  __syncthreads();
  for (int from = 0; from < n_own;) {
    int to = from + 1;
    while (to < n_own && a.table[first_row + to] == a.table[first_row + from]) ++to;
    score_run(a, s, first_row, from, to);
    from = to;
  }
}

template <int Rows, int MaxHeads>
void launch_scores(const index_view& a, int64_t n_rows, int64_t n_items, const cuda_lane& lane) {
  constexpr int64_t block_items = n_warps * tile_keys;
  constexpr int shared_bytes = sizeof(scores_memory<Rows, MaxHeads>);
  const int64_t n_groups = (n_rows + Rows - 1) / Rows;
  const int64_t wanted = (2 * static_cast<int64_t>(lane.n_multiprocessors) + n_groups - 1) / n_groups;
  const dim3 grid(static_cast<unsigned>(std::clamp<int64_t>((n_items + block_items - 1) / block_items, 1, wanted)),
                  static_cast<unsigned>(n_groups));
  const auto kernel = record_scores_kernel<Rows, MaxHeads>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
             "index scores of records");
  launch_early(kernel, grid, threads, shared_bytes, lane.on, "index scores of records", a, n_rows);
}

} // namespace

bool record_scores_serve(const index_view& a) {
  return a.are_records && a.dim == dim && a.heads % tile_heads == 0 && a.heads <= max_heads &&
         reinterpret_cast<uintptr_t>(a.q) % 16 == 0 && reinterpret_cast<uintptr_t>(a.keys) % 4 == 0;
}

void run_record_scores(const index_view& a, int64_t n_rows, int64_t n_items, const cuda_lane& lane) {
  // Few rows are spread over the device; candidates are a row's own. Cards with 99 KB a block have no room for groups.
  const bool fits = lane.block_shared_bytes >= int64_t{sizeof(scores_memory<grouped_rows, grouped_heads>)};
  if (fits && n_rows >= fewest_grouped && a.candidates == nullptr && a.heads <= grouped_heads)
    launch_scores<grouped_rows, grouped_heads>(a, n_rows, n_items, lane);
  else
    launch_scores<1, max_heads>(a, n_rows, n_items, lane);
}

} // namespace troupe
