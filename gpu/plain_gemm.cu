// Blocks of 128 rows, or of 16 rows and one slice each where rows are few.
#include "gpu/plain_gemm.h"

#include "gpu/cuda_check.cuh"
#include "gpu/plain_product.cuh"
#include "gpu/plain_weights.cuh"

#include <algorithm>

namespace troupe {
namespace {

constexpr int depth = 32;                            // inputs in shared memory at once
constexpr int words = depth / 2, stride = words + 4; // of a row in shared memory: 4 modulo 8, see mma.cuh
constexpr int row_quads = depth / 4;
constexpr int threads = 256, warps = threads / 32;

// RowWarps x (8 / RowWarps) warps, each RowTiles * 16 rows by OutTiles * 8 outputs.
template <int RowWarps, int RowTiles, int OutTiles, int Blocks> struct gemm_shape {
  static constexpr int out_warps = warps / RowWarps, row_tiles = RowTiles, out_tiles = OutTiles, blocks = Blocks;
  static constexpr int rows = RowWarps * RowTiles * 16, outs = out_warps * OutTiles * 8;
  static constexpr int x_quads = (rows * row_quads + threads - 1) / threads; // of a thread
  static constexpr int w_quads = outs * row_quads / threads;
};
using many_rows = gemm_shape<4, 2, 4, 2>; // 128 x 64
using few_rows = gemm_shape<1, 1, 1, 4>;  // 16 x 64

template <bool Fours> __device__ __forceinline__ float4 read_inputs(const float* row, int k, int in) {
  if (row == nullptr || k >= in) return make_float4(0, 0, 0, 0);
  if constexpr (Fours) return *reinterpret_cast<const float4*>(row + k);
  return make_float4(row[k], k + 1 < in ? row[k + 1] : 0.0F, k + 2 < in ? row[k + 2] : 0.0F,
                     k + 3 < in ? row[k + 3] : 0.0F);
}

// Inputs k .. k + 3 of output n as two pairs of bf16, zeros outside.
template <plain_view::format How, bool Fours>
__device__ __forceinline__ uint2 read_weights(const plain_product& p, int n, int k) {
  if (n >= p.out || k >= p.in) return make_uint2(0, 0);
  if constexpr (How == plain_view::format::bf16 && Fours)
    return *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(p.m.weight) + static_cast<int64_t>(n) * p.in +
                                           k);
  float w[4];
  load_weights<How, Fours>(w, p.m, p.in, n, k);
  return make_uint2(device::bits_of(__floats2bfloat162_rn(w[0], w[1])),
                    device::bits_of(__floats2bfloat162_rn(w[2], w[3])));
}

// acc += the part of x and W in shared memory, for the tile of a warp; x and w point at its first words of this lane.
template <class S>
__device__ __forceinline__ void multiply(float (&acc)[S::row_tiles][S::out_tiles][4],
                                         const uint32_t (&x)[n_parts][S::rows * stride], int x_at, const uint32_t* w) {
#pragma unroll
  for (int word = 0; word < words; word += 8) {
    uint32_t b[S::out_tiles][2];
#pragma unroll
    for (int n = 0; n < S::out_tiles; ++n) {
      b[n][0] = w[n * 8 * stride + word];
      b[n][1] = w[n * 8 * stride + word + 4];
    }
#pragma unroll
    for (int m = 0; m < S::row_tiles; ++m)
#pragma unroll
      for (int i = 0; i < n_parts; ++i) {
        const uint32_t* at = x[i] + x_at + m * 16 * stride + word;
        const uint32_t a[4] = {at[0], at[8 * stride], at[4], at[8 * stride + 4]};
#pragma unroll
        for (int n = 0; n < S::out_tiles; ++n) device::multiply_add(acc[m][n], a, b[n]);
      }
  }
}

// Grid (tiles of outputs, tiles of rows, parts of the slices). Bound by shared memory and tensor cores: 24 products of
// 2048 steps for 32 words of each lane from shared memory. By arithmetic; not yet measured.
template <plain_view::format How, bool Fours, class S>
__global__ void __launch_bounds__(threads, S::blocks) plain_gemm_kernel(plain_product p) {
  __shared__ __align__(16) uint32_t x[n_parts][S::rows * stride], w[S::outs * stride];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, g = lane / 4, t = lane % 4, warp = tid / 32;
  const int first_out = static_cast<int>(blockIdx.x) * S::outs;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * S::rows;
  const int begin = static_cast<int>(blockIdx.z) * p.block_slices * slice_inputs;
  const int end = static_cast<int>(min(static_cast<int64_t>(p.in), begin + int64_t{p.block_slices} * slice_inputs));

  float4 held_x[S::x_quads];
  uint2 held_w[S::w_quads];
  const auto load = [&](int k) {
#pragma unroll
    for (int u = 0; u < S::x_quads; ++u) {
      const int i = u * threads + tid, row = i / row_quads;
      const bool inside = row < S::rows && first_row + row < p.rows;
      held_x[u] =
          read_inputs<Fours>(inside ? p.x + (first_row + row) * p.x_stride : nullptr, k + i % row_quads * 4, p.in);
    }
#pragma unroll
    for (int u = 0; u < S::w_quads; ++u) {
      const int i = u * threads + tid;
      held_w[u] = read_weights<How, Fours>(p, first_out + i / row_quads, k + i % row_quads * 4);
    }
  };
  const auto store = [&] {
#pragma unroll
    for (int u = 0; u < S::x_quads; ++u) {
      const int i = u * threads + tid, at = i / row_quads * stride + i % row_quads * 2;
      if (i >= S::rows * row_quads) break;
      uint32_t low[n_parts], high[n_parts];
      split_three(held_x[u].x, held_x[u].y, low);
      split_three(held_x[u].z, held_x[u].w, high);
#pragma unroll
      for (int part = 0; part < n_parts; ++part)
        *reinterpret_cast<uint2*>(x[part] + at) = make_uint2(low[part], high[part]);
    }
#pragma unroll
    for (int u = 0; u < S::w_quads; ++u) {
      const int i = u * threads + tid;
      *reinterpret_cast<uint2*>(w + i / row_quads * stride + i % row_quads * 2) = held_w[u];
    }
  };

  const int row = warp / S::out_warps * S::row_tiles * 16, out = warp % S::out_warps * S::out_tiles * 8;
  float acc[S::row_tiles][S::out_tiles][4] = {}, total[S::row_tiles][S::out_tiles][4] = {};
  load(begin);
  for (int slice = begin; slice < end; slice += slice_inputs) {
    const int slice_end = min(slice + slice_inputs, end);
#pragma unroll 1
    for (int k = slice; k < slice_end; k += depth) {
      store();
      __syncthreads();
      if (k + depth < end) load(k + depth);
      multiply<S>(acc, x, (row + g) * stride + t, w + (out + g) * stride + t);
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < S::row_tiles * S::out_tiles * 4; ++i) {
      float& sum = total[i / 4 / S::out_tiles][i / 4 % S::out_tiles][i % 4];
      float& of = acc[i / 4 / S::out_tiles][i / 4 % S::out_tiles][i % 4];
      sum = slice == begin ? of : sum + of;
      of = 0;
    }
  }
  float* y = p.y + blockIdx.z * p.slice_stride;
#pragma unroll
  for (int i = 0; i < S::row_tiles * S::out_tiles * 4; ++i) {
    const int m = i / 4 / S::out_tiles, n = i / 4 % S::out_tiles, half = i % 4 / 2;
    const int64_t r = first_row + row + m * 16 + half * 8 + g;
    const int o = first_out + out + n * 8 + 2 * t + i % 2;
    if (r < p.rows && o < p.out) y[r * p.y_stride + o] = total[m][n][i % 4] + (p.bias != nullptr ? p.bias[o] : 0.0F);
  }
}

// y = the sums of the slices in order, plus bias. part (slices, rows, out).
__global__ void sum_slices_kernel(plain_product p, const float* part, int n_slices) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, n = p.rows * p.out;
  if (i >= n) return;
  float sum = part[i];
  for (int s = 1; s < n_slices; ++s) sum += part[s * n + i];
  const int64_t row = i / p.out, out = i % p.out;
  p.y[row * p.y_stride + out] = sum + (p.bias != nullptr ? p.bias[out] : 0.0F);
}

template <class S> dim3 grid_of(const plain_product& p, int z) {
  return dim3(static_cast<unsigned>((p.out + S::outs - 1) / S::outs),
              static_cast<unsigned>((p.rows + S::rows - 1) / S::rows), static_cast<unsigned>(z));
}

template <plain_view::format How, bool Fours> void launch(plain_product p, const cuda_lane& lane) {
  const int n_slices = (p.in + slice_inputs - 1) / slice_inputs;
  const bool groups = plain_groups_serve(p, lane);
  const dim3 many = grid_of<many_rows>(p, 1);
  const int64_t n_blocks = groups ? plain_groups_blocks(p) : int64_t{many.x} * many.y;
  const int64_t enough = groups ? lane.n_multiprocessors * 3 / 4 : lane.n_multiprocessors;
  const int64_t part_bytes = n_slices * p.rows * p.out * 4;
  if (n_blocks >= enough || part_bytes > lane.scratch_bytes) {
    p.block_slices = n_slices;
    if (groups) return plain_groups_launch(p, 1, lane);
    return plain_gemm_kernel<How, Fours, many_rows><<<many, threads, 0, lane.on>>>(p);
  }
  plain_product part = p;
  part.block_slices = 1;
  part.bias = nullptr;
  part.y = reinterpret_cast<float*>(lane.scratch);
  part.y_stride = p.out;
  part.slice_stride = p.rows * p.out;
  if (groups)
    plain_groups_launch(part, n_slices, lane);
  else
    plain_gemm_kernel<How, Fours, few_rows><<<grid_of<few_rows>(p, n_slices), threads, 0, lane.on>>>(part);
  cuda_check_launch("plain_gemm: slices");
  sum_slices_kernel<<<static_cast<unsigned>((p.rows * p.out + 255) / 256), 256, 0, lane.on>>>(p, part.y, n_slices);
}

} // namespace

void plain_gemm_cuda(tensor y, tensor x, const matrix_view& m, int64_t rows, int64_t x_stride, int64_t y_stride,
                     const cuda_lane& lane) {
  using format = plain_view::format;
  TROUPE_CHECK(plain_gemm_serves(m), "bf16 holds every element of the matrix");
  constexpr int64_t most_rows = 65535 * 16; // of a launch: the grid's second dimension
  for (int64_t first = 0; first < rows; first += most_rows) {
    plain_product p{m.plain,
                    m.bias,
                    x.f32() + first * x_stride,
                    y.f32() + first * y_stride,
                    std::min(most_rows, rows - first),
                    x_stride,
                    y_stride,
                    m.in,
                    m.out,
                    1,
                    0};
    const bool fours = p.in % 4 == 0 && x_stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.x) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(p.m.weight) % 16 == 0;
    const auto run = [&]<format How>() { fours ? launch<How, true>(p, lane) : launch<How, false>(p, lane); };
    switch (m.plain.how) {
    case format::bf16: run.template operator()<format::bf16>(); break;
    case format::fp8: run.template operator()<format::fp8>(); break;
    default: run.template operator()<format::fp4>(); break;
    }
    cuda_check_launch("plain_gemm");
  }
}

} // namespace troupe
