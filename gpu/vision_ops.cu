// Vision tower operations.
#include "gpu/vision_ops.h"

#include "gpu/cuda_check.cuh"
#include "gpu/cuda_ops.h"
#include "gpu/device_math.cuh"
#include "gpu/row_grid.cuh"

#include <limits>

namespace troupe {
namespace {

// A thread owns one angle of a row and turns that pair of every head; bound by the bytes of x.
__global__ void rope_half_kernel(float* x, const float* angles, int64_t n_rows, int64_t heads, int64_t half) {
  const int64_t i = device::piece_of_row();
  if (i >= half) return;
  for (int64_t r = device::first_of_rows(); r < n_rows; r += device::step_of_rows()) {
    float s, c;
    sincosf(angles[r * half + i], &s, &c);
#pragma unroll 4
    for (int64_t head = 0; head < heads; ++head) {
      float* v = x + (r * heads + head) * 2 * half + i;
      const float x1 = v[0], x2 = v[half];
      v[0] = x1 * c - x2 * s;
      v[half] = x2 * c + x1 * s;
    }
  }
}

constexpr int tile = 64;        // queries of a block, and keys it looks at together
constexpr int tile_stride = 68; // of transposed tiles: a multiple of four that spreads rows over the banks
constexpr int block_threads = 256;
constexpr float infinity = std::numeric_limits<float>::infinity();

struct full_pointers {
  float* o;
  const float *q, *k, *v;
  int64_t n, heads, dim;
  float scale;
};

// Elements d .. d + 3 of a row of this head, zeros past the last row and past the width of the head.
template <bool Fours> __device__ float4 row_four(const full_pointers& a, const float* from, int64_t row, int d) {
  if (row >= a.n || d >= a.dim) return make_float4(0, 0, 0, 0);
  return device::load_four<Fours>(from + (row * a.heads + blockIdx.y) * a.dim, d, a.dim);
}

// Rows first .. first + 63 -> to[d][row]. A warp takes 8 rows by 64 bytes: whole sectors of the input, two-way
// conflicts on the way out.
template <int Dim, bool Fours>
__device__ void load_transposed(float* to, const full_pointers& a, const float* from, int64_t first) {
  for (int i = static_cast<int>(threadIdx.x); i < tile * Dim / 4; i += block_threads) {
    const int row = i / 32 % 8 * 8 + i / 4 % 8, d = (i / 256 * 4 + i % 4) * 4;
    const float4 v = row_four<Fours>(a, from, first + row, d);
    float* at = to + d * tile_stride + row;
    at[0] = v.x;
    at[tile_stride] = v.y;
    at[2 * tile_stride] = v.z;
    at[3 * tile_stride] = v.w;
  }
}

// Rows first .. first + 63 -> to[row][d].
template <int Dim, bool Fours>
__device__ void load_rows(float* to, const full_pointers& a, const float* from, int64_t first) {
  for (int i = static_cast<int>(threadIdx.x); i < tile * Dim / 4; i += block_threads) {
    const int row = i / (Dim / 4), d = i % (Dim / 4) * 4;
    *reinterpret_cast<float4*>(to + row * Dim + d) = row_four<Fours>(a, from, first + row, d);
  }
}

// sum[i][j] += p[i] * v[j]
__device__ void add_product(float (&sum)[4][4], float4 p, float4 v) {
  const float left[4] = {p.x, p.y, p.z, p.w}, right[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
}

__device__ float4 four_at(const float* p) { return *reinterpret_cast<const float4*>(p); }

// Scores of a tile -> weights relative to the row's highest score so far, in place and (key, query) in `weights`.
// The lanes of half a warp hold a row. `fade`: what sums made with the old highest score are to be multiplied by.
__device__ void weigh(float (&score)[4][4], float (&top)[4], float (&sum)[4], float (&fade)[4], float* weights,
                      int64_t n_keys, float scale) {
  const int y = static_cast<int>(threadIdx.x) / 16 * 4, x = static_cast<int>(threadIdx.x) % 16 * 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float highest = -infinity;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      score[i][j] = x + j < n_keys ? score[i][j] * scale : -infinity;
      highest = fmaxf(highest, score[i][j]);
    }
    highest = fmaxf(top[i], device::lanes_max(highest, 16));
    fade[i] = device::exp_f32(top[i] - highest);
    top[i] = highest;
    float added = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) added += score[i][j] = device::exp_f32(score[i][j] - highest);
    sum[i] = fmaf(sum[i], fade[i], added);
  }
#pragma unroll
  for (int j = 0; j < 4; ++j)
    *reinterpret_cast<float4*>(weights + (x + j) * tile_stride + y) =
        make_float4(score[0][j], score[1][j], score[2][j], score[3][j]);
}

// Bound by flops: 4 n^2 dim a head on the f32 units. A block owns 64 queries of one head and takes the keys 64 at a
// time; thread (y, x) of 16 by 16 owns four queries by four keys, then four queries by four of every 64 outputs. What
// keys a row has seen is kept as highest score, sum and output, all scaled anew when a higher score comes.
template <int Dim, bool Fours> __global__ void __launch_bounds__(block_threads) attention_full_kernel(full_pointers a) {
  extern __shared__ float4 shared[];
  float* queries = reinterpret_cast<float*>(shared); // (Dim, stride)
  float* keys = queries + Dim * tile_stride;         // (Dim, stride)
  float* values = keys + Dim * tile_stride;          // (64, Dim)
  float* weights = values + tile * Dim;              // (64 keys, stride)
  const int y = static_cast<int>(threadIdx.x) / 16 * 4, x = static_cast<int>(threadIdx.x) % 16 * 4;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * tile;
  load_transposed<Dim, Fours>(queries, a, a.q, first);
  float out[Dim / tile][4][4] = {}, sum[4] = {}, fade[4], top[4];
  for (float& t : top) t = -infinity;
  for (int64_t key = 0; key < a.n; key += tile) {
    __syncthreads(); // the tiles before are no longer read
    load_transposed<Dim, Fours>(keys, a, a.k, key);
    load_rows<Dim, Fours>(values, a, a.v, key);
    __syncthreads();
    float score[4][4] = {};
#pragma unroll 8
    for (int d = 0; d < Dim; ++d)
      add_product(score, four_at(queries + d * tile_stride + y), four_at(keys + d * tile_stride + x));
    weigh(score, top, sum, fade, weights, a.n - key, a.scale);
    __syncwarp(); // the weights of a query are written and read by one warp
#pragma unroll
    for (auto& part : out)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) part[i][j] *= fade[i];
#pragma unroll 4
    for (int n = 0; n < tile; ++n) {
      const float4 p = four_at(weights + n * tile_stride + y);
#pragma unroll
      for (int c = 0; c < Dim / tile; ++c) add_product(out[c], p, four_at(values + n * Dim + c * tile + x));
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float total = device::lanes_sum(sum[i], 16);
    const int64_t row = first + y + i;
#pragma unroll
    for (int c = 0; c < Dim / tile; ++c)
      if (row < a.n && c * tile + x < a.dim)
        device::store_four<Fours>(
            a.o + (row * a.heads + blockIdx.y) * a.dim, c * tile + x, a.dim,
            make_float4(out[c][i][0] / total, out[c][i][1] / total, out[c][i][2] / total, out[c][i][3] / total));
  }
}

template <int Dim> void launch_full(const full_pointers& a, const cuda_lane& lane) {
  constexpr int n_bytes = (2 * Dim * tile_stride + tile * Dim + tile * tile_stride) * static_cast<int>(sizeof(float));
  const auto kernel =
      in_fours(a.dim, {a.o, a.q, a.k, a.v}) ? attention_full_kernel<Dim, true> : attention_full_kernel<Dim, false>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, n_bytes), "attention_full");
  const dim3 grid(static_cast<unsigned>((a.n + tile - 1) / tile), static_cast<unsigned>(a.heads));
  kernel<<<grid, block_threads, n_bytes, lane.on>>>(a);
  cuda_check_launch("attention_full");
}

// A thread owns four elements; bound by bytes.
template <bool Fours> __global__ void gelu_kernel(float* x, int64_t n) {
  const int64_t i = 4 * device::element_piece();
  if (i >= n) return;
  const auto gelu = [](float v) { return 0.5F * v * (1.0F + erff(v * 0.70710678118654752F)); };
  device::store_four<Fours>(x, i, n, device::each_of(device::load_four<Fours>(x, i, n), gelu));
}

template <bool Fours> __global__ void silu_mul_kernel(float* y, const float* gate_up, int64_t n_rows, int64_t width) {
  const int64_t i = 4 * device::piece_of_row();
  if (i >= width) return;
  for (int64_t r = device::first_of_rows(); r < n_rows; r += device::step_of_rows()) {
    const float* gate = gate_up + r * 2 * width;
    const float4 g = device::load_four<Fours>(gate, i, width), u = device::load_four<Fours>(gate + width, i, width);
    const auto act = [](float p, float q) { return device::silu_f32(p) * q; };
    device::store_four<Fours>(y + r * width, i, width, device::each_of(g, u, act));
  }
}

} // namespace

void rope_half_cuda(tensor x, tensor angles, int64_t heads, const cuda_lane& lane) {
  const int64_t n_rows = x.rows();
  if (n_rows == 0) return;
  const int64_t half = angles.shape[1];
  TROUPE_CHECK(x.row_elements() == heads * 2 * half && angles.rows() >= n_rows, "half an angle per element of a head");
  const row_grid g = cover_rows(n_rows, half);
  rope_half_kernel<<<g.grid, g.block, 0, lane.on>>>(x.f32(), angles.f32(), n_rows, heads, half);
  cuda_check_launch("rope_half");
}

void attention_full_cuda(tensor o, tensor q, tensor k, tensor v, float scale, const cuda_lane& lane) {
  if (q.n_elements() == 0) return;
  const full_pointers a{o.f32(), q.f32(), k.f32(), v.f32(), q.rows(), q.shape[1], q.shape[2], scale};
  TROUPE_CHECK(a.dim <= 256 && a.heads <= 65535, "heads of the tower are at most 256 wide on the device");
  TROUPE_CHECK(o.n_elements() == q.n_elements() && k.n_elements() == q.n_elements() && v.n_elements() == q.n_elements(),
               "all rows see all rows");
  if (a.dim <= 64) return launch_full<64>(a, lane);
  if (a.dim <= 128) return launch_full<128>(a, lane);
  launch_full<256>(a, lane);
}

void gelu_cuda(tensor x, const cuda_lane& lane) {
  const int64_t n = x.n_elements();
  if (n == 0) return;
  const element_grid g = cover_elements((n + 3) / 4);
  const auto kernel = in_fours(n, {x.data}) ? gelu_kernel<true> : gelu_kernel<false>;
  kernel<<<g.grid, g.block, 0, lane.on>>>(x.f32(), n);
  cuda_check_launch("gelu");
}

void silu_mul_cuda(tensor y, tensor gate_up, const cuda_lane& lane) {
  const int64_t n_rows = y.rows(), width = n_rows == 0 ? 0 : y.row_elements();
  if (width == 0) return;
  TROUPE_CHECK(gate_up.n_elements() == 2 * y.n_elements(), "a gate and an up value per element");
  const row_grid g = cover_rows(n_rows, (width + 3) / 4);
  const auto kernel = in_fours(width, {y.data, gate_up.data}) ? silu_mul_kernel<true> : silu_mul_kernel<false>;
  kernel<<<g.grid, g.block, 0, lane.on>>>(y.f32(), gate_up.f32(), n_rows, width);
  cuda_check_launch("silu_mul");
}

} // namespace troupe
