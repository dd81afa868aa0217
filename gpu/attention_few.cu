// Attention of few rows: a cluster of blocks for sixteen heads of a row. Each block has a part of the keys: their
// scores, weights and weighted sum; then each block adds up a slice of the sums of all.
//
// Real shape, a row: 64 heads x 512 with 640 keys, 2 x 21 M fused steps on 215 KB of records, far below what the device
// does in a microsecond. Bound by latency: so many blocks, every read of a block's keys under way before the first is
// used, and nothing between the parts of a row but a barrier of the cluster.
//
// Keys are in groups of 16, window, block and selection each padded to whole groups, and blocks have equal shares of
// the groups: what a row sums in which order depends on its own keys alone. Products are of bf16 pairs as in
// attention.cu. Keys are the rows and heads the columns of the products, so that eight heads fill a tile.
#include "gpu/attention_few.cuh"
#include "gpu/cluster.cuh"
#include "gpu/device_math.cuh"
#include "gpu/few_keys.cuh"

#include <algorithm>

namespace troupe {
namespace {

using namespace device;
using namespace few;

constexpr int n_heads = 16, n_warps = 16, n_threads = n_warps * warp_lanes; // of a block; a warp weighs a head
constexpr int parts = 8, part_dims = width / parts; // a warp multiplies a part of the dims for half of the heads
constexpr float lowest = -INFINITY;

constexpr int q_words = width + 8; // of a head: 8 modulo 32, so pairs of a fragment meet all banks

// Cluster: blocks of a cluster. Groups: of keys at a time. Two blocks to a multiprocessor.
template <int Cluster, int Groups> struct few_shared {
  static constexpr int cluster = Cluster, groups = Groups, keys = Groups * group_keys, slice = width / Cluster;
  static constexpr int known_parts = warp_lanes / Groups; // that the lanes of a warp know the keys of at once
  alignas(16) uint32_t key[keys][key_words];              // bf16 pairs
  union {
    alignas(16) float q[n_heads][q_words];
    alignas(16) float received[Cluster][slice][n_heads]; // when no block of the cluster needs q any more
  };
  float2 stats[Cluster][n_heads]; // of each block's weights: the top score, the sum
  union {
    float score[parts][n_heads][keys + 4]; // of each part of the dims
    struct {
      float share[Cluster][n_heads], top[n_heads];
    } last;
  };
  uint32_t weight_high[n_heads][keys / 2 + 4], weight_low[n_heads][keys / 2 + 4]; // bf16 pairs
  float factor[n_heads];
  uint32_t valid[keys];
};

// Lane l has the address of row l % 8 of matrix l / 8 of the four.
__device__ __forceinline__ void load_matrices(uint32_t (&a)[4], const uint32_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t (&a)[4], const uint32_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(shared_address(row))
               : "memory");
}

template <class S> struct few_block {
  S& s;
  const attention_view& a;
  const int tid, lane, warp, g, t;
  const int first_dim, first_head; // of the warp, in its block
  float acc[4][4] = {};            // sums of 16 of the warp's dims each, dims rows and heads columns
  float top = lowest, sum = 0;     // of head `warp`

  __device__ few_block(S& shared, const attention_view& view)
      : s(shared), a(view), tid(static_cast<int>(threadIdx.x)), lane(tid % warp_lanes), warp(tid / warp_lanes),
        g(lane / 4), t(lane % 4), first_dim(warp % parts * part_dims), first_head(warp / parts * 8) {}

  // Starts the copies of q, zeros where there are no heads.
  __device__ void fetch_queries(int64_t r, int block_head) {
    constexpr int quads = width / 4;
    for (int i = tid; i < n_heads * quads; i += n_threads) {
      const bool there = block_head + i / quads < a.heads;
      const float* from = a.q + (r * a.heads + (there ? block_head + i / quads : 0)) * width + i % quads * 4;
      asm volatile(
          "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(&s.q[i / quads][i % quads * 4])),
          "l"(from), "r"(there ? 16 : 0)
          : "memory");
    }
  }
  __device__ static void await_queries() { asm volatile("cp.async.wait_all;" ::: "memory"); }

  // A warp brings a key of each of `n` groups; lane `from` + i knows the i-th. Returns whether bf16 does not hold some
  // of them.
  __device__ uint32_t bring(uint64_t known, int from, int n) {
    raw_lane raw[S::groups];
    uint32_t kinds = 0;
#pragma unroll
    for (int u = 0; u < S::groups; ++u) {
      const stored_row row = unpacked(__shfl_sync(all_lanes, known, from + u));
      raw[u] = u < n ? read_record(row, lane) : raw_lane{};
      kinds |= static_cast<uint32_t>(row.kind) << 2 * u;
    }
    const uint32_t lows = bring_all_floats(known, from, n, false);
#pragma unroll
    for (int u = 0; u < S::groups; ++u) {
      const auto kind = static_cast<row_kind>(kinds >> 2 * u & 3U);
      if (u < n && kind != row_kind::floats) bring_record(s.key[warp * n + u], lane, raw[u], kind);
    }
    return lows;
  }
  __device__ uint32_t bring_all_floats(uint64_t known, int from, int n, bool low_part) {
    uint32_t lows = 0;
    for (int u = 0; u < n; ++u) {
      const stored_row row = unpacked(__shfl_sync(all_lanes, known, from + u));
      if (row.kind == row_kind::floats) lows |= bring_floats(s.key[warp * n + u], lane, row, low_part);
    }
    return lows;
  }
  // Low parts take the place of keys, zeros where there are none, or keys that of low parts.
  __device__ void replace_keys(uint64_t known, int from, int n, bool low_part) {
    __syncthreads();
    if (low_part) {
      const uint32_t zeros[8] = {};
      for (int u = 0; u < n; ++u) store_lane(s.key[warp * n + u], lane, zeros);
      bring_all_floats(known, from, n, true);
    } else {
      bring(known, from, n);
    }
    __syncthreads();
  }

  // x += keys q^T over the warp's dims.
  __device__ void multiply_scores(float (&x)[S::groups][4], int n, bool keys_are_low) {
    const uint32_t* from = s.key[lane / 8 % 2 * 8 + lane % 8] + first_dim / 2 + lane / 16 * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* q = &s.q[first_head + g][first_dim + i * 16 + 2 * t];
      const float2 q0 = *reinterpret_cast<const float2*>(q), q1 = *reinterpret_cast<const float2*>(q + 8);
      const split_pair p0 = split(q0.x, q0.y), p1 = split(q1.x, q1.y);
      const uint32_t high[2] = {p0.high, p1.high}, low[2] = {p0.low, p1.low}; // a head is a column
#pragma unroll
      for (int m = 0; m < S::groups; ++m) {
        if (m >= n) continue;
        uint32_t k[4];
        load_matrices(k, from + m * group_keys * key_words + i * 8);
        multiply_add(x[m], k, high);
        if (!keys_are_low) multiply_add(x[m], k, low);
      }
    }
  }
  __device__ void store_scores(const float (&x)[S::groups][4], int n) {
#pragma unroll
    for (int i = 0; i < S::groups * 4; ++i)
      if (i / 4 < n)
        s.score[warp % parts][first_head + 2 * t + i % 2][i / 4 * group_keys + i / 2 % 2 * 8 + g] = x[i / 4][i % 4];
  }

  // Scores of head `warp` become weights e^(score - top). factor: what older sums are worth under the new top.
  __device__ void weigh(int n) {
    constexpr int lane_keys = (S::keys + warp_lanes - 1) / warp_lanes;
    float x[lane_keys], most = top, part = 0;
    bool nan = false;
#pragma unroll
    for (int u = 0; u < lane_keys; ++u) {
      const int key = u * warp_lanes + lane;
      x[u] = lowest;
      if (key >= n * group_keys || s.valid[key] == 0) continue;
      float y = s.score[0][warp][key];
#pragma unroll
      for (int w = 1; w < parts; ++w) y += s.score[w][warp][key];
      x[u] = y * a.scale;
      most = fmaxf(most, x[u]), nan = nan || is_nan(x[u]);
    }
    most = lanes_max(most);
    if (__any_sync(all_lanes, nan) && most == lowest) most = 0; // weights that are no numbers, not none
    const float factor = top == lowest ? 0.0F : device::exp_f32(top - most);
#pragma unroll
    for (int u = 0; u < lane_keys; ++u) {
      const int key = u * warp_lanes + lane;
      const float p = x[u] == lowest ? 0.0F : device::exp_f32(x[u] - most);
      part += p;
      if (key >= n * group_keys) continue;
      const split_pair w = split(p, 0);
      reinterpret_cast<uint16_t*>(s.weight_high[warp])[key] = static_cast<uint16_t>(w.high);
      reinterpret_cast<uint16_t*>(s.weight_low[warp])[key] = static_cast<uint16_t>(w.low);
    }
    top = most, sum = fmaf(sum, factor, lanes_sum(part));
    if (lane == 0) s.factor[warp] = factor;
  }

  // acc += keys^T weights^T over the warp's dims.
  __device__ void multiply_values(int n, bool keys_are_low) {
    const uint32_t* from = s.key[lane / 16 * 8 + lane % 8] + first_dim / 2 + lane / 8 % 2 * 4;
#pragma unroll
    for (int i = 0; i < S::groups; ++i) {
      if (i >= n) continue;
      const uint32_t high[2] = {s.weight_high[first_head + g][i * 8 + t], s.weight_high[first_head + g][i * 8 + t + 4]};
      const uint32_t low[2] = {s.weight_low[first_head + g][i * 8 + t], s.weight_low[first_head + g][i * 8 + t + 4]};
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        uint32_t v[4];
        load_transposed(v, from + i * group_keys * key_words + m * 8);
        multiply_add(acc[m], v, high);
        if (!keys_are_low) multiply_add(acc[m], v, low);
      }
    }
  }
  __device__ void scale_values() {
    const float x = s.factor[first_head + 2 * t], y = s.factor[first_head + 2 * t + 1];
#pragma unroll
    for (int i = 0; i < 16; ++i) acc[i / 4][i % 4] *= i % 2 == 0 ? x : y;
  }

  // `n` groups of keys that lanes `from` on know.
  __device__ void add_groups(uint64_t known, int from, int n, bool is_first, bool is_last) {
    const uint32_t lows = bring(known, from, n);
    if (is_first) await_queries();
    const bool with_low = __syncthreads_or(static_cast<int>(lows != 0)) != 0;
    float x[S::groups][4] = {};
    multiply_scores(x, n, false);
    if (with_low) {
      replace_keys(known, from, n, true);
      multiply_scores(x, n, true);
    }
    store_scores(x, n);
    __syncthreads();
    if (is_last) cluster_arrive();
    weigh(n);
    __syncthreads();
    if (!is_first) scale_values();
    if (with_low) {
      multiply_values(n, true);
      replace_keys(known, from, n, false);
    }
    multiply_values(n, false);
  }

  // Every block gets its slice of dims of all blocks' sums.
  __device__ void send(int rank) {
    if (lane < S::cluster) store_in_block(lane, &s.stats[rank][warp], make_float2(top, sum));
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int dim = first_dim + m * 16;
      float* to = &s.received[rank][dim % S::slice + g][first_head + 2 * t];
      store_in_block(dim / S::slice, reinterpret_cast<float2*>(to), make_float2(acc[m][0], acc[m][1]));
      store_in_block(dim / S::slice, reinterpret_cast<float2*>(to + 8 * n_heads), make_float2(acc[m][2], acc[m][3]));
    }
  }
  // And adds it up, block after block.
  __device__ void finish(int64_t r, int block_head, int rank, float sink) {
    const int h = tid % n_heads, part = tid / n_heads;
    if (part < S::cluster) {
      float most = lowest;
#pragma unroll
      for (int i = 0; i < S::cluster; ++i) most = fmaxf(most, s.stats[i][h].x);
      const float own = s.stats[part][h].x;
      s.last.share[part][h] = own == lowest ? 0.0F : device::exp_f32(own - most);
      if (part == 0) s.last.top[h] = most;
    }
    __syncthreads();
    if (2 * part >= S::slice || block_head + h >= a.heads) return;
    float x = 0, y = 0, all = 0;
#pragma unroll
    for (int i = 0; i < S::cluster; ++i) {
      const float by = s.last.share[i][h];
      all = fmaf(by, s.stats[i][h].y, all);
      x = fmaf(by, s.received[i][2 * part][h], x), y = fmaf(by, s.received[i][2 * part + 1][h], y);
    }
    all = s.last.top[h] == lowest ? 1.0F : all + device::exp_f32(sink - s.last.top[h]);
    float* o = a.o + (r * a.heads + block_head + h) * width + rank * S::slice + 2 * part;
    *reinterpret_cast<float2*>(o) = make_float2(x / all, y / all);
  }
};

template <class S> __global__ void __launch_bounds__(n_threads, 2) few_kernel(attention_view a) {
  begin_in_turn();
  extern __shared__ __align__(16) std::byte memory[];
  few_block<S> b(*reinterpret_cast<S*>(memory), a);
  const auto at = static_cast<int>(blockIdx.x);
  const int rank = at % S::cluster, head_tiles = (a.heads + n_heads - 1) / n_heads;
  const int block_head = at / S::cluster % head_tiles * n_heads;
  const int64_t r = a.first + at / S::cluster / head_tiles;
  b.fetch_queries(r, block_head);
  const int sink_head = block_head + b.tid % n_heads;
  const float sink = sink_head < a.heads ? a.sink[sink_head] : 0.0F;
  uint64_t known = 0; // a key of each group of this part and the next
  for (int part = 0, begin = 0, end = 0;; ++part) {
    const int now = part % S::known_parts, own_part = b.lane / S::groups, own = b.lane % S::groups;
    if (now == 0) {
      const few_row row(a, r, rank, S::cluster);
      begin = row.begin + part * S::groups, end = row.end;
      known = 0;
      const int group = begin + own_part * S::groups, n = min(S::groups, end - group), key = b.warp * n + own;
      if (own_part < S::known_parts && own < n) known = packed(row.key(a, group + key / group_keys, key % group_keys));
    }
    const int left = end - begin - now * S::groups, n = min(S::groups, left);
    if (left <= 0) {
      if (part > 0) break;
      few_block<S>::await_queries();
      cluster_arrive();
      break;
    }
    if (part > 0) __syncthreads(); // the part before has been used
    if (own_part == now && own < n) b.s.valid[b.warp * n + own] = known != 0 ? 1 : 0;
    b.add_groups(known, now * S::groups, n, part == 0, left <= S::groups);
  }
  cluster_wait();
  b.send(rank);
  cluster_arrive();
  cluster_wait();
  b.finish(r, block_head, rank, sink);
}

template <int Cluster, int Groups> void launch_few(const attention_view& a, int64_t n, cuda_stream on) {
  using shared = few_shared<Cluster, Groups>;
  static_assert(2 * (sizeof(shared) + 1024) <= 228 * 1024, "sm_90 has room for two blocks");
  const auto kernel = few_kernel<shared>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(shared)),
             "attention: shared memory");
  if constexpr (Cluster > 8)
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "attention: cluster");
  const auto blocks = static_cast<unsigned>(n * ((a.heads + n_heads - 1) / n_heads) * Cluster);
  launch_clusters(kernel, Cluster, blocks, n_threads, sizeof(shared), on, "attention of few rows", a);
}

// Blocks of a cluster for windows alone and for all keys, and the groups of 16 keys that fit a block's memory twice on
// a multiprocessor.
constexpr int small_cluster = 8, large_cluster = 16, part_groups = 3;
constexpr int64_t max_launch = 1 << 16; // rows, so that blocks are counted in 32 bits

} // namespace

bool attention_few_serves(const attention_view& a, const cuda_lane& lane) {
  return lane.has_few_attention && a.dim == width && a.fours && a.heads <= 1024;
}

void attention_few(attention_view a, int64_t first, int64_t n_rows, const cuda_lane& lane) {
  const int64_t groups = (a.window + group_keys - 1) / group_keys + (a.n_selected + group_keys - 1) / group_keys;
  for (a.first = first; a.first < first + n_rows; a.first += max_launch) {
    const int64_t n = std::min(max_launch, first + n_rows - a.first);
    if (groups <= 2 * small_cluster)
      launch_few<small_cluster, part_groups>(a, n, lane.on);
    else
      launch_few<large_cluster, part_groups>(a, n, lane.on);
  }
}

} // namespace troupe
