// Segments of experts and what surrounds their products. Sorted rows: the pairs of an expert one after another from a
// multiple of eight on, so that its rows are whole groups of gemm_rows.
#include "gpu/moe_prefill.h"

#include "gpu/cuda_check.cuh"
#include "gpu/gemm_rows.cuh"
#include "gpu/moe_trellis.cuh"
#include "gpu/scratch_cut.h"

#include <algorithm>

namespace troupe {
namespace {

constexpr int plan_threads = 1024; // one an expert at least: experts_cuda checks that
constexpr int place_threads = 256;
// An expert's rows are cut into whole tiles of the largest size; the rest goes to the list of the smallest that takes
// it.
constexpr int segment_lists = 3;
constexpr int32_t large_tile = 256, middle_tile = 64, small_tile = 32;
constexpr int32_t list_tile[segment_lists] = {large_tile, middle_tile, small_tile};

// In device memory.
struct sorted_rows {
  int32_t* count = nullptr;                  // (experts) pairs of each
  int32_t* first_row = nullptr;              // (experts)
  int32_t* n_rows = nullptr;                 // sorted rows with the gaps behind experts
  int32_t* n_segments = nullptr;             // (segment_lists)
  row_segment* segments[segment_lists] = {}; // by tile
  int32_t* pair = nullptr;                   // (sorted rows), -1 in a gap
  int32_t* place = nullptr;                  // (pairs): its sorted row; undefined for pairs of other ranks
  int32_t most_rows = 0;                     // what there is room for
};

struct prefill_args {
  moe_args m;
  sorted_rows s;
  gemm_rows x[2], hidden;   // hidden takes the place of x
  float* product[2] = {};   // (sorted rows, width)
  float* outputs = nullptr; // (sorted rows, dim), takes the place of x and the products behind `hidden`
};

// One block. Sums over experts: sorted rows, then segments of each list.
__global__ void __launch_bounds__(plan_threads) plan_segments_kernel(prefill_args a) {
  __shared__ int32_t count[plan_threads];
  __shared__ int4 sums[plan_threads];
  const int me = threadIdx.x, n_pairs = a.m.rows * a.m.k;
  count[me] = 0;
  __syncthreads();
  for (int p = me; p < n_pairs; p += plan_threads) {
    const int e = a.m.ids[p] - a.m.first;
    if (e >= 0 && e < a.m.n_experts) atomicAdd(&count[e], 1);
  }
  __syncthreads();
  const int n = count[me], whole = n / large_tile, rest = n % large_tile;
  const int list = rest > middle_tile ? 0 : rest > small_tile ? 1 : 2;
  const int4 mine =
      make_int4((n + 7) / 8 * 8, whole + (rest > 0 && list == 0), rest > 0 && list == 1, rest > 0 && list == 2);
  int4 sum = mine; // inclusive
  for (int step = 1; step < plan_threads; step *= 2) {
    sums[me] = sum;
    __syncthreads();
    if (me >= step) {
      const int4 before = sums[me - step];
      sum = make_int4(sum.x + before.x, sum.y + before.y, sum.z + before.z, sum.w + before.w);
    }
    __syncthreads();
  }
  if (me == plan_threads - 1) {
    *a.s.n_rows = sum.x;
    a.s.n_segments[0] = sum.y;
    a.s.n_segments[1] = sum.z;
    a.s.n_segments[2] = sum.w;
  }
  if (me >= a.m.n_experts) return;
  const int first = sum.x - mine.x;
  a.s.count[me] = n;
  a.s.first_row[me] = first;
  for (int i = 0; i < whole; ++i)
    a.s.segments[0][sum.y - mine.y + i] = {me, first / 8 + i * (large_tile / 8), large_tile};
  if (rest == 0) return;
  const int at = (list == 0 ? sum.y : list == 1 ? sum.z : sum.w) - 1;
  a.s.segments[list][at] = {me, first / 8 + whole * (large_tile / 8), rest};
}

// A block an expert: its pairs in ascending order. A thread owns a run of neighbouring pairs.
__global__ void __launch_bounds__(place_threads) place_pairs_kernel(prefill_args a) {
  __shared__ int32_t before[place_threads];
  const int e = blockIdx.x, me = threadIdx.x, n = a.s.count[e], n_pairs = a.m.rows * a.m.k;
  if (n == 0) return;
  const int each = (n_pairs + place_threads - 1) / place_threads, begin = min(me * each, n_pairs),
            end = min(begin + each, n_pairs);
  int mine = 0;
  for (int p = begin; p < end; ++p) mine += a.m.ids[p] - a.m.first == e ? 1 : 0;
  before[me] = mine;
  __syncthreads();
  for (int step = 1; step < place_threads; step *= 2) {
    const int other = me >= step ? before[me - step] : 0;
    __syncthreads();
    before[me] += other;
    __syncthreads();
  }
  int row = a.s.first_row[e] + before[me] - mine;
  for (int p = begin; mine > 0 && p < end; ++p)
    if (a.m.ids[p] - a.m.first == e) {
      a.s.pair[row] = p;
      a.s.place[p] = row++;
    }
  if (me < (n + 7) / 8 * 8 - n) a.s.pair[a.s.first_row[e] + n + me] = -1;
}

// A block a sorted row and part (gate, up).
__global__ void __launch_bounds__(most_row_threads) transform_pairs_kernel(prefill_args a) {
  const int64_t row = blockIdx.x;
  if (row >= *a.s.n_rows) return;
  const int pair = a.s.pair[row], part = blockIdx.y;
  if (pair < 0) return;
  const trellis_view& w = a.m.table[(a.m.ids[pair] - a.m.first) * 3 + part].trellis;
  const row_reader x{a.m.x + static_cast<int64_t>(pair / a.m.k) * a.m.dim, a.m.dim};
  transform_row(a.x[part], row, w.in, w.suh, x);
}

// A block a sorted row: the activation, ready for the down product.
__global__ void __launch_bounds__(most_row_threads) transform_hidden_kernel(prefill_args a) {
  const int64_t row = blockIdx.x;
  if (row >= *a.s.n_rows) return;
  const int pair = a.s.pair[row];
  if (pair < 0) return;
  const trellis_view& w = a.m.table[(a.m.ids[pair] - a.m.first) * 3 + 2].trellis;
  const row_reader gate{a.product[0] + row * a.m.width, a.m.width}, up{a.product[1] + row * a.m.width, a.m.width};
  const float weight = a.m.weights[pair], limit = a.m.limit;
  transform_row(a.hidden, row, w.in, w.suh, [&](int k) {
    const float4 g = gate(k), u = up(k); // zeros behind the width stay zeros
    return make_float4(gated(g.x, u.x, weight, limit), gated(g.y, u.y, weight, limit), gated(g.z, u.z, weight, limit),
                       gated(g.w, u.w, weight, limit));
  });
}

// Slots of other ranks are left out.
__global__ void sum_sorted_kernel(prefill_args a) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (i >= a.m.dim) return;
  float sum = 0;
  for (int slot = 0; slot < a.m.k; ++slot) {
    const int64_t pair = row * a.m.k + slot;
    const int e = a.m.ids[pair] - a.m.first;
    if (e >= 0 && e < a.m.n_experts) sum += a.outputs[a.s.place[pair] * static_cast<int64_t>(a.m.dim) + i];
  }
  a.m.y[row * a.m.dim + i] = sum;
}

// Lays the buffers of a.m.rows rows out and tells how many bytes they take.
int64_t cut_buffers(prefill_args& a, const cuda_lane& lane) {
  scratch_cut cut(lane);
  const int64_t pairs = static_cast<int64_t>(a.m.rows) * a.m.k,
                rows = (pairs + 7 * std::min<int64_t>(pairs, a.m.n_experts) + 7) / 8 * 8;
  const int64_t dim = padded_chunks(a.m.dim) * 128, width = padded_chunks(a.m.width) * 128;
  a.s.most_rows = static_cast<int32_t>(rows);
  a.s.count = cut.take<int32_t>(a.m.n_experts);
  a.s.first_row = cut.take<int32_t>(a.m.n_experts);
  a.s.n_rows = cut.take<int32_t>(1);
  a.s.n_segments = cut.take<int32_t>(segment_lists);
  for (row_segment*& list : a.s.segments)
    list = cut.take<row_segment>(std::min<int64_t>(pairs, a.m.n_experts + pairs / 256));
  a.s.pair = cut.take<int32_t>(rows);
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

void multiply_lists(gemm_args g, const prefill_args& a, const cuda_lane& lane) {
  g.table = a.m.table;
  for (int i = 0; i < segment_lists; ++i) {
    g.segments = a.s.segments[i];
    g.n_segments = a.s.n_segments + i;
    g.tile_rows = list_tile[i];
    trellis_gemm_any(g, lane);
  }
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
  transform_hidden_kernel<<<a.s.most_rows, row_threads(set.down.trellis.in), 0, lane.on>>>(a);
  cuda_check_launch("experts: activation");
  gemm_args down;
  down.w = set.down.trellis;
  down.first_part = 2;
  down.out = a.m.dim;
  down.y_stride = a.m.dim;
  down.x[0] = a.hidden;
  down.y[0] = a.outputs;
  multiply_lists(down, a, lane);
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
  // As few slabs as fit, for each decodes the experts again. 65535: the grid's second dimension.
  int64_t slab = std::min<int64_t>(n_rows, 65535);
  a.m.rows = static_cast<int32_t>(slab);
  for (int64_t n_slabs = 2; cut_buffers(a, lane) > lane.scratch_bytes; ++n_slabs) {
    TROUPE_CHECK(slab > 1, "the scratch of a lane holds the experts of one row");
    slab = std::min<int64_t>((n_rows + n_slabs - 1) / n_slabs, 65535);
    a.m.rows = static_cast<int32_t>(slab);
  }
  for (int64_t first = 0; first < n_rows; first += slab) {
    a.m.rows = static_cast<int32_t>(std::min(slab, n_rows - first));
    a.m.x = x.f32() + first * a.m.dim;
    a.m.y = y.f32() + first * a.m.dim;
    a.m.ids = ids.i32() + first * a.m.k;
    a.m.weights = weights.f32() + first * a.m.k;
    cut_buffers(a, lane);
    plan_segments_kernel<<<1, plan_threads, 0, lane.on>>>(a);
    cuda_check_launch("experts: segments");
    place_pairs_kernel<<<set.n_experts, place_threads, 0, lane.on>>>(a);
    cuda_check_launch("experts: places");
    transform_pairs_kernel<<<dim3(a.s.most_rows, 2), row_threads(set.gate.trellis.in), 0, lane.on>>>(a);
    cuda_check_launch("experts: rows");
    multiply_experts(a, set, lane);
    sum_sorted_kernel<<<dim3((a.m.dim + 255) / 256, a.m.rows), 256, 0, lane.on>>>(a);
    cuda_check_launch("experts: sum of slots");
  }
}

} // namespace troupe
