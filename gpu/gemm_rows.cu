// One EXL3 matrix times many rows: transforms the rows, then multiplies.
#include "gpu/gemm_rows.cuh"

#include "gpu/cuda_check.cuh"
#include "gpu/trellis_gemv.h"

#include <algorithm>

namespace troupe {
namespace {

// A block a row.
__global__ void __launch_bounds__(most_row_threads) transform_rows_kernel(gemm_rows to, gemv_args a) {
  const int64_t row = blockIdx.x;
  transform_row(to, row, a.w.in, a.w.suh, row_reader{a.x + row * a.x_stride, a.in});
}

// The tile that keeps all multiprocessors busy for the shortest time.
int32_t best_tile(int64_t n_rows, int64_t chunks, int64_t multiprocessors) {
  if (n_rows <= 64) return n_rows <= 32 ? 32 : 64;
  const auto cost = [&](int64_t tile) {
    const int64_t items = (n_rows + tile - 1) / tile * chunks, turns = (items + multiprocessors - 1) / multiprocessors;
    return turns * (tile + 8); // 8: what an item costs apart from its products
  };
  int32_t best = 256;
  for (const int32_t tile : {192, 160, 128})
    if (cost(tile) < cost(best)) best = tile;
  return best;
}

} // namespace

void trellis_gemm_any(const gemm_args& a, const cuda_lane& lane) {
  switch (a.w.book) {
  case stored_matrix::codebook::mul1: return trellis_gemm_mul1(a, lane);
  case stored_matrix::codebook::mcg: return trellis_gemm_mcg(a, lane);
  case stored_matrix::codebook::inst3: return trellis_gemm_inst3(a, lane);
  }
}

void trellis_gemm_cuda(const gemv_args& all, const cuda_lane& lane) {
  const int64_t row_bytes = int64_t{all.w.in} * 2 + 4;
  const int64_t most = std::min<int64_t>((lane.scratch_bytes - 256) / row_bytes / 256 * 256, 1 << 30);
  const int64_t least = (lane.scratch_bytes - 256) / row_bytes / 8 * 8; // a small scratch
  const int64_t slab = std::min<int64_t>(most > 0 ? most : least, all.n_rows);
  TROUPE_CHECK(slab > 0, "the scratch of a lane holds eight rows of any matrix");
  gemv_args part = all;
  for (int64_t first = 0; first < all.n_rows; first += slab) {
    part.n_rows = static_cast<int32_t>(std::min<int64_t>(slab, all.n_rows - first));
    part.x = all.x + first * all.x_stride;
    gemm_args a;
    a.w = all.w;
    a.bias = all.bias;
    a.x[0].groups = (part.n_rows + 7) / 8;
    a.x[0].at = reinterpret_cast<uint8_t*>(lane.scratch);
    a.x[0].scale = reinterpret_cast<float*>(a.x[0].at + gemm_rows::size_bytes(a.x[0].groups, all.w.in));
    a.y[0] = all.y + first * all.y_stride;
    a.y_stride = all.y_stride;
    a.n_rows = part.n_rows;
    a.out = all.out;
    transform_rows_kernel<<<part.n_rows, row_threads(all.w.in), 0, lane.on>>>(a.x[0], part);
    cuda_check_launch("trellis_gemm: rows");
    a.tile_rows = best_tile(a.n_rows, a.w.out / 128, lane.n_multiprocessors);
    trellis_gemm_any(a, lane);
  }
}

} // namespace troupe
