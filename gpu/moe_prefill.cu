// Segments of experts and what surrounds their products. Sorted rows: the pairs of an expert one after another from a
// multiple of eight on, so that its rows are whole groups of gemm_rows. As many sorted rows as fit the scratch are
// multiplied at once, so that an expert is decoded once, or twice where it is cut.
#include "gpu/moe_prefill.h"

#include "gpu/cuda_check.cuh"
#include "gpu/gated_unit.cuh"
#include "gpu/gemm_rows.cuh"
#include "gpu/moe_trellis.cuh"
#include "gpu/row_grid.cuh"
#include "gpu/scratch_cut.h"

#include <algorithm>

namespace troupe {
namespace {

constexpr int plan_threads = 1024; // one an expert at least: experts_cuda checks that
constexpr int place_threads = 256, sum_threads = 256;
constexpr int row_blocks = 4;          // that transform rows, of a multiprocessor: what hides their latencies
constexpr int max_slots = 64;          // experts of a row
constexpr int64_t most_part = 1 << 20; // rows whose pairs are sorted together
// An expert's rows are cut into whole tiles of the largest size; the rest goes to the list of the smallest that takes
// it.
constexpr int segment_lists = 3;
constexpr int32_t large_tile = 256;
__host__ __device__ constexpr int32_t list_tile(int list) { return list == 0 ? large_tile : list == 1 ? 64 : 32; }

// What a sorted row is made with.
struct alignas(16) sorted_pair {
  const uint16_t* suh; // of its down matrix
  float weight;
  int32_t expert; // of the set; -1: a gap
};

// In device memory.
struct sorted_rows {
  int32_t* count = nullptr;                  // (experts) pairs of each
  int32_t* first_row = nullptr;              // (experts)
  int32_t* n_rows = nullptr;                 // sorted rows with the gaps behind experts
  int32_t* n_segments = nullptr;             // (segment_lists)
  row_segment* segments[segment_lists] = {}; // by tile, of the slab
  row_region* regions = nullptr;             // (experts) of the slab
  sorted_pair* pair = nullptr;               // (sorted rows)
  int32_t* place = nullptr;                  // (pairs): its sorted row; undefined for pairs of other ranks
};

struct prefill_args {
  moe_args m;
  sorted_rows s;
  int32_t most_rows = 0;           // sorted rows there can be
  int32_t slab = 0, slab_rows = 0; // first sorted row of the slab, a multiple of eight, and its size
  int32_t hidden_in = 0;           // stored width of the down matrices
  gemm_rows x[2], hidden;          // of the slab; hidden takes the place of x
  float* product[2] = {};          // (slab rows, width)
  float* outputs = nullptr;        // (slab rows, dim), takes the place of x and the products behind `hidden`
};

// Inclusive sums over the threads of a block of plan_threads.
__device__ int sum_to_here(int v, int32_t* shared) {
  const int me = threadIdx.x;
  for (int step = 1; step < plan_threads; step *= 2) {
    shared[me] = v;
    __syncthreads();
    if (me >= step) v += shared[me - step];
    __syncthreads();
  }
  return v;
}

// One block: the sorted rows of each expert, then the segments of those in the slab.
__global__ void __launch_bounds__(plan_threads) plan_segments_kernel(prefill_args a) {
  __shared__ int32_t count[plan_threads], sums[plan_threads];
  const int me = threadIdx.x, n_pairs = a.m.rows * a.m.k;
  count[me] = 0;
  __syncthreads();
  for (int p = me; p < n_pairs; p += plan_threads) {
    const int e = a.m.ids[p] - a.m.first;
    if (e >= 0 && e < a.m.n_experts) atomicAdd(&count[e], 1);
  }
  __syncthreads();
  const int all = count[me], all_rows = (all + 7) / 8 * 8;
  const int end = sum_to_here(all_rows, sums), first = end - all_rows;
  if (me == plan_threads - 1) *a.s.n_rows = end;
  if (me < a.m.n_experts) {
    a.s.count[me] = all;
    a.s.first_row[me] = first;
  }
  const int begin = max(first, a.slab), n = max(min(first + all, a.slab + a.slab_rows) - begin, 0);
  const int whole = n / large_tile, rest = n % large_tile, group = (begin - a.slab) / 8;
  const row_region region{group, (n + 7) / 8};
  int list = 0; // of the rest
  while (list + 1 < segment_lists && rest <= list_tile(list + 1)) ++list;
  if (me < a.m.n_experts) a.s.regions[me] = region;
  for (int l = 0; l < segment_lists; ++l) {
    const int own = (l == 0 ? whole : 0) + (rest > 0 && list == l), to = sum_to_here(own, sums), at = to - own;
    if (me == plan_threads - 1) a.s.n_segments[l] = to;
    for (int i = 0; i < own; ++i) {
      const int done = l == 0 ? i : whole;
      a.s.segments[l][at + i] = {me, group + done * (large_tile / 8), min(n - done * large_tile, large_tile), region};
    }
  }
}

// A block an expert: its pairs in ascending order, four neighbours a thread at a time.
__global__ void __launch_bounds__(place_threads) place_pairs_kernel(prefill_args a) {
  constexpr int warps = place_threads / 32;
  __shared__ int32_t found[2][warps]; // by the warps of a turn
  const int e = blockIdx.x, me = threadIdx.x, lane = me % 32, warp = me / 32, n_pairs = a.m.rows * a.m.k;
  const int n = a.s.count[e], first_row = a.s.first_row[e];
  if (n == 0) return;
  const uint16_t* suh = a.m.table[e * 3 + 2].trellis.suh;
  int before = 0;
  for (int base = 0, turn = 0; base < n_pairs && before < n; base += 4 * place_threads, turn ^= 1) {
    const int first = base + 4 * me;
    uint32_t mine = 0; // a bit each
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (first + i < n_pairs && a.m.ids[first + i] - a.m.first == e) mine |= 1U << i;
    int to_here = __popc(mine);
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xFFFFFFFF, to_here, step);
      if (lane >= step) to_here += other;
    }
    if (lane == 31) found[turn][warp] = to_here;
    __syncthreads();
    int row = first_row + before + to_here - __popc(mine);
#pragma unroll
    for (int w = 0; w < warps; ++w) {
      if (w < warp) row += found[turn][w];
      before += found[turn][w];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if ((mine >> i & 1) != 0) {
        a.s.pair[row] = {suh, a.m.weights[first + i], e};
        a.s.place[first + i] = row++;
      }
  }
  if (me < (n + 7) / 8 * 8 - n) a.s.pair[first_row + n + me] = {nullptr, 0, -1};
}

// The row of the slab that a pair of this rank's experts has; negative: none.
__device__ __forceinline__ int slab_row_of(const prefill_args& a, int64_t pair) {
  const int e = a.m.ids[pair] - a.m.first, at = e >= 0 && e < a.m.n_experts ? a.s.place[pair] - a.slab : -1;
  return at < a.slab_rows ? at : -1;
}

// What a pair that the slab has needs of its expert.
struct pair_row {
  const uint16_t* suh[2];
  row_region region;
  int32_t row; // of the slab
};

// A warp lists the pairs of a row in the slots of a part, ascending; how many there are.
__device__ int list_pairs(const prefill_args& a, int64_t first_pair, pair_row (&list)[max_slots]) {
  const int lane = threadIdx.x % 32, step = static_cast<int>(gridDim.y);
  int n = 0;
  for (int slot = static_cast<int>(blockIdx.y); slot < a.m.k; slot += 32 * step) {
    const int mine = slot + lane * step, row = mine < a.m.k ? slab_row_of(a, first_pair + mine) : -1;
    const uint32_t some = __ballot_sync(0xFFFFFFFF, row >= 0);
    if (row >= 0) {
      const int e = a.m.ids[first_pair + mine] - a.m.first;
      const matrix_view* w = a.m.table + e * 3;
      list[n + __popc(some & ((1U << lane) - 1))] = {{w[0].trellis.suh, w[1].trellis.suh}, a.s.regions[e], row};
    }
    n += __popc(some);
  }
  return n;
}

// Grid (rows of x, parts of their experts): for gate and for up of each expert that the slab has, from one reading
// where a warp holds all it has of the row. Bound by instructions before bytes, though it writes six times what it
// reads (real model, one slab): hence an expert's signs are on their way while the one before is transformed.
template <int Threads, int Blocks>
__global__ void __launch_bounds__(Threads, Blocks) transform_pairs_kernel(const __grid_constant__ prefill_args a) {
  __shared__ uint32_t largest[2][most_row_threads / 32];
  __shared__ pair_row list[max_slots];
  __shared__ int32_t n_shared;
  const int warp = static_cast<int>(threadIdx.x) / 32, in = a.m.table[0].trellis.in;
  if (warp == 0) n_shared = list_pairs(a, blockIdx.x * static_cast<int64_t>(a.m.k), list); // the same of all lanes
  const row_reader x{a.m.x + blockIdx.x * static_cast<int64_t>(a.m.dim), a.m.dim};
  __syncthreads();
  const int n = n_shared;
  if (n == 0) return;
  // A barrier of the other part lies between two uses of `largest[part]`.
  if (Threads == most_row_threads && !fits_registers(in)) {
    for (int i = 0; i < n; ++i)
      for (int part = 0; part < 2; ++part)
        transform_row(row_target(a.x[part], list[i].region, list[i].row, in), in, list[i].suh[part], x, largest[part]);
    return;
  }
  float raw[2][8], v[2][8];
  uint4 signs[2];
  read_raw_unit(raw, warp, in, x);
  read_signs(signs, warp, in, list[0].suh[0]);
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      sign_unit(v, raw, signs);
      if (part == 0 || i + 1 < n) read_signs(signs, warp, in, list[i + part].suh[1 - part]);
      transform_held(row_target(a.x[part], list[i].region, list[i].row, in), v, in, largest[part]);
    }
}

// A block a row of the slab: the activation, ready for the down product. Bound by instructions before bytes.
template <int Threads, int Blocks>
__global__ void __launch_bounds__(Threads, Blocks) transform_hidden_kernel(const __grid_constant__ prefill_args a) {
  __shared__ uint32_t largest[most_row_threads / 32];
  const int64_t row = blockIdx.x;
  const int warp = static_cast<int>(threadIdx.x) / 32, in = a.hidden_in, width = a.m.width;
  if (a.slab + row >= *a.s.n_rows) return;
  const sorted_pair p = a.s.pair[a.slab + row];
  const row_reader gate{a.product[0] + row * width, width}, up{a.product[1] + row * width, width};
  const float limit = a.m.limit; // zeros behind the width stay zeros
  if (Threads == most_row_threads && !fits_registers(in)) {
    if (p.expert < 0) return;
    const auto activation = [&](int k) { return gated_four(gate(k), up(k), p.weight, limit); };
    return transform_row(row_target(a.hidden, a.s.regions[p.expert], row, in), in, p.suh, activation, largest);
  }
  float g[2][8], u[2][8]; // on their way before the pair is known
  read_raw_unit(g, warp, in, gate);
  read_raw_unit(u, warp, in, up);
  if (p.expert < 0) return;
  uint4 signs[2];
  read_signs(signs, warp, in, p.suh);
  gated_unit(g, u, p.weight, limit);
  sign_unit(g, g, signs);
  transform_held(row_target(a.hidden, a.s.regions[p.expert], row, in), g, in, largest);
}

// A block adds what the slab has of a row, ascending by sorted row, that is by expert: so the order does not depend on
// where slabs end. Slots of other ranks are left out.
template <bool Fours> __global__ void __launch_bounds__(sum_threads) sum_sorted_kernel(prefill_args a) {
  __shared__ int32_t place[max_slots], order[max_slots];
  __shared__ int32_t n_shared;
  const int me = threadIdx.x;
  const int64_t row = blockIdx.x, dim = a.m.dim;
  if (me == 0) n_shared = 0;
  if (me < a.m.k) { place[me] = slab_row_of(a, row * a.m.k + me); }
  __syncthreads();
  if (me < a.m.k && place[me] >= 0) {
    int before = 0;
    for (int slot = 0; slot < a.m.k; ++slot) before += place[slot] >= 0 && place[slot] < place[me] ? 1 : 0;
    order[before] = place[me];
    atomicAdd(&n_shared, 1);
  }
  __syncthreads();
  const int n = n_shared;
  if (n == 0 && a.slab > 0) return;
  float* y = a.m.y + row * dim;
  for (int64_t i = 4 * me; i < dim; i += 4 * sum_threads) {
    float4 sum = a.slab > 0 ? device::load_four<Fours>(y, i, dim) : make_float4(0, 0, 0, 0);
    for (int j = 0; j < n; ++j)
      sum = device::each_of(sum, device::load_four<Fours>(a.outputs + order[j] * dim, i, dim),
                            [](float p, float q) { return p + q; });
    device::store_four<Fours>(y, i, dim, sum);
  }
}

// Lays the buffers of a.m.rows rows in slabs of a.slab_rows out and tells how many bytes they take.
int64_t cut_buffers(prefill_args& a, const cuda_lane& lane) {
  scratch_cut cut(lane);
  const int64_t pairs = static_cast<int64_t>(a.m.rows) * a.m.k, rows = a.slab_rows;
  const int64_t dim = padded_chunks(a.m.dim) * 128, width = padded_chunks(a.m.width) * 128;
  a.s.count = cut.take<int32_t>(a.m.n_experts);
  a.s.first_row = cut.take<int32_t>(a.m.n_experts);
  a.s.n_rows = cut.take<int32_t>(1);
  a.s.n_segments = cut.take<int32_t>(segment_lists);
  for (row_segment*& list : a.s.segments) list = cut.take<row_segment>(a.m.n_experts + rows / large_tile);
  a.s.regions = cut.take<row_region>(a.m.n_experts);
  a.s.pair = cut.take<sorted_pair>(a.most_rows);
  a.s.place = cut.take<int32_t>(pairs);
  for (gemm_rows* r : {&a.x[0], &a.x[1], &a.hidden}) {
    r->groups = rows / 8;
    r->scale = cut.take<float>(rows);
  }
  // First x and the products of gate and up, then hidden and the outputs.
  const scratch_cut before = cut;
  for (gemm_rows& r : a.x) r.at = cut.take<uint8_t>(gemm_rows::size_bytes(r.groups, dim));
  for (float*& p : a.product) p = cut.take<float>(rows * a.m.width);
  // Hidden rows are made from the products and must not lie over them.
  scratch_cut after = width > 2 * dim ? cut : before;
  a.hidden.at = after.take<uint8_t>(gemm_rows::size_bytes(a.hidden.groups, width));
  a.outputs = after.take<float>(rows * a.m.dim);
  return std::max(cut.used(), after.used());
}

// Sets slab_rows to the most that fit: 0, not even a group. Slabs are of about the same size.
void fit_slab(prefill_args& a, const cuda_lane& lane) {
  for (int64_t n_slabs = 1; n_slabs <= a.most_rows / 8; n_slabs = n_slabs < 64 ? n_slabs + 1 : n_slabs * 2) {
    const int64_t each = (a.most_rows + n_slabs - 1) / n_slabs, step = each < large_tile ? 8 : large_tile;
    a.slab_rows = static_cast<int32_t>((each + step - 1) / step * step);
    if (cut_buffers(a, lane) <= lane.scratch_bytes) return;
  }
  a.slab_rows = 8;
  if (cut_buffers(a, lane) > lane.scratch_bytes) a.slab_rows = 0;
}

void multiply_lists(gemm_args g, const prefill_args& a, const cuda_lane& lane) {
  g.table = a.m.table;
  for (int i = 0; i < segment_lists; ++i) {
    g.segments = a.s.segments[i];
    g.n_segments = a.s.n_segments + i;
    g.tile_rows = list_tile(i);
    trellis_gemm_any(g, lane);
  }
}

void launch_pairs(const prefill_args& a, const cuda_expert_set& set, const cuda_lane& lane) {
  const int threads = row_threads(set.gate.trellis.in);
  // Few rows: more blocks of each.
  const int parts = std::clamp(row_blocks * lane.n_multiprocessors / a.m.rows, 1, a.m.k);
  const auto kernel = threads <= 320 ? transform_pairs_kernel<320, 3> : transform_pairs_kernel<most_row_threads, 1>;
  kernel<<<dim3(a.m.rows, parts), threads, 0, lane.on>>>(a);
  cuda_check_launch("experts: rows");
}

void launch_hidden(const prefill_args& a, const cuda_expert_set& set, const cuda_lane& lane) {
  const int threads = row_threads(set.down.trellis.in);
  const auto kernel = threads <= 160 ? transform_hidden_kernel<160, 6> : transform_hidden_kernel<most_row_threads, 1>;
  kernel<<<a.slab_rows, threads, 0, lane.on>>>(a);
  cuda_check_launch("experts: activation");
}

void multiply_experts(const prefill_args& a, const cuda_expert_set& set, const cuda_lane& lane) {
  gemm_args up;
  up.w = set.gate.trellis;
  up.parts = 2;
  up.out = a.m.width;
  up.y_stride = a.m.width;
  for (int part = 0; part < 2; ++part) {
    up.x[part] = a.x[part];
    up.y[part] = a.product[part];
  }
  multiply_lists(up, a, lane);
  launch_hidden(a, set, lane);
  gemm_args down;
  down.w = set.down.trellis;
  down.first_part = 2;
  down.out = a.m.dim;
  down.y_stride = a.m.dim;
  down.x[0] = a.hidden;
  down.y[0] = a.outputs;
  multiply_lists(down, a, lane);
}

void run_slab(const prefill_args& a, const cuda_expert_set& set, const cuda_lane& lane) {
  plan_segments_kernel<<<1, plan_threads, 0, lane.on>>>(a);
  cuda_check_launch("experts: segments");
  if (a.slab == 0) {
    place_pairs_kernel<<<set.n_experts, place_threads, 0, lane.on>>>(a);
    cuda_check_launch("experts: places");
  }
  launch_pairs(a, set, lane);
  multiply_experts(a, set, lane);
  const auto kernel = in_fours(a.m.dim, {a.m.y, a.outputs}) ? sum_sorted_kernel<true> : sum_sorted_kernel<false>;
  kernel<<<a.m.rows, sum_threads, 0, lane.on>>>(a);
  cuda_check_launch("experts: sum of slots");
}

} // namespace

void prefill_experts_cuda(tensor y, tensor x, const cuda_expert_set& set, tensor ids, tensor weights, float limit,
                          const cuda_lane& lane) {
  const int64_t n_rows = ids.shape[0];
  prefill_args a;
  a.m.k = static_cast<int32_t>(ids.shape[1]);
  a.m.dim = set.gate.in;
  a.m.width = set.gate.out;
  a.m.first = set.first;
  a.m.n_experts = set.n_experts;
  a.m.limit = limit;
  a.m.table = set.table;
  a.hidden_in = set.down.trellis.in;
  TROUPE_CHECK(a.m.k <= max_slots, "a row chooses at most 64 experts");
  // Lists of pairs for all rows at once, unless they leave the scratch no slab worth its launches.
  const auto take_rows = [&](int64_t rows) {
    const int64_t pairs = rows * a.m.k;
    a.m.rows = static_cast<int32_t>(rows);
    a.most_rows = static_cast<int32_t>((pairs + 7 * std::min<int64_t>(pairs, a.m.n_experts) + 7) / 8 * 8);
    fit_slab(a, lane);
    return a.slab_rows >= std::min(a.most_rows, large_tile);
  };
  int64_t part = std::min<int64_t>(n_rows, most_part);
  while (!take_rows(part) && part > 1) part /= 2;
  TROUPE_CHECK(a.slab_rows > 0, "the scratch of a lane holds eight sorted rows of experts");
  for (int64_t first = 0; first < n_rows; first += part) {
    take_rows(std::min(part, n_rows - first));
    a.m.x = x.f32() + first * a.m.dim;
    a.m.y = y.f32() + first * a.m.dim;
    a.m.ids = ids.i32() + first * a.m.k;
    a.m.weights = weights.f32() + first * a.m.k;
    for (a.slab = 0; a.slab < a.most_rows; a.slab += a.slab_rows) run_slab(a, set, lane);
  }
}

} // namespace troupe
