// From the sums of products to outputs: what the readers of trellis_gemm.cuh do at the end of an item.    Spec:
// exl3.md 6.
#pragma once

#include "gpu/trellis_block.cuh"

namespace troupe {

constexpr int gemm_readers = 256;    // threads of the two warp groups
constexpr int gemm_row_floats = 132; // of a row of sums in shared memory: 4 modulo 32 banks

// Hadamard over 128 outputs of a row in shared memory, without its factor. Its 256 / SumRows threads are SumRows / 8
// lanes apart in a warp.
template <int SumRows> __device__ __forceinline__ void transform_sums(float (&sums)[SumRows][gemm_row_floats]) {
  constexpr int n = SumRows / 2, warp_rows = SumRows / 8; // outputs of a thread, rows of a warp
  const int lane = threadIdx.x % 32, part = lane / warp_rows, warp = threadIdx.x / 32;
  float* from = sums[warp * warp_rows + lane % warp_rows] + part * n;
  float v[n];
#pragma unroll
  for (int i = 0; i < n; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + i);
    v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
  }
#pragma unroll
  for (int step = 1; step < n; step *= 2)
#pragma unroll
    for (int i = 0; i < n; ++i)
      if ((i & step) == 0) {
        const float low = v[i], high = v[i + step];
        v[i] = low + high;
        v[i + step] = low - high;
      }
#pragma unroll
  for (int step = warp_rows; step < 32; step *= 2) {
    const float sign = (lane & step) != 0 ? -1.0F : 1.0F;
#pragma unroll
    for (int i = 0; i < n; ++i) v[i] = fmaf(sign, v[i], __shfl_xor_sync(0xFFFFFFFF, v[i], step));
  }
#pragma unroll
  for (int i = 0; i < n; i += 4) *reinterpret_cast<float4*>(from + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
}

// What the end of an item needs, in shared memory: nothing there waits for device memory. The arrays come as copies.
template <int Rows> struct gemm_note {
  alignas(16) float scale[Rows]; // of the item's rows
  uint16_t svh[128];             // of the chunk
  const float* bias;             // of the matrix, or nullptr
  float* y;                      // first row of the item
  int column, n_rows;
};

// y = Hadamard of the sums, times both scales, plus bias. Warps write whole rows. d: of the thread (wgmma.cuh), Rows
// rows; `sums` in shared memory; meet(): a barrier of the readers.
template <int Rows, int SumRows, class Meet>
__device__ __forceinline__ void store_item(const float (&d)[Rows / 2], float (&sums)[SumRows][gemm_row_floats], int out,
                                           int64_t y_stride, const gemm_note<Rows>& item, const Meet& meet) {
  constexpr int warp_rows = SumRows / 8, parts = (Rows + SumRows - 1) / SumRows;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = item.column + 4 * lane, n_rows = item.n_rows;
  const bool aligned = y_stride % 4 == 0 && reinterpret_cast<uintptr_t>(item.y) % 16 == 0 && column + 4 <= out;
#pragma unroll
  for (int part = 0; part < parts; ++part) {
    if (part * SumRows >= n_rows) break;
    meet(); // the sums before these are read
#pragma unroll
    for (int j = 0; j < SumRows / 8; ++j) {
      const int eight = part * (SumRows / 8) + j;
      if (eight >= Rows / 8) break;
      if (8 * eight >= n_rows) break;
      const float* four = d + eight * 4;
      float* to = sums[8 * j + 2 * (lane % 4)] + 16 * warp + lane / 4;
      to[0] = four[0];
      to[gemm_row_floats] = four[1];
      to[8] = four[2];
      to[gemm_row_floats + 8] = four[3];
    }
    meet();
    const int first = part * SumRows + warp * warp_rows, n = min(warp_rows, n_rows - first);
    if (n <= 0) continue;
    transform_sums<SumRows>(sums);
    __syncwarp(); // a warp stores the rows it transformed
    float svh[4], bias[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      svh[i] = f16_bits(item.svh[4 * lane + i]) * inverse_root_128;
      bias[i] = item.bias != nullptr && column + i < out ? item.bias[column + i] : 0.0F;
    }
    float* y = item.y + first * y_stride + column;
#pragma unroll 4
    for (int i = 0; i < n; ++i, y += y_stride) {
      const float by = item.scale[first + i];
      const float4 sum = *reinterpret_cast<const float4*>(&sums[warp * warp_rows + i][4 * lane]);
      const float v[4] = {fmaf(sum.x * by, svh[0], bias[0]), fmaf(sum.y * by, svh[1], bias[1]),
                          fmaf(sum.z * by, svh[2], bias[2]), fmaf(sum.w * by, svh[3], bias[3])};
      if (aligned)
        *reinterpret_cast<float4*>(y) = make_float4(v[0], v[1], v[2], v[3]);
      else
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (column + j < out) y[j] = v[j];
    }
  }
}

} // namespace troupe
