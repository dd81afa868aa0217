// Two kernels for one order of sums: warps that share an output for few rows, warps that own a tile for many.
#include "gpu/plain_linear.h"

#include "gpu/cuda_check.cuh"
#include "gpu/early_launch.cuh"
#include "gpu/plain_weights.cuh"

#include <algorithm>

namespace troupe {
namespace {

constexpr uint32_t all = 0xFFFFFFFF;
constexpr int few_rows = 8;           // of a block of the kernel for few rows
constexpr int tile = 8;               // rows and outputs of a warp of the other one
constexpr int tile_warps = 16;        // of a block, which fills a multiprocessor with 128 registers a thread
constexpr int64_t fewest_tiles = 256; // below, the kernel for few rows keeps more multiprocessors busy
constexpr int64_t most_sums = 256;    // rows times outputs that have a block each: weights come from L2 for all but one
constexpr int64_t fewest_many = 128;  // rows for which that kernel reads the weights too often, however few outputs:
                                      // 24 outputs of 512 rows took 170 us on an H200, of 8192 by the other 445
constexpr int64_t most_grid_rows = 65535;

struct plain_product {
  plain_view m;
  const float* bias;
  const float* x;
  float* y;
  int64_t rows, x_stride, y_stride;
  int in, out;
  plain_slices slices;
  int outs; // outputs of a block, or warps of a block side by side along the outputs
};

template <bool Fours> __device__ __forceinline__ void load_inputs(float (&v)[4], const float* x, int k, int in) {
  if constexpr (Fours) {
    const float4 four = *reinterpret_cast<const float4*>(x + k);
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = k + i < in ? x[k + i] : 0.0F;
  }
}

// A warp owns one slice of one output of up to Rows rows; the warps of an output meet in shared memory. Bound by the
// bytes of W where W is large, by latency for mHC's 24 outputs: hence as many warps to an output as it has slices.
template <plain_view::format How, int Rows, bool Fours>
__global__ void __launch_bounds__(32 * plain_slices::most) few_rows_kernel(plain_product p) {
  __shared__ float parts[plain_slices::most][Rows];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slice = warp % p.slices.n;
  const int first_out = static_cast<int>(blockIdx.x) * p.outs, n = first_out + warp / p.slices.n;
  const int begin = slice * p.slices.inputs + 4 * lane;
  const int end = n < p.out ? min(p.in, (slice + 1) * p.slices.inputs) : 0;
  const int64_t first_weight = static_cast<int64_t>(n) * p.in + slice * p.slices.inputs;
  if (end > 0)
    fetch_lines(static_cast<const uint8_t*>(p.m.weight) + first_weight * element_bits<How> / 8,
                static_cast<int64_t>(end - slice * p.slices.inputs) * element_bits<How> / 8, lane, 32);
  begin_in_turn();
  for (int64_t first = static_cast<int64_t>(blockIdx.y) * Rows; first < p.rows;
       first += static_cast<int64_t>(gridDim.y) * Rows) {
    const int n_rows = static_cast<int>(min(static_cast<int64_t>(Rows), p.rows - first));
    const float* x = p.x + first * p.x_stride;
    float sum[Rows] = {};
#pragma unroll(Rows == 1 ? 10 : 2)
    for (int k = begin; k < end; k += plain_slices::chunk) {
      float w[4];
      load_weights<How, Fours>(w, p.m, p.in, n, k);
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
        if (r >= n_rows) break;
        float v[4];
        load_inputs<Fours>(v, x + r * p.x_stride, k, p.in);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (Fours || k + i < p.in) sum[r] = fmaf(v[i], w[i], sum[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
#pragma unroll
      for (int half = 16; half > 0; half /= 2) sum[r] += __shfl_xor_sync(all, sum[r], half);
      if (lane == 0) parts[warp][r] = sum[r];
    }
    __syncthreads();
    const int out = threadIdx.x / Rows, r = threadIdx.x % Rows;
    if (out < p.outs && r < n_rows && first_out + out < p.out) {
      float total = parts[out * p.slices.n][r];
      for (int s = 1; s < p.slices.n; ++s) total += parts[out * p.slices.n + s][r];
      p.y[(first + r) * p.y_stride + first_out + out] = total + (p.bias != nullptr ? p.bias[first_out + out] : 0.0F);
    }
    __syncthreads(); // before the sums of the next rows
  }
}

// Sums of 64 values over the lanes of a warp, each by halves as above. Lane l gets those of 2 l and 2 l + 1.
template <int Step = 16> __device__ __forceinline__ void sum_over_lanes(float (&v)[tile * tile], int lane) {
  constexpr int n = 2 * Step; // values that stay
  const bool upper = (lane & Step) != 0;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const float given = upper ? v[i] : v[n + i], kept = upper ? v[n + i] : v[i];
    v[i] = kept + __shfl_xor_sync(all, given, Step);
  }
  if constexpr (Step > 1) sum_over_lanes<Step / 2>(v, lane);
}

// A warp owns eight outputs of eight rows; its lanes stand side by side along the inputs, so that each load serves
// eight products. Bound by f32 products: 256 of them for 16 loads of 16 bytes, which neighbouring warps find in L1.
// Tiles at the end lie over their neighbours: both write the same bits.
template <plain_view::format How>
__global__ void __launch_bounds__(32 * tile_warps, 1) many_rows_kernel(plain_product p) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row_warps = static_cast<int>(blockDim.x) / 32 / p.outs;
  const int n = (static_cast<int>(blockIdx.x) * p.outs + warp % p.outs) * tile;
  if (n >= p.out) return;
  const int first_out = min(n, p.out - tile);
  const int64_t step = static_cast<int64_t>(gridDim.y) * row_warps * tile;
  // Of the warps that share rows one asks for what comes three chunks later: a lane a line of 128 bytes.
  constexpr int ahead = 3 * plain_slices::chunk;
  static_assert(tile * plain_slices::chunk * 4 == 32 * 128);
  const bool fetches = warp % p.outs == 0;
  for (int64_t r = (static_cast<int64_t>(blockIdx.y) * row_warps + warp / p.outs) * tile; r < p.rows; r += step) {
    const int64_t first = min(r, p.rows - tile);
    const float* x = p.x + first * p.x_stride;
    float total[2] = {};
    for (int slice = 0; slice < p.slices.n; ++slice) {
      float sum[tile * tile] = {};
      const int end = min(p.in, (slice + 1) * p.slices.inputs);
#pragma unroll 1
      for (int k = slice * p.slices.inputs + 4 * lane; k < end; k += plain_slices::chunk) {
        if (fetches && k + ahead < p.in) fetch_line(x + lane / 4 * p.x_stride + k - 4 * lane + ahead + lane % 4 * 32);
        float w[tile][4];
#pragma unroll
        for (int j = 0; j < tile; ++j) load_weights<How, true>(w[j], p.m, p.in, first_out + j, k);
#pragma unroll
        for (int i = 0; i < tile; ++i) {
          float v[4];
          load_inputs<true>(v, x + i * p.x_stride, k, p.in);
#pragma unroll
          for (int j = 0; j < tile; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[i * tile + j] = fmaf(v[e], w[j][e], sum[i * tile + j]);
        }
      }
      sum_over_lanes(sum, lane);
      total[0] = slice == 0 ? sum[0] : total[0] + sum[0];
      total[1] = slice == 0 ? sum[1] : total[1] + sum[1];
    }
    const int out = first_out + 2 * lane % tile;
    float* y = p.y + (first + 2 * lane / tile) * p.y_stride + out;
    y[0] = total[0] + (p.bias != nullptr ? p.bias[out] : 0.0F);
    y[1] = total[1] + (p.bias != nullptr ? p.bias[out + 1] : 0.0F);
  }
}

// A grid row for every Rows rows.
template <plain_view::format How, int Rows> void launch_few(plain_product p, bool fours, cuda_stream on) {
  p.outs = std::max(plain_slices::most / p.slices.n, 1);
  const dim3 grid(static_cast<unsigned>((p.out + p.outs - 1) / p.outs),
                  static_cast<unsigned>(std::min<int64_t>((p.rows + Rows - 1) / Rows, most_grid_rows)));
  const unsigned threads = static_cast<unsigned>(32 * p.slices.n * p.outs);
  if (fours)
    launch_early(few_rows_kernel<How, Rows, true>, grid, threads, 0, on, "linear: few rows", p);
  else
    launch_early(few_rows_kernel<How, Rows, false>, grid, threads, 0, on, "linear: few rows", p);
}

// Blocks as small as keeps the turns of the multiprocessors few.
template <plain_view::format How> void launch_many(plain_product p, const cuda_lane& lane) {
  const int out_tiles = (p.out + tile - 1) / tile;
  p.outs = std::min(out_tiles, 4);
  const int64_t row_tiles = (p.rows + tile - 1) / tile, columns = (out_tiles + p.outs - 1) / p.outs;
  const int64_t places = std::max<int64_t>(lane.n_multiprocessors / columns, 1), most = tile_warps / p.outs;
  const int64_t turns = (row_tiles + places * most - 1) / (places * most);
  const int64_t row_warps = (row_tiles + places * turns - 1) / (places * turns);
  const dim3 grid(static_cast<unsigned>(columns),
                  static_cast<unsigned>(std::min<int64_t>((row_tiles + row_warps - 1) / row_warps, most_grid_rows)));
  many_rows_kernel<How><<<grid, static_cast<unsigned>(32 * p.outs * row_warps), 0, lane.on>>>(p);
}

// Whether inputs and weights can be read four at a time. Weights of fp4 come in pairs, scales in groups of 32.
bool reads_fours(const plain_product& p) {
  return p.in % 4 == 0 && p.x_stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.x) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(p.m.weight) % 16 == 0;
}

} // namespace

void plain_linear_cuda(tensor y, tensor x, const matrix_view& m, int64_t rows, int64_t x_stride, int64_t y_stride,
                       const cuda_lane& lane) {
  if (rows == 0) return;
  const plain_product p{m.plain, m.bias, x.f32(), y.f32(), rows, x_stride, y_stride, m.in, m.out, plain_slices(m.in),
                        1};
  const bool fours = reads_fours(p);
  const int64_t tiles = (rows / tile) * (m.out / tile); // whole ones: none where rows or outputs are fewer than a tile
  with_format(m.plain.how, [&]<plain_view::format How>() {
    if (fours && tiles > 0 && (tiles >= fewest_tiles || rows >= fewest_many))
      launch_many<How>(p, lane);
    else if (rows == 1 || rows * p.out <= most_sums)
      launch_few<How, 1>(p, fours, lane.on);
    else
      launch_few<How, few_rows>(p, fours, lane.on);
  });
  cuda_check_launch("linear");
}

} // namespace troupe
