// EXL3 matrices times many rows: transforms the rows, of all matrices that share them at once, then multiplies.
#include "gpu/gemm_rows.cuh"

#include "gpu/cuda_check.cuh"
#include "gpu/scratch_cut.h"
#include "gpu/trellis_gemv.h"

#include <algorithm>

namespace troupe {
namespace {

// The rows of one x for up to `most_listed` matrices of one stored width.
struct row_list {
  gemm_rows to[most_listed] = {};
  const uint16_t* suh[most_listed] = {};
  const float* x;
  int64_t x_stride;
  int n, in_real, in;
};

// A block a row. Bound by bytes: a row is read once, where a warp holds all it has of it.
template <int Threads, int Blocks>
__global__ void __launch_bounds__(Threads, Blocks) transform_rows_kernel(const __grid_constant__ row_list a) {
  __shared__ uint32_t largest[most_listed][most_row_threads / 32];
  const int64_t row = blockIdx.x;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const row_reader read{a.x + row * a.x_stride, a.in_real};
  if (Threads == most_row_threads && !fits_registers(a.in)) {
    for (int m = 0; m < a.n; ++m) transform_row(row_target(a.to[m], row, a.in), a.in, a.suh[m], read, largest[m]);
    return;
  }
  float raw[2][8], v[2][8];
  uint4 signs[2];
  read_raw_unit(raw, warp, a.in, read);
  read_signs(signs, warp, a.in, a.suh[0]);
  for (int m = 0; m < a.n; ++m) {
    sign_unit(v, raw, signs);
    if (m + 1 < a.n) read_signs(signs, warp, a.in, a.suh[m + 1]);
    transform_held(row_target(a.to[m], row, a.in), v, a.in, largest[m]);
  }
}

// The tile that keeps all multiprocessors busy for the shortest time.
int32_t best_tile(int64_t n_rows, int64_t chunks, int64_t multiprocessors) {
  if (n_rows <= 64) return n_rows <= 32 ? 32 : 64;
  const auto cost = [&](int64_t tile) {
    const int64_t items = (n_rows + tile - 1) / tile * chunks, turns = (items + multiprocessors - 1) / multiprocessors;
    return turns * (tile + 134); // 134: decoding, which products hide in part (trellis_gemm.cuh), and the item's end
  };
  int32_t best = 256;
  for (const int32_t tile : {192, 160, 128})
    if (cost(tile) < cost(best)) best = tile;
  return best;
}

// Whether two products of equally many rows can be parts of a launch.
bool is_same_form(const gemv_args& a, const gemv_args& b) {
  return a.w.in == b.w.in && a.w.out == b.w.out && a.w.rate == b.w.rate && a.w.book == b.w.book && a.out == b.out &&
         a.y_stride == b.y_stride;
}

} // namespace

void trellis_gemm_any(const gemm_args& a, const cuda_lane& lane) {
  switch (a.w.book) {
  case stored_matrix::codebook::mul1: return trellis_gemm_mul1(a, lane);
  case stored_matrix::codebook::mcg: return trellis_gemm_mcg(a, lane);
  case stored_matrix::codebook::inst3: return trellis_gemm_inst3(a, lane);
  }
}

void multiply_rows_cuda(std::span<const gemv_args> list, std::span<const gemm_rows> x, const cuda_lane& lane) {
  for (size_t first = 0, n = 0; first < list.size(); first += n) {
    const gemv_args& like = list[first];
    gemm_args a;
    a.w = like.w;
    a.y_stride = like.y_stride;
    a.n_rows = like.n_rows;
    a.out = like.out;
    for (n = 0; n < gemm_args::most_parts && first + n < list.size(); ++n) {
      const gemv_args& one = list[first + n];
      if (!is_same_form(one, like)) break;
      a.of[n] = {one.w.words, one.w.svh, one.bias};
      a.x[n] = x[first + n];
      a.y[n] = one.y;
    }
    a.parts = static_cast<int32_t>(n);
    a.tile_rows = best_tile(a.n_rows, int64_t{a.w.out / 128} * a.parts, lane.n_multiprocessors);
    trellis_gemm_any(a, lane);
  }
}

void trellis_gemms_cuda(std::span<const gemv_args> list, const cuda_lane& lane) {
  const gemv_args& all = list[0];
  TROUPE_CHECK(list.size() <= most_listed, "a list of matrices fits into a launch");
  if (list.size() > 1 && !fits_registers(all.w.in)) {
    for (const gemv_args& one : list) trellis_gemms_cuda({&one, 1}, lane);
    return;
  }
  const auto n = static_cast<int64_t>(list.size());
  const int64_t row_bytes = int64_t{all.w.in} * 2 + 4, room = (lane.scratch_bytes - 256 * n) / n;
  const int64_t most = std::min<int64_t>(room / row_bytes / 256 * 256, 1 << 30);
  const int64_t least = room / row_bytes / 8 * 8; // a small scratch
  const int64_t slab = std::min<int64_t>(most > 0 ? most : least, all.n_rows);
  TROUPE_CHECK(slab > 0, "the scratch of a lane holds eight rows of any matrix, of each of a list");
  for (int64_t first = 0; first < all.n_rows; first += slab) {
    const auto rows = static_cast<int32_t>(std::min<int64_t>(slab, all.n_rows - first));
    row_list to{.x = all.x + first * all.x_stride,
                .x_stride = all.x_stride,
                .n = static_cast<int>(n),
                .in_real = all.in,
                .in = all.w.in};
    scratch_cut cut(lane);
    for (int m = 0; m < to.n; ++m) {
      to.to[m].groups = (rows + 7) / 8;
      to.to[m].at = cut.take<uint8_t>(gemm_rows::size_bytes(to.to[m].groups, to.in));
      to.to[m].scale = cut.take<float>(to.to[m].groups * 8);
      to.suh[m] = list[static_cast<size_t>(m)].w.suh;
    }
    const int threads = row_threads(to.in);
    const auto kernel = threads <= 320 ? transform_rows_kernel<320, 3> : transform_rows_kernel<most_row_threads, 1>;
    kernel<<<rows, threads, 0, lane.on>>>(to);
    cuda_check_launch("trellis_gemm: rows");
    gemv_args part[most_listed];
    for (size_t m = 0; m < list.size(); ++m) {
      part[m] = list[m];
      part[m].n_rows = rows;
      part[m].y += first * part[m].y_stride;
    }
    multiply_rows_cuda({part, list.size()}, to.to, lane);
  }
}

} // namespace troupe
