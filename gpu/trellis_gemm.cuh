// The kernel behind trellis_gemm.h and its dispatch over rates; a .cu file per codebook makes the instances.
//
// A block owns 128 outputs (one Hadamard block) of up to Rows rows at a time. Two warp groups of 64 outputs decode
// their weights into registers as the A operand; a ninth warp copies packed weights and rows into a ring of shared
// memory. Bound by the tensor cores at 256 rows: a step of 16 inputs is 256 of their clocks and about 90 issue slots of
// each of the four schedulers for decoding; at 64 rows decoding is the larger.
#pragma once

#include "gpu/copy_ring.cuh"
#include "gpu/cuda_check.cuh"
#include "gpu/trellis_block.cuh"
#include "gpu/trellis_gemm.h"
#include "gpu/wgmma.cuh"

#include <algorithm>

namespace troupe {

constexpr int gemm_readers = 256;            // threads of the two warp groups
constexpr int gemm_row_floats = 132;         // of a row of sums in shared memory: 4 modulo 32 banks
constexpr int most_shared_bytes = 227 << 10; // of a block on sm_90
constexpr int64_t row_band = 8;              // row tiles that meet a chunk one after another: x stays in L2

template <int Rate, int Rows> struct gemm_shared {
  static constexpr int blocks = Rows > 64 ? 1 : Rows > 32 ? 2 : 3; // on one multiprocessor, by registers
  // The copying warp comes with a whole group where registers are passed from one group to another.
  static constexpr int threads = gemm_readers + (blocks == 1 ? 128 : 32);
  static constexpr int x_bytes = Rows * 128, w_bytes = 512 * Rate; // of a stage: 64 inputs
  static constexpr int sum_rows = Rows < 128 ? Rows : 128;
  static constexpr int sum_bytes = sum_rows * gemm_row_floats * 4;
  static constexpr int room = most_shared_bytes / blocks - (blocks - 1) * 1024;
  static constexpr int fit = (room - sum_bytes - 1024 - 256) / (x_bytes + w_bytes);
  static constexpr int stages = fit < 6 ? fit : 6;
  static constexpr int bytes = 1024 + stages * (x_bytes + w_bytes) + sum_bytes + 256; // 1024: alignment

  uint8_t x[stages][x_bytes]; // at a multiple of 1024
  uint8_t w[stages][w_bytes];
  float sums[sum_rows][gemm_row_floats];
  ring_barriers<stages> ring;
};

// What a block does at once.
struct gemm_item {
  const uint32_t* words; // of the chunk
  const uint8_t* x;      // first group
  int64_t x_step;        // bytes from 64 inputs to the next
  const float* scale;    // of its rows
  const uint16_t* svh;   // of the chunk
  const float* bias;
  float* y; // of its first row
  int column, n_rows;

  __device__ gemm_item(const gemm_args& a, int64_t i) {
    const int chunks = a.w.out / 128;
    trellis_view w = a.w;
    int part = 0, chunk;
    int64_t group;
    if (a.table != nullptr) {
      const row_segment s = a.segments[i / (a.parts * chunks)];
      const int rest = static_cast<int>(i % (a.parts * chunks));
      part = rest / chunks;
      chunk = rest % chunks;
      w = a.table[s.expert * 3 + a.first_part + part].trellis;
      group = s.first_group;
      n_rows = s.n_rows;
    } else {
      const int64_t rows = a.tile_rows, tiles = (a.n_rows + rows - 1) / rows, band = i / (row_band * chunks);
      const int64_t in_band = min(row_band, tiles - band * row_band), at = i - band * row_band * chunks;
      chunk = static_cast<int>(at / in_band);
      const int64_t first = (band * row_band + at % in_band) * rows;
      group = first / 8;
      n_rows = static_cast<int>(min(rows, a.n_rows - first));
    }
    words = w.words + static_cast<int64_t>(chunk) * (w.in / 16) * (32 * w.rate);
    x = a.x[part].at + group * gemm_rows::atom_bytes;
    x_step = a.x[part].groups * gemm_rows::atom_bytes;
    scale = a.x[part].scale + group * 8;
    svh = w.svh + chunk * 128;
    column = chunk * 128;
    bias = a.bias;
    y = a.y[part] + group * 8 * a.y_stride;
  }
  static __device__ int64_t count(const gemm_args& a) {
    const int64_t chunks = a.w.out / 128;
    return a.table != nullptr ? *a.n_segments * chunks * a.parts : (a.n_rows + a.tile_rows - 1) / a.tile_rows * chunks;
  }
};

#if defined(TROUPE_WGMMA)

// Two weights as a pair of f16, the first in the low half.
template <stored_matrix::codebook Book> __device__ __forceinline__ uint32_t decode_pair(uint32_t s0, uint32_t s1) {
  const auto bits = [](__half2 v) { return *reinterpret_cast<const uint32_t*>(&v); };
  const auto pair = [](uint32_t v) { return *reinterpret_cast<const __half2*>(&v); };
  if constexpr (Book == stored_matrix::codebook::mul1) {
    const uint32_t a = __dp4a(s0 * 0x83DCD12DU, 0x01010101U, 0x6400U),
                   b = __dp4a(s1 * 0x83DCD12DU, 0x01010101U, 0x6400U);
    return bits(__hfma2(pair(__byte_perm(a, b, 0x5410)), pair(0x1EEE1EEEU), pair(0xC931C931U)));
  } else {
    const auto masked = [](uint32_t s) {
      const uint32_t x = Book == stored_matrix::codebook::mcg ? s * 0xCBAC1FEDU : s * 89226354U + 64248484U;
      return (x & 0x8FFF8FFFU) ^ 0x3B603B60U;
    };
    const uint32_t a = masked(s0), b = masked(s1);
    return bits(__hadd2(pair(__byte_perm(a, b, 0x5410)), pair(__byte_perm(a, b, 0x7632))));
  }
}

template <int Stages> __device__ void fill_ring(auto& s, const gemm_args& a, int k_steps) {
  ring_place<Stages> at;
  const int64_t n_items = gemm_item::count(a);
  for (int64_t i = blockIdx.x; i < n_items; i += gridDim.x) {
    const gemm_item item(a, i);
    const uint32_t x_bytes = (item.n_rows + 7) / 8 * gemm_rows::atom_bytes, w_bytes = sizeof s.w[0];
    for (int k = 0; k < k_steps; ++k, at.next()) {
      s.ring.open(at, x_bytes + w_bytes);
      s.ring.copy(at, s.w[at.stage], item.words + static_cast<int64_t>(k) * (w_bytes / 4), w_bytes);
      s.ring.copy(at, s.x[at.stage], item.x + k * item.x_step, x_bytes);
    }
  }
}

__device__ __forceinline__ void readers_meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// Adds all 64-input steps of an item of up to N rows to d. Rows of x past the item's are what was in shared memory:
// they reach only their own columns of d, which nobody stores. Two products make a group; while it runs, the next two
// tiles are decoded.
template <int Rate, stored_matrix::codebook Book, int N, class Shared, int Stages>
__device__ __forceinline__ void multiply_item(float* d, Shared& s, ring_place<Stages>& at, int k_steps) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const lane_windows<Rate> windows(lane);
  for (int k = 0; k < k_steps; ++k) {
    s.ring.wait_full(at);
    const auto* tiles = reinterpret_cast<const uint32_t*>(s.w[at.stage]) + warp * (4 * Rate);
    const uint32_t x = wgmma::descriptor(s.x[at.stage]);
    uint32_t words[4][lane_windows<Rate>::n_words];
#pragma unroll
    for (int t = 0; t < 4; ++t) windows.load(tiles + t * (32 * Rate), words[t]);
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      uint32_t a[2][4];
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        uint32_t states[8];
        windows.cut(words[2 * pair + t], states);
        a[t][0] = decode_pair<Book>(states[0], states[1]);
        a[t][1] = decode_pair<Book>(states[4], states[5]);
        a[t][2] = decode_pair<Book>(states[2], states[3]);
        a[t][3] = decode_pair<Book>(states[6], states[7]);
      }
      wgmma::fence();
#pragma unroll
      for (int t = 0; t < 2; ++t) wgmma::multiply(wgmma::rows<N>(), d, a[t], x + 4 * pair + 2 * t);
      wgmma::commit();
      wgmma::wait<1>();
      if (pair == 0 && k > 0 && lane == 0) s.ring.release((at.stage == 0 ? Stages : at.stage) - 1);
    }
    at.next();
  }
  wgmma::wait<0>();
  if (lane == 0) s.ring.release((at.stage == 0 ? Stages : at.stage) - 1);
}

// With as few columns of products as the item has rows for.
template <int Rate, stored_matrix::codebook Book, int Rows, class Shared, int Stages>
__device__ __forceinline__ void multiply_any(float* d, Shared& s, ring_place<Stages>& at, int k_steps, int n_rows) {
  if constexpr (Rows == 256) {
    if (n_rows <= 96) return multiply_item<Rate, Book, 96>(d, s, at, k_steps);
    if (n_rows <= 128) return multiply_item<Rate, Book, 128>(d, s, at, k_steps);
    if (n_rows <= 160) return multiply_item<Rate, Book, 160>(d, s, at, k_steps);
    if (n_rows <= 192) return multiply_item<Rate, Book, 192>(d, s, at, k_steps);
  }
  multiply_item<Rate, Book, Rows>(d, s, at, k_steps);
}

// Hadamard over 128 outputs of a row in shared memory. Its 256 / SumRows threads are SumRows / 8 lanes apart in a warp.
template <int SumRows> __device__ __forceinline__ void transform_sums(float (&sums)[SumRows][gemm_row_floats]) {
  constexpr int n = SumRows / 2, warp_rows = SumRows / 8; // outputs of a thread, rows of a warp
  const int lane = threadIdx.x % 32, part = lane / warp_rows;
  float* from = sums[threadIdx.x / 32 * warp_rows + lane % warp_rows] + part * n;
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

// y = Hadamard of the sums, times both scales, plus bias. Warps write whole rows.
template <int Rows, class Shared>
__device__ __forceinline__ void store_item(const float (&d)[Rows / 2], Shared& s, const gemm_args& a,
                                           const gemm_item& item) {
  constexpr int sum_rows = Shared::sum_rows, warp_rows = sum_rows / 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = item.column + 4 * lane;
  float svh[4], bias[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    svh[i] = f16_bits(item.svh[4 * lane + i]);
    bias[i] = item.bias != nullptr && column + i < a.out ? item.bias[column + i] : 0.0F;
  }
  const bool aligned = a.y_stride % 4 == 0 && reinterpret_cast<uintptr_t>(item.y) % 16 == 0 && column + 4 <= a.out;
  // Lane l holds the scales of the warp's rows l of every part.
  float scales[Rows / sum_rows];
#pragma unroll
  for (int part = 0; part < Rows / sum_rows; ++part) {
    const int row = part * sum_rows + warp * warp_rows + lane;
    scales[part] = lane < warp_rows && row < item.n_rows ? item.scale[row] : 0.0F;
  }
#pragma unroll
  for (int part = 0; part < Rows / sum_rows; ++part) {
    if (part * sum_rows >= item.n_rows) break;
    readers_meet(); // the sums before these are read
#pragma unroll
    for (int j = 0; j < sum_rows / 8; ++j) {
      const float* four = d + (part * (sum_rows / 8) + j) * 4;
      float* to = s.sums[8 * j + 2 * (lane % 4)] + 16 * warp + lane / 4;
      to[0] = four[0];
      to[gemm_row_floats] = four[1];
      to[8] = four[2];
      to[gemm_row_floats + 8] = four[3];
    }
    readers_meet();
    transform_sums<sum_rows>(s.sums);
    __syncwarp(); // a warp stores the rows it transformed
#pragma unroll 4
    for (int i = 0; i < warp_rows; ++i) {
      const int r = warp * warp_rows + i, row = part * sum_rows + r;
      const float by = __shfl_sync(0xFFFFFFFF, scales[part], i);
      if (row >= item.n_rows) break;
      const float4 sum = *reinterpret_cast<const float4*>(&s.sums[r][4 * lane]);
      float v[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = v[j] * inverse_root_128 * by * svh[j] + bias[j];
      float* y = item.y + row * a.y_stride + column;
      if (aligned)
        *reinterpret_cast<float4*>(y) = make_float4(v[0], v[1], v[2], v[3]);
      else
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (column + j < a.out) y[j] = v[j];
    }
  }
}

#endif

template <int Rate, stored_matrix::codebook Book, int Rows>
__global__ void __launch_bounds__(gemm_shared<Rate, Rows>::threads, gemm_shared<Rate, Rows>::blocks)
    trellis_gemm_kernel(const gemm_args a) {
#if defined(TROUPE_WGMMA)
  extern __shared__ __align__(1024) uint8_t memory[];
  using shared = gemm_shared<Rate, Rows>;
  auto& s = *reinterpret_cast<shared*>(memory + (1024 - shared_address(memory) % 1024) % 1024);
  constexpr int stages = shared::stages;
  if (threadIdx.x == 0) s.ring.begin(gemm_readers / 32);
  __syncthreads();
  const int k_steps = a.w.in / 64;
  if (threadIdx.x >= gemm_readers) {
    if constexpr (shared::threads == 384) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == gemm_readers) fill_ring<stages>(s, a, k_steps);
  } else {
    // 2 * 240 + 24 = 3 * 168, what the launch gave each of the three groups.
    if constexpr (shared::threads == 384) asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    ring_place<stages> at;
    const int64_t n_items = gemm_item::count(a);
    for (int64_t i = blockIdx.x; i < n_items; i += gridDim.x) {
      float d[Rows / 2] = {};
      const int n_rows = gemm_item(a, i).n_rows;
      multiply_any<Rate, Book, Rows>(d, s, at, k_steps, n_rows);
      store_item<Rows>(d, s, a, gemm_item(a, i));
    }
  }
#else
  __trap(); // cuda_lane::has_wgmma was wrong: the build has no code for sm_90a
#endif
}

template <int Rate, stored_matrix::codebook Book, int Rows>
void launch_trellis_gemm(const gemm_args& a, const cuda_lane& lane) {
  const auto kernel = trellis_gemm_kernel<Rate, Book, Rows>;
  using shared = gemm_shared<Rate, Rows>;
  constexpr int bytes = shared::bytes;
  static_assert(sizeof(shared) + 1023 <= bytes && shared::stages > 1);
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "trellis_gemm: shared memory");
  int64_t n_blocks = static_cast<int64_t>(lane.n_multiprocessors) * shared::blocks;
  if (a.table == nullptr)
    n_blocks = std::min<int64_t>(n_blocks, int64_t{a.w.out / 128} * ((a.n_rows + a.tile_rows - 1) / a.tile_rows));
  kernel<<<static_cast<unsigned>(n_blocks), shared::threads, bytes, lane.on>>>(a);
  cuda_check_launch("trellis_gemm");
}

template <stored_matrix::codebook Book> void launch_trellis_gemm_book(const gemm_args& a, const cuda_lane& lane) {
  with_rate<Book>(a.w.rate, [&]<int Rate>() {
    if (a.tile_rows <= 32)
      launch_trellis_gemm<Rate, Book, 32>(a, lane);
    else if (a.tile_rows <= 64)
      launch_trellis_gemm<Rate, Book, 64>(a, lane);
    else
      launch_trellis_gemm<Rate, Book, 256>(a, lane);
  });
}

} // namespace troupe
