// Experts on the device: runs, the products of formats that are not EXL3, and the sum over slots.
#include "gpu/cuda_check.cuh"
#include "gpu/cuda_ops.h"
#include "gpu/early_launch.cuh"
#include "gpu/moe_prefill.h"
#include "gpu/moe_trellis.cuh"
#include "gpu/plain_weights.cuh"
#include "gpu/scratch_cut.h"

#include <algorithm>

namespace troupe {
namespace {

constexpr int plan_threads = 1024;
constexpr int max_set_experts = plan_threads; // one thread an expert
constexpr int plain_warps = 8;

// One block. Pairs of an expert stay in ascending order, so a run is the same in every run of the program.
__global__ void __launch_bounds__(plan_threads) plan_runs_kernel(moe_args a) {
  begin_in_turn();
  __shared__ int32_t count[max_set_experts], first[max_set_experts], first_run[max_set_experts];
  const int n_pairs = a.rows * a.k, me = threadIdx.x, lane = me % 32;
  count[me] = 0;
  __syncthreads();
  for (int p = me; p < n_pairs; p += plan_threads) {
    const int e = a.ids[p] - a.first;
    if (e >= 0 && e < a.n_experts)
      atomicAdd(&count[e], 1);
    else
      a.list.places[p].run = -1;
  }
  __syncthreads();
  // Inclusive sums of pairs and of runs over experts: in a warp, then over the warps' ends.
  int pairs = count[me], runs = (count[me] + a.run_rows - 1) / a.run_rows;
  for (int step = 1; step < 32; step *= 2) {
    const int p = __shfl_up_sync(0xFFFFFFFF, pairs, step), r = __shfl_up_sync(0xFFFFFFFF, runs, step);
    if (lane >= step) pairs += p, runs += r;
  }
  __shared__ int32_t pair_ends[32], run_ends[32];
  if (lane == 31) pair_ends[me / 32] = pairs, run_ends[me / 32] = runs;
  __syncthreads();
  for (int w = 0; w < me / 32; ++w) pairs += pair_ends[w], runs += run_ends[w];
  first[me] = pairs;
  first_run[me] = runs;
  __syncthreads();
  if (me == plan_threads - 1) *a.list.n_runs = first_run[me];
  for (int e = me / 32; e < a.n_experts; e += plan_threads / 32) {
    const int n = count[e], run0 = first_run[e] - (n + a.run_rows - 1) / a.run_rows, pair0 = first[e] - n;
    int found = 0;
    for (int base = 0; base < n_pairs && found < n; base += 32) {
      const int p = base + lane;
      const bool mine = p < n_pairs && a.ids[p] - a.first == e;
      const uint32_t votes = __ballot_sync(0xFFFFFFFF, mine);
      if (mine) {
        const int at = found + __popc(votes & ((1U << lane) - 1));
        expert_run& run = a.list.runs[run0 + at / a.run_rows];
        run.pair[at % a.run_rows] = p;
        a.list.places[p] = {run0 + at / a.run_rows, at % a.run_rows};
        if (at % a.run_rows == 0) {
          run.expert = e;
          run.first = pair0 + at;
          run.n_pairs = min(n - at, a.run_rows);
        }
      }
      found += __popc(votes);
    }
  }
}

// The same runs of up to 64 pairs, by one warp.
constexpr int most_few_pairs = 64;
__global__ void __launch_bounds__(32) few_runs_kernel(moe_args a) {
  begin_in_turn();
  const int n_pairs = a.rows * a.k, lane = threadIdx.x;
  int expert[2], at[2] = {}, n[2] = {}, run[2] = {}, first[2] = {}, order[2]; // of pairs lane and lane + 32
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int p = 32 * h + lane, e = p < n_pairs ? a.ids[p] - a.first : -1;
    expert[h] = e >= 0 && e < a.n_experts ? e : -1;
  }
  for (int i = 0; i < n_pairs; ++i) {
    const int e = __shfl_sync(0xFFFFFFFF, i < 32 ? expert[0] : expert[1], i % 32);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      n[h] += e == expert[h] ? 1 : 0;
      at[h] += e == expert[h] && i < 32 * h + lane ? 1 : 0;
      first[h] += e >= 0 && e < expert[h] ? 1 : 0;
    }
  }
  // Pairs that begin a run, in the order of runs.
#pragma unroll
  for (int h = 0; h < 2; ++h)
    order[h] = expert[h] >= 0 && at[h] % a.run_rows == 0 ? expert[h] * most_few_pairs + at[h] : INT32_MAX;
  for (int i = 0; i < n_pairs; ++i) {
    const int o = __shfl_sync(0xFFFFFFFF, i < 32 ? order[0] : order[1], i % 32);
#pragma unroll
    for (int h = 0; h < 2; ++h) run[h] += o < expert[h] * most_few_pairs + at[h] / a.run_rows * a.run_rows ? 1 : 0;
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int p = 32 * h + lane;
    if (p < n_pairs) a.list.places[p] = expert[h] >= 0 ? run_place{run[h], at[h] % a.run_rows} : run_place{-1, 0};
    if (p >= n_pairs || expert[h] < 0) continue;
    expert_run& of = a.list.runs[run[h]];
    of.pair[at[h] % a.run_rows] = p;
    if (at[h] % a.run_rows != 0) continue;
    of.expert = expert[h];
    of.first = first[h] + at[h];
    of.n_pairs = min(n[h] - at[h], a.run_rows);
  }
  const int n_runs = __popc(__ballot_sync(0xFFFFFFFF, order[0] != INT32_MAX)) +
                     __popc(__ballot_sync(0xFFFFFFFF, order[1] != INT32_MAX));
  if (lane == 0) *a.list.n_runs = n_runs;
}

// A warp owns one element of the hidden row of one pair. Grid (width / 8, pairs).
template <plain_view::format How> __global__ void __launch_bounds__(32 * plain_warps) plain_gate_up_kernel(moe_args a) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * plain_warps + threadIdx.x / 32, pair = blockIdx.y;
  const int e = a.ids[pair] - a.first;
  if (n >= a.width || e < 0 || e >= a.n_experts) return;
  const float* x = a.x + pair / a.k * a.dim;
  const auto element = [&](int, int64_t k) { return x[k]; };
  float g[1], u[1];
  warp_dots<How, 1>(g, a.table[e * 3].plain, a.dim, n, 1, element);
  warp_dots<How, 1>(u, a.table[e * 3 + 1].plain, a.dim, n, 1, element);
  if (threadIdx.x % 32 == 0) a.hidden[pair * a.width + n] = gated(g[0], u[0], a.weights[pair], a.limit);
}

template <plain_view::format How> __global__ void __launch_bounds__(32 * plain_warps) plain_down_kernel(moe_args a) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * plain_warps + threadIdx.x / 32, pair = blockIdx.y;
  const int e = a.ids[pair] - a.first;
  if (n >= a.dim || e < 0 || e >= a.n_experts) return;
  const float* x = a.hidden + pair * a.width;
  float sum[1];
  warp_dots<How, 1>(sum, a.table[e * 3 + 2].plain, a.width, n, 1, [&](int, int64_t k) { return x[k]; });
  if (threadIdx.x % 32 == 0) a.outputs[pair * a.dim + n] = sum[0];
}

// Slots of other ranks are left out; their outputs were never written.
__global__ void sum_slots_kernel(moe_args a) {
  constexpr int batch = 8; // outputs on their way together
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, row = blockIdx.y;
  const auto is_here = [&](int slot) { // ids are older than the kernel before this one
    const int e = slot < a.k ? __ldcg(a.ids + row * a.k + slot) - a.first : -1;
    return e >= 0 && e < a.n_experts;
  };
  bool here[batch];
#pragma unroll
  for (int j = 0; j < batch; ++j) here[j] = is_here(j);
  begin_in_turn();
  if (i >= a.dim) return;
  float sum = 0;
  for (int slot = 0; slot < a.k; slot += batch) {
    float v[batch];
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      if (slot > 0) here[j] = is_here(slot + j);
      if (here[j]) v[j] = a.outputs[(row * a.k + slot + j) * a.dim + i];
    }
#pragma unroll
    for (int j = 0; j < batch; ++j)
      if (here[j]) sum += v[j];
  }
  a.y[row * a.dim + i] = sum;
}

__global__ void gate_kernel(float* g, const float* u, int64_t n, float limit) {
  begin_in_turn();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) g[i] = gated(g[i], u[i], 1, limit);
}

unsigned blocks_of(int64_t n, int64_t a_block) { return static_cast<unsigned>((n + a_block - 1) / a_block); }

bool uses_bytes(const cuda_expert_set& set, const cuda_lane& lane) {
  if ((lane.parked_experts >> set.gate.trellis.rate & 1U) != 0) return false;
  if ((lane.parked_experts >> set.down.trellis.rate & 1U) != 0) return false;
  const auto mul1 = stored_matrix::codebook::mul1;
  return set.gate.trellis.book == mul1 && set.down.trellis.book == mul1 && moe_bytes_fit(set.gate.in, set.gate.out);
}

// Lays the buffers of a.rows rows out and tells how many bytes they take.
int64_t cut_buffers(moe_args& a, const cuda_lane& lane, const cuda_expert_set& set) {
  scratch_cut cut(lane);
  const int64_t pairs = static_cast<int64_t>(a.rows) * a.k;
  a.hidden = cut.take<float>(pairs * a.width);
  a.outputs = cut.take<float>(pairs * a.dim);
  if (!set.is_trellis) return cut.used();
  a.list.n_runs = cut.take<int32_t>(1);
  a.list.runs = cut.take<expert_run>(pairs);
  a.list.places = cut.take<run_place>(pairs);
  if (uses_bytes(set, lane)) {
    a.partial = cut.take<float>(0);
    cut.take<std::byte>(moe_bytes_scratch(a));
  } else {
    const int dim = padded_chunks(a.dim), width = padded_chunks(a.width);
    const int64_t parts = std::max(width * 2 * slices_of(dim * 128), dim * slices_of(width * 128));
    a.partial = cut.take<float>(pairs * parts * chunk_columns);
  }
  a.counters = lane.counters;
  a.n_counters = lane.n_counters;
  return cut.used();
}

void trellis_experts(const moe_args& a, const cuda_expert_set& set, const cuda_lane& lane) {
  const cuda_stream on = lane.on;
  if (a.rows * a.k <= most_few_pairs)
    launch_early(few_runs_kernel, 1, 32, 0, on, "experts: runs", a);
  else
    launch_early(plan_runs_kernel, 1, plan_threads, 0, on, "experts: runs", a);
  using book = stored_matrix::codebook;
  const int32_t up = set.gate.trellis.rate, down = set.down.trellis.rate;
  if (uses_bytes(set, lane)) {
    moe_gate_up_bytes(a, up, on);
    moe_down_bytes(a, down, on);
    return;
  }
  switch (set.gate.trellis.book) {
  case book::mul1: moe_gate_up_mul1(a, up, on); break;
  case book::mcg: moe_gate_up_mcg(a, up, on); break;
  case book::inst3: moe_gate_up_inst3(a, up, on); break;
  }
  switch (set.down.trellis.book) {
  case book::mul1: moe_down_mul1(a, down, on); break;
  case book::mcg: moe_down_mcg(a, down, on); break;
  case book::inst3: moe_down_inst3(a, down, on); break;
  }
}

void plain_experts(const moe_args& a, const cuda_expert_set& set, cuda_stream on) {
  const auto pairs = static_cast<unsigned>(a.rows * a.k);
  with_format(set.gate.plain.how, [&]<plain_view::format How>() {
    plain_gate_up_kernel<How><<<dim3(blocks_of(a.width, plain_warps), pairs), 32 * plain_warps, 0, on>>>(a);
  });
  cuda_check_launch("experts: gate and up");
  with_format(set.down.plain.how, [&]<plain_view::format How>() {
    plain_down_kernel<How><<<dim3(blocks_of(a.dim, plain_warps), pairs), 32 * plain_warps, 0, on>>>(a);
  });
  cuda_check_launch("experts: down");
}

} // namespace

void experts_cuda(tensor y, tensor x, const cuda_expert_set& set, tensor ids, tensor weights, float limit,
                  const cuda_lane& lane) {
  const int64_t n_rows = ids.shape[0];
  if (n_rows == 0) return;
  TROUPE_CHECK(set.n_experts <= max_set_experts, "at most 1024 experts a layer and rank");
  if (lane.rows == row_class::prefill && lane.has_wgmma && set.is_trellis && set.n_experts > 0)
    return prefill_experts_cuda(y, x, set, ids, weights, limit, lane);
  moe_args a;
  a.k = static_cast<int32_t>(ids.shape[1]);
  a.dim = static_cast<int32_t>(y.n_elements() / n_rows);
  a.width = set.gate.out;
  a.first = set.first;
  a.n_experts = set.n_experts;
  a.limit = limit;
  a.table = set.table;
  a.n_multiprocessors = lane.n_multiprocessors;
  a.multiprocessor_shared_bytes = lane.multiprocessor_shared_bytes;
  a.most_cluster = lane.most_cluster;
  // Counters: a run has one for each chunk of either product. 65535: the grid's third dimension.
  const int64_t chunks = std::max(padded_chunks(a.dim), padded_chunks(a.width));
  int64_t slab = std::min<int64_t>({n_rows, lane.n_counters / chunks / a.k, 65535 / a.k});
  for (; slab > 0; slab /= 2) {
    a.rows = static_cast<int32_t>(slab);
    // A run of up to four rows multiplies twice as fast; where experts have few rows, nearly all fit.
    a.run_rows = a.rows * a.k <= 2 * a.n_experts ? 4 : max_run_rows;
    if (cut_buffers(a, lane, set) <= lane.scratch_bytes) break;
  }
  TROUPE_CHECK(slab > 0, "the scratch of a lane holds the experts of one row");
  for (int64_t first = 0; first < n_rows; first += slab) {
    a.rows = static_cast<int32_t>(std::min(slab, n_rows - first)); // run_rows stays
    a.x = x.f32() + first * a.dim;
    a.y = y.f32() + first * a.dim;
    a.ids = ids.i32() + first * a.k;
    a.weights = weights.f32() + first * a.k;
    cut_buffers(a, lane, set);
    if (set.n_experts > 0) set.is_trellis ? trellis_experts(a, set, lane) : plain_experts(a, set, lane.on);
    launch_early(sum_slots_kernel, dim3(blocks_of(a.dim, 256), a.rows), 256, 0, lane.on, "experts: sum of slots", a);
  }
}

void gated_mlp_cuda(tensor y, tensor x, const matrix_view& gate, const matrix_view& up, const matrix_view& down,
                    float limit, const cuda_lane& lane) {
  const int64_t n_rows = x.n_elements() / gate.in;
  if (n_rows == 0) return;
  // The linears below use the rest of the scratch, half of it at least.
  const int64_t row_bytes = 2 * gate.out * 4;
  const int64_t slab = std::min<int64_t>(n_rows, (lane.scratch_bytes / 2 - 1024) / row_bytes);
  TROUPE_CHECK(slab > 0, "the scratch of a lane holds a row of a gated product");
  cuda_lane rest = lane;
  scratch_cut cut(lane);
  const tensor g(cut.take<float>(slab * gate.out), dtype::f32, {slab, gate.out});
  const tensor u(cut.take<float>(slab * gate.out), dtype::f32, {slab, gate.out});
  rest.scratch += cut.used();
  rest.scratch_bytes -= cut.used();
  for (int64_t first = 0; first < n_rows; first += slab) {
    const int64_t n = std::min(slab, n_rows - first);
    const tensor in(x.f32() + first * gate.in, dtype::f32, {n, gate.in});
    const linear_call both[] = {{&gate, in.f32(), g.f32(), gate.in, gate.out}, {&up, in.f32(), u.f32(), up.in, up.out}};
    linears_cuda(both, n, rest);
    launch_early(gate_kernel, blocks_of(n * gate.out, 256), 256, 0, lane.on, "gated_mlp: activation", g.f32(), u.f32(),
                 n * gate.out, limit);
    linear_cuda(tensor(y.f32() + first * down.out, dtype::f32, {n, down.out}), g, down, n, gate.out, down.out, rest);
  }
}

} // namespace troupe
