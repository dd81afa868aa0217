// The kernel behind trellis_gemm.h and its dispatch over rates; a .cu file per codebook makes the instances.
//
// A block owns a chunk of 128 outputs (one Hadamard block) of up to Rows rows at a time. Each of its two warp groups
// decodes 64 outputs' weights into registers as the A operand; packed weights and rows come through a ring in shared
// memory, and what the end of an item needs beside them.
//
// What bounds it, clocks of a multiprocessor for 16 inputs at K = 3 (H200, one part of the loop left out at a time): at
// 128 rows decoding alone 127, products alone 140, both 216; at 256 rows 132, 262, 317. Neither the issue slots (52 %)
// nor the tensor cores (60 %) are full: products read and write their sums in registers, and decoding waits for the
// same ports (dispatch stalls). So fewer instructions help, and where they come from does not: with A in shared memory
// 226, four tiles a group 220. Ends of items take 5,000 clocks for 128 rows, 7 to 14 % of an item. Tried and dropped:
// two blocks a multiprocessor with 160 rows each; two pairs of warp groups that share rows; three warps that finish an
// item while the next one is multiplied (4.85 -> 5.15 ms for gate and up of 8,192 rows).
#pragma once

#include "gpu/cuda_check.cuh"
#include "gpu/gemm_multiply.cuh"
#include "gpu/gemm_store.cuh"
#include "gpu/trellis_gemm.h"

#include <algorithm>

namespace troupe {

constexpr int most_shared_bytes = 227 << 10; // of a block on sm_90
constexpr int row_band = 8;                  // row tiles that meet a chunk one after another: x stays in L2

template <int Rate, int Rows> struct gemm_shared {
  static constexpr int blocks = Rows > 64 ? 1 : Rows > 32 ? 2 : 3; // on one multiprocessor, by registers
  // The copying warp comes with a whole group where registers are passed from one group to another.
  static constexpr int threads = gemm_readers + (blocks == 1 ? 128 : 32);
  static constexpr int x_bytes = Rows * 128, w_bytes = 512 * Rate; // of a stage: 64 inputs
  static constexpr int sum_rows = Rows < 128 ? Rows : 128;         // that are transformed together
  static constexpr int sum_bytes = sum_rows * gemm_row_floats * 4;
  static constexpr int room = most_shared_bytes / blocks - (blocks - 1) * 1024;
  static constexpr int other_bytes = sum_bytes + 2 * sizeof(gemm_note<Rows>) + 256;
  static constexpr int fit = (room - other_bytes - 1024) / (x_bytes + w_bytes);
  static constexpr int stages = fit < 6 ? fit : 6;
  static constexpr int bytes = 1024 + stages * (x_bytes + w_bytes) + other_bytes; // 1024: alignment

  uint8_t x[stages][x_bytes]; // at a multiple of 1024
  uint8_t w[stages][w_bytes];
  float sums[sum_rows][gemm_row_floats];
  gemm_note<Rows> notes[2]; // of an item and the next
  ring_barriers<stages> ring;
  ring_barriers<2> note_ring;
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

  __device__ gemm_item(const gemm_args& a, int i) {
    const int chunks = a.w.out / 128;
    gemm_part of;
    int part, chunk, group;
    row_region region;
    if (a.table != nullptr) {
      const int each = a.parts * chunks;
      const row_segment s = a.segments[i / each];
      part = i % each / chunks;
      chunk = i % each % chunks;
      const trellis_view& w = a.table[s.expert * 3 + a.first_part + part].trellis;
      of = {w.words, w.svh, nullptr};
      group = s.first_group;
      region = s.region;
      n_rows = s.n_rows;
    } else {
      const int rows = a.tile_rows, tiles = (a.n_rows + rows - 1) / rows, each = tiles * chunks;
      part = i / each;
      of = a.of[part];
      const int of_part = i % each, band = of_part / (row_band * chunks);
      const int in_band = min(row_band, tiles - band * row_band), at = of_part - band * row_band * chunks;
      chunk = at / in_band;
      const int first = (band * row_band + at % in_band) * rows;
      group = first / 8;
      region.groups = static_cast<int32_t>(a.x[part].groups);
      n_rows = min(rows, a.n_rows - first);
    }
    words = of.words + static_cast<int64_t>(chunk) * (a.w.in / 16) * (32 * a.w.rate);
    x = region.at(a.x[part].at, group, a.w.in);
    x_step = region.groups * gemm_rows::atom_bytes;
    scale = a.x[part].scale + group * 8;
    svh = of.svh + chunk * 128;
    column = chunk * 128;
    bias = of.bias;
    y = a.y[part] + static_cast<int64_t>(group) * 8 * a.y_stride;
  }
  static __device__ int count(const gemm_args& a) {
    const int chunks = a.w.out / 128;
    const int n = a.table != nullptr ? *a.n_segments : (a.n_rows + a.tile_rows - 1) / a.tile_rows;
    return n * chunks * a.parts;
  }
};

#if defined(TROUPE_WGMMA)

// What the item's end needs goes ahead of its inputs.
template <int Rate, int Rows>
__device__ __forceinline__ void note_item(gemm_shared<Rate, Rows>& s, const gemm_item& item, ring_place<2> at) {
  gemm_note<Rows>& note = s.notes[at.stage];
  const uint32_t scale_bytes = (item.n_rows + 7) / 8 * 32;
  wait(&s.note_ring.empty[at.stage], at.round ^ 1);
  note.bias = item.bias;
  note.y = item.y;
  note.column = item.column;
  note.n_rows = item.n_rows;
  expect(&s.note_ring.full[at.stage], scale_bytes + sizeof note.svh); // the arrival shows the writes before it
  s.note_ring.copy(at, note.scale, item.scale, scale_bytes);
  s.note_ring.copy(at, note.svh, item.svh, sizeof note.svh);
}

// The copying warp.
template <int Rate, int Rows> __device__ void fill_ring(gemm_shared<Rate, Rows>& s, const gemm_args& a) {
  ring_place<gemm_shared<Rate, Rows>::stages> at;
  const int n_items = gemm_item::count(a), k_steps = a.w.in / 64;
  ring_place<2> note_at;
  for (int i = static_cast<int>(blockIdx.x); i < n_items; i += static_cast<int>(gridDim.x), note_at.next()) {
    const gemm_item item(a, i);
    const uint32_t x_bytes = (item.n_rows + 7) / 8 * gemm_rows::atom_bytes, w_bytes = sizeof s.w[0];
    note_item(s, item, note_at);
    for (int k = 0; k < k_steps; ++k, at.next()) {
      s.ring.open(at, x_bytes + w_bytes);
      s.ring.copy(at, s.w[at.stage], item.words + static_cast<int64_t>(k) * (w_bytes / 4), w_bytes);
      s.ring.copy(at, s.x[at.stage], item.x + k * item.x_step, x_bytes);
    }
  }
}

template <int Rate, stored_matrix::codebook Book, int Rows>
__device__ __forceinline__ void multiply_items(gemm_shared<Rate, Rows>& s, const gemm_args& a) {
  const int n_items = gemm_item::count(a);
  const lane_windows<Rate> windows(threadIdx.x % 32);
  stage_reader<Rate, gemm_shared<Rate, Rows>> at(s, threadIdx.x / 32, windows);
  const auto meet = [] { asm volatile("bar.sync 1, %0;" ::"n"(gemm_readers) : "memory"); };
  ring_place<2> note_at;
  for (int i = static_cast<int>(blockIdx.x); i < n_items; i += static_cast<int>(gridDim.x), note_at.next()) {
    s.note_ring.wait_full(note_at);
    const gemm_note<Rows>& note = s.notes[note_at.stage];
    float d[Rows / 2] = {};
    multiply_any<Rate, Book, Rows>(d, at, windows, a.w.in / 64, note.n_rows);
    store_item<Rows>(d, s.sums, a.out, a.y_stride, note, meet);
    __syncwarp(); // the other lanes have read it
    if (threadIdx.x % 32 == 0) s.note_ring.release(note_at.stage);
  }
}

#endif

template <int Rate, stored_matrix::codebook Book, int Rows>
__global__ void __launch_bounds__(gemm_shared<Rate, Rows>::threads, gemm_shared<Rate, Rows>::blocks)
    trellis_gemm_kernel(const __grid_constant__ gemm_args a) {
#if defined(TROUPE_WGMMA)
  extern __shared__ __align__(1024) uint8_t memory[];
  using shared = gemm_shared<Rate, Rows>;
  auto& s = *reinterpret_cast<shared*>(memory + (1024 - shared_address(memory) % 1024) % 1024);
  if (threadIdx.x == 0) s.ring.begin(gemm_readers / 32), s.note_ring.begin(gemm_readers / 32);
  __syncthreads();
  if (threadIdx.x >= gemm_readers) {
    if constexpr (shared::threads == 384) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == gemm_readers) fill_ring(s, a);
  } else {
    // 2 * 240 + 24 = 3 * 168, what the launch gave each of the three groups.
    if constexpr (shared::threads == 384) asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    multiply_items<Rate, Book, Rows>(s, a);
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
  if (a.table == nullptr) {
    const int64_t n_items = int64_t{a.w.out / 128} * ((a.n_rows + a.tile_rows - 1) / a.tile_rows) * a.parts;
    TROUPE_CHECK(n_items < int64_t{1} << 30, "items of a product are counted in 32 bits");
    n_blocks = std::min(n_blocks, n_items);
  }
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
