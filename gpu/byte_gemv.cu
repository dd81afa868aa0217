// y = x W for a few matrices of codebook mul1 at once, few rows: pack the rows, multiply.      Spec: exl3.md 13.2
// - 13.5. Small matrices cost mostly a launch, a start and an end, so those that may run together share them.
#include "gpu/product_launch.cuh"
#include "gpu/scratch_cut.h"
#include "gpu/trellis_gemv.h"

namespace troupe {
namespace {

// Matrices of one stored input width and one rate, and equally many rows for each.
struct gemv_list {
  gemv_args of[most_listed];
  int32_t first_column[most_listed + 1]; // chunks of the matrices before; those of all at the end
  int32_t n, n_rows, in, groups;         // in: stored; groups of eight rows
  uint8_t* codes;                        // (matrices, groups, packed_bytes)
  packed_row* packed;                    // (matrices, groups of 8)
  __device__ const packed_row* row(int matrix, int64_t r) const { return packed + matrix * groups * 8 + r; }
};

// Grid (rows, a cluster each; matrices).
template <int Jobs>
__global__ void __launch_bounds__(pack_threads) pack_rows_kernel(const __grid_constant__ gemv_list a, int n_sharers) {
  const row_sharer me(blockIdx.x, n_sharers);
  const int64_t row = blockIdx.x / static_cast<unsigned>(n_sharers), group = row / max_block_rows, m = blockIdx.y;
  const gemv_args& of = a.of[m];
  packing_row<Jobs> packing(of.w.suh, a.in, me);
  begin_in_turn();
  packing.pack(of.x + row * of.x_stride, of.in, a.codes + (m * a.groups + group) * packed_bytes(a.in),
               a.n_rows > 4 ? 2 : 1, static_cast<int>(row % max_block_rows), a.packed + m * a.groups * 8 + row);
}

// The chunks of all matrices, for the eight rows of blockIdx.y.
struct listed_columns {
  static constexpr int parts = 1;
  gemv_list a;

  __device__ int matrix_of(int column) const {
    int m = 0;
    while (column >= a.first_column[m + 1]) ++m;
    return m;
  }
  __device__ int32_t n_items() const { return a.first_column[a.n]; }
  __device__ int32_t rows() const { return a.in / 16; }
  __device__ const uint32_t* words(int column) const {
    const int m = matrix_of(column);
    const trellis_view& w = a.of[m].w;
    return w.words + static_cast<int64_t>(column - a.first_column[m]) * rows() * (32 * w.rate);
  }
  __device__ int32_t n_rows(int) const { return min(max_block_rows, a.n_rows - static_cast<int>(blockIdx.y) * 8); }
  __device__ const uint8_t* codes(int column) const {
    return a.codes + (static_cast<int64_t>(matrix_of(column)) * a.groups + blockIdx.y) * packed_bytes(a.in);
  }

  __device__ void fetch_early(int column, int lane) const {
    const int m = matrix_of(column);
    fetch_lines(a.of[m].w.svh + (column - a.first_column[m]) * chunk_columns, 2 * chunk_columns, lane, 32);
  }
  struct ready {
    row_scale scale;
    float svh[4], bias[4];
  };
  __device__ ready prepare(int column, int r, int lane) const {
    const int m = matrix_of(column), first = (column - a.first_column[m]) * chunk_columns + 4 * lane;
    const gemv_args& of = a.of[m];
    ready x{a.row(m, static_cast<int64_t>(blockIdx.y) * max_block_rows + r)->load(), {}, {}};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + i >= of.out) continue;
      x.svh[i] = f16_bits(of.w.svh[first + i]);
      if (of.bias != nullptr) x.bias[i] = of.bias[first + i];
    }
    return x;
  }
  template <class Sums> __device__ void finish(int column, const ready& with, const Sums& sums, int r, int lane) const {
    const int m = matrix_of(column), first = (column - a.first_column[m]) * chunk_columns + 4 * lane;
    const gemv_args& of = a.of[m];
    float v[4];
    sums.row(v, 0, r, with.scale);
    warp_hadamard(v, lane);
    float* y = of.y + (static_cast<int64_t>(blockIdx.y) * max_block_rows + r) * of.y_stride + first;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (first + i < of.out) y[i] = v[i] * with.svh[i] + with.bias[i];
  }
};

// As many rows of the list as the scratch holds, from the first; returns how many.
int32_t launch_list(std::span<const gemv_args> list, int32_t n_rows, const cuda_lane& lane) {
  gemv_list a{};
  a.n = static_cast<int32_t>(list.size());
  a.in = list[0].w.in;
  for (int m = 0; m < a.n; ++m) {
    a.of[m] = list[static_cast<size_t>(m)];
    a.first_column[m + 1] = a.first_column[m] + a.of[m].w.out / chunk_columns;
  }
  const int columns = a.first_column[a.n];
  const product_shape shape(columns, a.in / 16, n_rows, lane.n_multiprocessors);
  const int64_t row_group_bytes = a.n * (packed_bytes(a.in) + 8 * static_cast<int64_t>(sizeof(packed_row)));
  const int64_t groups =
      std::min<int64_t>({(lane.scratch_bytes - 1024) / row_group_bytes, lane.n_counters / shape.zeros_a_line(1),
                         int64_t{65535}, (int64_t{n_rows} + 7) / 8});
  TROUPE_CHECK(groups > 0, "a lane holds the codes and sums of eight rows of any matrix");
  a.groups = static_cast<int32_t>(groups);
  a.n_rows = std::min(n_rows, a.groups * 8);
  scratch_cut cut(lane);
  a.codes = cut.take<uint8_t>(a.n * groups * packed_bytes(a.in));
  a.packed = cut.take<packed_row>(a.n * groups * max_block_rows);
  with_sharers(a.in, lane.most_cluster, [&]<int Jobs>(unsigned n_sharers) {
    launch_clusters(pack_rows_kernel<Jobs>, n_sharers, dim3(a.n_rows * n_sharers, a.n), pack_threads, 0, lane.on,
                    "byte product: pack", a, static_cast<int>(n_sharers));
  });
  const listed_columns problem{a};
  with_rate<stored_matrix::codebook::mul1>(list[0].w.rate, [&]<int Rate>() {
    launch_byte_product<Rate>(problem,
                              {shape, (a.n_rows + 7) / 8, lane.multiprocessor_shared_bytes, lane.counters, lane.on});
  });
  return a.n_rows;
}

} // namespace

int32_t byte_form_cluster() {
  cudaFuncAttributes of{};
  cuda_check(cudaFuncGetAttributes(&of, pack_rows_kernel<1>), "byte product: pack");
  return of.ptxVersion >= 90 ? most_sharers : 1;
}

bool byte_form_serves(const trellis_view& w, const cuda_lane& lane) {
  return w.book == stored_matrix::codebook::mul1 && w.in <= most_packed_in && (lane.parked_linears >> w.rate & 1U) == 0;
}

void byte_gemv_cuda(std::span<const gemv_args> list, const cuda_lane& lane) {
  TROUPE_CHECK(!list.empty() && list.size() <= most_listed, "a list of matrices fits into a launch");
  gemv_args rest[most_listed];
  std::copy(list.begin(), list.end(), rest);
  for (int32_t left = list[0].n_rows; left > 0;) {
    const int32_t done = launch_list({rest, list.size()}, left, lane);
    left -= done;
    for (gemv_args& a : rest) {
      a.x += done * a.x_stride;
      a.y += done * a.y_stride;
    }
  }
}

} // namespace troupe
