// Index scores and exact selection: scores as ordered numbers, then a radix select of each row.
//
// Real shape: up to 1M entries a row, the 512 best. Scores are in index_scores.cu and index_records.cu; equal inputs
// give the twin's bits, so the selection can be the twin's exactly. Selection reads 4 bytes an item four times.
#include "gpu/topk.h"

#include "gpu/cache_rows.h"
#include "gpu/cuda_check.cuh"
#include "gpu/cuda_ops.h"
#include "gpu/early_launch.cuh"
#include "gpu/index_view.cuh"
#include "gpu/select.cuh"

#include <algorithm>

namespace troupe {
namespace {

using namespace device;

constexpr int64_t max_slab = 32768; // rows a launch: they are blocks of the second grid dimension

// best[row][block] = the order of the best entry of a candidate block; the newest visible block counts as infinite.
__global__ void block_best_kernel(index_view a, uint32_t* best, int64_t stride) {
  begin_in_turn();
  const int64_t r = a.first + blockIdx.y, visible = visible_of(a, r);
  const int64_t n = (visible + a.candidate_block - 1) / a.candidate_block;
  const uint32_t* order = a.order + blockIdx.y * a.stride;
  if (all_fit(a, visible)) return;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t b = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; b < n; b += step) {
    uint32_t top = 0;
    for (int64_t e = b * a.candidate_block; e < min((b + 1) * a.candidate_block, visible); ++e)
      top = max(top, order[e]);
    best[blockIdx.y * stride + b] = b == n - 1 ? order_of_infinity : top;
  }
}

// Items of a row for select_best: entries, listed candidates or candidate blocks.
struct entry_items {
  index_view a;
  __device__ int64_t count(int64_t local) const {
    const int64_t visible = visible_of(a, a.first + local);
    return a.candidates != nullptr ? a.n_candidates * a.candidate_block : visible;
  }
  __device__ bool exist_all(int64_t local) const { return all_fit(a, visible_of(a, a.first + local)); }
  __device__ uint32_t order(int64_t local, int64_t i) const { return a.order[local * a.stride + i]; }
  // Of one that exists, so that nobody asks what the row sees: that takes a division, of each item that is taken.
  __device__ int32_t number(int64_t local, int64_t i) const {
    return static_cast<int32_t>(entry_of(a, a.first + local, i, INT64_MAX));
  }
};
struct block_items {
  index_view a;
  const uint32_t* best;
  int64_t stride;
  __device__ int64_t count(int64_t local) const {
    return (visible_of(a, a.first + local) + a.candidate_block - 1) / a.candidate_block;
  }
  __device__ bool exist_all(int64_t local) const { return all_fit(a, visible_of(a, a.first + local)); }
  __device__ uint32_t order(int64_t local, int64_t i) const { return best[local * stride + i]; }
  __device__ int32_t number(int64_t, int64_t i) const { return static_cast<int32_t>(i); }
};

index_view view_of(const index_args& a, const step_rows& rows) {
  index_view x{};
  x.q = a.q.f32(), x.weight = a.weight.f32(), x.keys = a.keys.as<uint8_t>();
  x.key_bytes = stored_row_bytes(a.keys);
  x.are_records = holds_records(a.keys, quantiser::fp4_e8m0_32, a.q.shape[2]);
  x.table = rows.table.i32(), x.tables = rows.tables.i32(), x.position = rows.position.i64();
  x.ratio = a.ratio, x.entries = a.keys.shape[1], x.table_width = rows.tables.shape[1];
  x.candidate_block = a.candidate_block, x.k = a.selected.shape[1];
  x.n_blocks_out = a.candidates_out ? a.candidates_out.shape[1] : -1;
  x.heads = static_cast<int>(a.q.shape[1]), x.dim = static_cast<int>(a.q.shape[2]);
  return x;
}

} // namespace

void select_entries_cuda(const index_args& args, const step_rows& rows, const cuda_lane& lane) {
  const int64_t n_rows = args.q.rows();
  if (n_rows == 0) return;
  TROUPE_CHECK(!args.candidates_in || !args.candidates_out, "a layer makes candidates or uses them");
  TROUPE_CHECK((!args.candidates_in && !args.candidates_out) || args.candidate_block > 0, "a block holds entries");
  index_view a = view_of(args, rows);
  const int64_t n_entries = a.table_width * a.entries;
  const int64_t n_items = args.candidates_in ? args.candidates_in.shape[1] * a.candidate_block : n_entries;
  const int64_t n_blocks = args.candidates_out ? (n_entries + a.candidate_block - 1) / a.candidate_block : 0;
  const int64_t blocks_out = args.candidates_out ? args.candidates_out.shape[1] : 0;
  a.stride = (n_items + 3) / 4 * 4;
  const int64_t row_words =
      a.stride + n_blocks + 2 * std::max(survivors(n_items, a.k), survivors(n_blocks, blocks_out));
  const int64_t slab = std::min({lane.scratch_bytes / std::max<int64_t>(4 * row_words, 1), max_slab, n_rows});
  TROUPE_CHECK(slab > 0, "scratch holds the scores of one row");
  a.order = reinterpret_cast<uint32_t*>(lane.scratch);
  uint32_t* best = a.order + slab * a.stride;
  uint32_t* between = best + slab * n_blocks;
  for (a.first = 0; a.first < n_rows; a.first += slab) {
    const int64_t n = std::min(slab, n_rows - a.first);
    a.candidates = nullptr, a.raw = nullptr, a.n_candidates = 0;
    if (args.scores) a.raw = args.scores.f32(), a.raw_width = args.scores.shape[1];
    if (args.scores || !args.candidates_in) run_index_scores(a, n, std::max(n_entries, a.raw_width), lane);
    if (args.candidates_in) {
      a.raw = nullptr;
      a.candidates = args.candidates_in.i32(), a.n_candidates = args.candidates_in.shape[1];
      run_index_scores(a, n, n_items, lane);
    }
    select_best(entry_items{a}, n, n_items, args.selected.i32() + a.first * a.k, a.k, between, lane.on);
    if (!args.candidates_out) continue;
    const dim3 grid(static_cast<unsigned>(std::clamp<int64_t>((n_blocks + 255) / 256, 1, 1024)),
                    static_cast<unsigned>(n));
    launch_early(block_best_kernel, grid, 256, 0, lane.on, "candidate blocks", a, best, n_blocks);
    select_best(block_items{a, best, n_blocks}, n, n_blocks, args.candidates_out.i32() + a.first * blocks_out,
                blocks_out, between, lane.on);
  }
}

} // namespace troupe
