// y = x W for one matrix of codebook mul1, few rows: pack the rows, multiply.              Spec: exl3.md 13.2 - 13.5.
#include "gpu/byte_product.cuh"
#include "gpu/scratch_cut.h"
#include "gpu/trellis_gemv.h"

namespace troupe {
namespace {

// Codes (groups of 8 rows, packed_bytes) and packed (rows) of one matrix. Grid (rows).
__global__ void __launch_bounds__(pack_threads) pack_rows_kernel(gemv_args a, uint8_t* codes, packed_row* packed) {
  let_next_kernel_start();
  const int64_t row = blockIdx.x, group = row / max_block_rows;
  pack_row(a.x + row * a.x_stride, a.in, a.w.in, a.w.suh, codes + group * packed_bytes(a.w.in), a.n_rows > 4 ? 2 : 1,
           static_cast<int>(row % max_block_rows), packed + row);
}

// The chunks of one matrix, for the eight rows of blockIdx.y.
struct matrix_columns {
  static constexpr int parts = 1;
  static constexpr bool early = true;
  gemv_args a;
  const uint8_t* packed_codes;
  const packed_row* packed;

  __device__ int32_t n_columns() const { return a.w.out / chunk_columns; }
  __device__ int32_t most_columns() const { return n_columns(); }
  __device__ int32_t rows() const { return a.w.in / 16; }
  __device__ const uint32_t* words(int column) const {
    return a.w.words + static_cast<int64_t>(column) * rows() * (32 * a.w.rate);
  }
  __device__ int32_t n_rows(int) const { return min(max_block_rows, a.n_rows - static_cast<int>(blockIdx.y) * 8); }
  __device__ const uint8_t* codes(int) const { return packed_codes + blockIdx.y * packed_bytes(a.w.in); }

  template <class Sums> __device__ void finish(int column, const Sums& sums, int warp, int lane) const {
    for (int r = warp; r < n_rows(column); r += product_warps) {
      const int64_t row = static_cast<int64_t>(blockIdx.y) * max_block_rows + r;
      float v[4];
      sums.row(v, 0, r, packed[row]);
      warp_hadamard(v, lane);
      const int first = column * chunk_columns + 4 * lane;
      float* y = a.y + row * a.y_stride + first;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (first + i < a.out) y[i] = v[i] * f16_bits(a.w.svh[first + i]) + (a.bias != nullptr ? a.bias[first + i] : 0);
    }
  }
};

} // namespace

bool byte_gemv_cuda(gemv_args a, const cuda_lane& lane) {
  if (a.w.book != stored_matrix::codebook::mul1 || a.w.in > most_packed_in) return false;
  const int chunks = a.w.out / chunk_columns;
  const product_shape shape(chunks, a.w.in / 16, a.n_rows, lane.n_multiprocessors);
  const int64_t group_bytes = shape.slot_bytes() + packed_bytes(a.w.in) + 8 * static_cast<int64_t>(sizeof(packed_row));
  const int64_t groups = std::min<int64_t>(
      {(lane.scratch_bytes - 1024) / group_bytes, lane.n_counters / chunks, int64_t{65535}, (a.n_rows + 7) / 8});
  TROUPE_CHECK(groups > 0, "the scratch of a lane holds the sums of eight rows of any matrix");
  scratch_cut cut(lane);
  auto* slots = cut.take<int32_t>(groups * shape.slot_bytes() / 4);
  auto* codes = cut.take<uint8_t>(groups * packed_bytes(a.w.in));
  auto* packed = cut.take<packed_row>(groups * max_block_rows);
  const auto slab = static_cast<int32_t>(groups * 8), n_rows = a.n_rows;
  for (int32_t first = 0; first < n_rows; first += slab) {
    a.n_rows = std::min(slab, n_rows - first);
    if (a.n_rows <= 4 && shape.n_groups == 2) { // what is left of a long input: the shape of few rows
      gemv_args rest = a;
      byte_gemv_cuda(rest, lane);
      break;
    }
    pack_rows_kernel<<<a.n_rows, pack_threads, 0, lane.on>>>(a, codes, packed);
    cuda_check_launch("byte product: pack");
    const matrix_columns columns{a, codes, packed};
    with_rate<stored_matrix::codebook::mul1>(a.w.rate, [&]<int Rate>() {
      launch_byte_product<Rate>(columns, shape, (a.n_rows + 7) / 8, slots, lane.counters, lane.on);
    });
    a.x += slab * a.x_stride;
    a.y += slab * a.y_stride;
  }
  return true;
}

} // namespace troupe
