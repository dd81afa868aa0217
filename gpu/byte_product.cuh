// Products with EXL3 matrices of codebook mul1, 1 .. 8 rows, by integer mma on the bytes of s * 0x83DCD12D.
//                                                                                              Spec: exl3.md 13.2
//                                                                                              - 13.5.
// Sums are exact int32 over all of k, so the work can be cut anywhere and added in any order, and a row has the same
// bits in every cut. It is cut evenly: the bands (eight tiles of one tile row, 128 columns) of all columns stand in one
// line and block b takes [T b / B, T (b + 1) / B) of them. One warp streams them through a ring in shared memory, the
// other eight take a band, or half of one, each. The block that hands in the last part of a column adds the parts up
// and finishes it; nothing spins on another block. The kernel may start before the one that packs its rows has ended
// (programmatic dependent launch): weights depend on nothing, so the ring is filled with them first.
//
// Bound by instruction issue on Hopper at K <= 4: 28 instructions for a tile of 256 weights (8 windows of two shifts
// and a multiply, 2 mma), 13 of them on the multiplier's pipe and 12 on the other, which take one in two clocks: 37
// weights a clock and multiprocessor. ncu counts 36 with all that surrounds a tile, 0.63 of them issued a clock by each
// of four schedulers, and a tenth of the time before and after: 16 weights. By bytes above that.
#pragma once

#include "gpu/async_copy.cuh"
#include "gpu/byte_rows.cuh"
#include "gpu/cuda_check.cuh"
#include "gpu/cuda_lane.h"
#include "gpu/product_shape.h"

#include <algorithm>

namespace troupe {

constexpr int product_threads = 32 * product_warps;
static_assert(slot_ints == max_block_rows * 2 * chunk_columns); // a part's sums: (rows, main and rest, 128)

// Groups: of four rows, 1 or 2. A warp holds the sums of a whole band where registers allow (one group, windows of two
// words), else of half of it: three blocks a multiprocessor hide latencies that two do not (measured on an H200: 90 us
// against 80 for 16384 x 16384 at K = 5); a fourth brings nothing.
template <int Rate, int Groups> struct band_ring {
  static constexpr int band_bytes = 128 * Rate, code_bytes = 128 * Groups;
  static constexpr int warp_tiles = Groups == 1 && Rate <= 8 ? 8 : 4; // of a band's eight
  static constexpr int registers = 72;                                // what three blocks of nine warps leave
  static constexpr int room = 56 * 1024;
  // Two bands a warp where two stages fit: 3 to 6 % faster than one.
  static constexpr int stage_bands = (4 * product_warps * (band_bytes + code_bytes) <= room ? 2 : 1) * product_warps;
  static constexpr int stage_bytes = stage_bands * (band_bytes + code_bytes); // packed weights, then codes
  static constexpr int n_stages = room / stage_bytes > 8 ? 8 : room / stage_bytes > 1 ? room / stage_bytes : 2;
};

// A line of columns of `rows` bands each; block b has [begin(b), begin(b + 1)). total * n_blocks stays below 2^32.
struct band_line {
  uint32_t total, rows, base, extra; // base, extra: total / n_blocks and what is left over
  __device__ band_line(uint32_t columns, uint32_t a_column, uint32_t n_blocks)
      : total(columns * a_column), rows(a_column), base(total / n_blocks), extra(total % n_blocks) {}
  __device__ uint32_t begin(uint32_t block) const { return block * base + min(block, extra); }
  // The block whose part holds band x.
  __device__ uint32_t block_of(uint32_t x) const {
    const uint32_t longer = extra * (base + 1);
    return x < longer ? x / (base + 1) : extra + (x - longer) / base;
  }
};

// Problem: what the columns are.
//   int32_t n_columns(), rows();   columns of the line, bands of a column
//   const uint32_t* words(column); const uint8_t* codes(column); int32_t n_rows(column);
//   int32_t most_columns();        the same for all lines of the grid, known to the host
//   static constexpr int parts;    columns that are finished together
//   static constexpr bool early;   columns and weights are known before the kernel before this one has ended
//   finish(first column, sums, warp, lane): sums.row(v, part, r, packed) gives Q x of row r, 4 columns a lane
template <int Rate, int Groups, class Problem> class byte_product {
public:
  using ring = band_ring<Rate, Groups>;
  static constexpr int most_rows = 4 * Groups;
  static constexpr int sharers = 8 / ring::warp_tiles;     // warps of a band
  static constexpr int padded_row = 2 * chunk_columns + 8; // ints; rows of one column fall on other banks
  struct shared {
    uint64_t full[ring::n_stages], empty[ring::n_stages];
    bool is_last;
    // Zeros but while a column is handed in and finished.
    alignas(16) int32_t sums[Problem::parts][most_rows * padded_row];
  };
  static constexpr int head_bytes = static_cast<int>((sizeof(shared) + 127) / 128 * 128);
  static constexpr int shared_bytes() { return head_bytes + ring::n_stages * ring::stage_bytes; }

  __device__ byte_product(const Problem& p, uint8_t* memory, int32_t* slots, uint32_t* counters, int max_segments)
      : p_(p), s_(*reinterpret_cast<shared*>(memory)), stages_(memory + head_bytes), slots_(slots), counters_(counters),
        max_segments_(max_segments), lane_(threadIdx.x % 32), warp_(threadIdx.x / 32), line_(0, 1, 1) {}

  __device__ void run() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < ring::n_stages; ++i) {
        init_barrier(&s_.full[i], 1);
        init_barrier(&s_.empty[i], product_warps);
      }
      fence_barriers();
    }
    __syncthreads();
    if (warp_ == product_warps)
      copy_bands();
    else
      multiply_bands();
  }

  // Sums of Q x of row r of part `part` of the finished columns: 4 columns a lane.
  __device__ __forceinline__ void row(float (&v)[4], int part, int r, const packed_row& of) const {
    const int32_t* from = &s_.sums[part][r * padded_row + 4 * lane_];
    // value(s) = step S + (1024 step + bias), S the byte sum (exl3.md 5); in f64, for the two terms nearly cancel.
    constexpr double step = mul1_step, offset = 1024.0 * mul1_step + mul1_bias;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const double all = 254.0 * from[i] + from[chunk_columns + i];
      v[i] = static_cast<float>((step * all + offset * of.sum) / 254.0) * of.scale;
    }
  }

private:
  // Calls f(column, first band, bands, segment) for the block's part of each column.
  template <class F> __device__ __forceinline__ void each_segment(const F& f) {
    line_ = band_line(p_.n_columns(), p_.rows(), gridDim.x);
    const uint32_t end = line_.begin(blockIdx.x + 1);
    int segment = 0;
    for (uint32_t at = line_.begin(blockIdx.x); at < end; ++segment) {
      const uint32_t column = at / line_.rows, first = at - column * line_.rows;
      const uint32_t n = min(line_.rows - first, end - at);
      at += n;
      f(column, first, n, segment);
    }
  }

  // The copying warp. In the first round of the ring the weights go ahead of what the kernel before this one packs.
  __device__ void copy_bands() {
    if (!Problem::early) wait_for_kernel_before();
    int stage = 0, pass = 0, n_early = 0;
    bool is_early = Problem::early;
    each_segment([&](uint32_t column, uint32_t first, uint32_t n, int) {
      const uint32_t* words = p_.words(column);
      for (uint32_t done = 0; done < n;) {
        const uint32_t bands = min(n - done, static_cast<uint32_t>(ring::stage_bands));
        if (is_early && pass == 1) { // the ring is full of weights: now their codes
          wait_for_kernel_before();
          copy_early_codes(n_early);
          is_early = false;
        }
        if (pass > 0) wait(&s_.empty[stage], (pass - 1) & 1);
        copy_weights(stage, words, first + done, bands);
        if (is_early)
          ++n_early;
        else
          copy_codes(stage, p_.codes(column), first + done, bands);
        done += bands;
        if (++stage == ring::n_stages) {
          stage = 0;
          ++pass;
        }
      }
    });
    if (is_early) {
      wait_for_kernel_before();
      copy_early_codes(n_early);
    }
    let_next_kernel_start();
  }

  // Codes of the first `n_stages` stages, once more along the line.
  __device__ void copy_early_codes(int n_stages) {
    int stage = 0;
    each_segment([&](uint32_t column, uint32_t first, uint32_t n, int) {
      if (stage == n_stages) return;
      const uint8_t* codes = p_.codes(column);
      for (uint32_t done = 0; done < n && stage < n_stages; ++stage) {
        const uint32_t bands = min(n - done, static_cast<uint32_t>(ring::stage_bands));
        copy_codes(stage, codes, first + done, bands);
        done += bands;
      }
    });
  }

  __device__ __forceinline__ void copy_weights(int stage, const uint32_t* words, uint32_t first, uint32_t n) {
    words += static_cast<int64_t>(first) * (ring::band_bytes / 4);
    uint8_t* to = stages_ + stage * ring::stage_bytes;
#if __CUDA_ARCH__ >= 900
    if (lane_ == 0) {
      expect(&s_.full[stage], n * (ring::band_bytes + ring::code_bytes));
      bulk_copy(to, words, n * ring::band_bytes, &s_.full[stage]);
    }
#else
    for (uint32_t i = lane_; i < n * ring::band_bytes / 16; i += 32)
      reinterpret_cast<uint4*>(to)[i] = __ldcs(reinterpret_cast<const uint4*>(words) + i);
#endif
  }
  __device__ __forceinline__ void copy_codes(int stage, const uint8_t* codes, uint32_t first, uint32_t n) {
    codes += first * ring::code_bytes;
    uint8_t* to = stages_ + stage * ring::stage_bytes + ring::stage_bands * ring::band_bytes;
#if __CUDA_ARCH__ >= 900
    if (lane_ == 0) bulk_copy(to, codes, n * ring::code_bytes, &s_.full[stage]);
#else
    for (uint32_t i = lane_; i < n * ring::code_bytes / 16; i += 32)
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(codes)[i];
    __threadfence_block();
    __syncwarp();
    if (lane_ == 0) arrive(&s_.full[stage]);
#endif
  }

  // The multiplying warps.
  __device__ void multiply_bands() {
    for (int i = threadIdx.x; i < Problem::parts * most_rows * padded_row; i += product_threads)
      (&s_.sums[0][0])[i] = 0;
    const lane_windows<Rate> windows(lane_);
    wait_for_kernel_before(); // what it wrote is read below, and runs are counted by it
    constexpr int turns = ring::stage_bands * sharers / product_warps; // half bands are as fast in a loop
    int stage = 0;
    uint32_t phase = 0;
    each_segment([&](uint32_t column, uint32_t, uint32_t n, int segment) {
      int c[Groups][ring::warp_tiles][4] = {};
      for (uint32_t done = 0; done < n; done += ring::stage_bands) {
        const int bands = static_cast<int>(min(n - done, static_cast<uint32_t>(ring::stage_bands)));
        wait(&s_.full[stage], phase);
        const uint8_t* at = stages_ + stage * ring::stage_bytes;
#pragma unroll(ring::warp_tiles == 8 ? turns : 1)
        for (int turn = 0; turn < turns; ++turn) {
          const int b = warp_ / sharers + turn * (product_warps / sharers);
          if (b < bands) multiply_band(c, windows, at, b);
        }
        __syncwarp();
        if (lane_ == 0) arrive(&s_.empty[stage]);
        if (++stage == ring::n_stages) {
          stage = 0;
          phase ^= 1;
        }
      }
      const int n_rows = p_.n_rows(column);
      if (segment == 0) sync_multipliers(); // the zeros above
      add_up(c, n_rows);
      hand_in(column, segment, n, n_rows);
    });
  }

  __device__ __forceinline__ void multiply_band(int (&c)[Groups][ring::warp_tiles][4],
                                                const lane_windows<Rate>& windows, const uint8_t* stage, int b) {
    const auto* band = reinterpret_cast<const uint32_t*>(stage + b * ring::band_bytes +
                                                         warp_ % sharers * (ring::band_bytes / sharers));
    const auto* codes =
        reinterpret_cast<const uint32_t*>(stage + ring::stage_bands * ring::band_bytes + b * ring::code_bytes);
    uint32_t x[Groups][4];
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
      const uint32_t four = codes[g * 32 + lane_];
      x[g][0] = __byte_perm(four, 0, 0x0000);
      x[g][1] = __byte_perm(four, 0, 0x1111);
      x[g][2] = __byte_perm(four, 0, 0x2222);
      x[g][3] = __byte_perm(four, 0, 0x3333);
    }
#pragma unroll
    for (int t = 0; t < ring::warp_tiles; ++t) {
      uint32_t w[8];
      windows.states(band + t * (4 * Rate), w);
#pragma unroll
      for (uint32_t& state : w) state *= 0x83DCD12DU;
#pragma unroll
      for (int g = 0; g < Groups; ++g) {
        mma_bytes(c[g][t], w[0], w[4], w[1], w[5], x[g][0], x[g][1]);
        mma_bytes(c[g][t], w[2], w[6], w[3], w[7], x[g][2], x[g][3]);
      }
    }
  }

  static __device__ __forceinline__ void sync_multipliers() {
    asm volatile("bar.sync 1, %0;" ::"n"(product_threads) : "memory");
  }

  // Into the block's sums: lane l holds columns l / 4 and + 8 of each tile for row l % 4 of each group.
  __device__ __forceinline__ void add_up(const int (&c)[Groups][ring::warp_tiles][4], int n_rows) {
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
      const int r = 4 * g + lane_ % 4;
      if (r >= n_rows) continue;
      int32_t* to = s_.sums[0] + r * padded_row + warp_ % sharers * (chunk_columns / sharers) + lane_ / 4;
#pragma unroll
      for (int t = 0; t < ring::warp_tiles; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          atomicAdd(to + 16 * t + 8 * half, c[g][t][2 * half]);
          atomicAdd(to + 16 * t + 8 * half + chunk_columns, c[g][t][2 * half + 1]);
        }
    }
  }

  __device__ int32_t* slot(int block, int segment) const {
    return slots_ + (static_cast<int64_t>(block) * max_segments_ + segment) * slot_ints;
  }

  // The block's part of a column is whole: leaves it in its slot, and finishes the columns if it was the last part.
  __device__ void hand_in(uint32_t column, int segment, uint32_t n_bands, int n_rows) {
    sync_multipliers();
    if (Problem::parts == 1 && n_bands == line_.rows) return finish_columns(column, n_rows); // it has the whole column
    constexpr int row_pieces = 2 * chunk_columns / 4;
    int4* to = reinterpret_cast<int4*>(slot(blockIdx.x, segment));
    for (int i = threadIdx.x; i < n_rows * row_pieces; i += product_threads) {
      int4* from = reinterpret_cast<int4*>(s_.sums[0] + i / row_pieces * padded_row) + i % row_pieces;
      __stcg(to + i, *from);
      *from = {0, 0, 0, 0};
    }
    sync_multipliers();
    if (threadIdx.x == 0) {
      __threadfence(); // and, by the barrier before it, what the other threads wrote
      uint32_t* counter = counters_ + column / Problem::parts;
      s_.is_last = atomicAdd(counter, n_bands) + n_bands == Problem::parts * line_.rows;
      if (s_.is_last) *counter = 0;
    }
    sync_multipliers();
    if (!s_.is_last) return;
    __threadfence();
    const uint32_t first = column / Problem::parts * Problem::parts;
    for (int part = 0; part < Problem::parts; ++part) gather(first + part, part, n_rows);
    sync_multipliers();
    finish_columns(first, n_rows);
  }

  // The sums of the columns from `first` on are whole; leaves zeros.
  __device__ void finish_columns(uint32_t first, int n_rows) {
    p_.finish(first, *this, warp_, lane_);
    sync_multipliers();
    for (int part = 0; part < Problem::parts; ++part)
      for (int i = threadIdx.x; i < n_rows * padded_row; i += product_threads) s_.sums[part][i] = 0;
    sync_multipliers();
  }

  // Adds all parts of a column up. Threads share the parts where rows are few: integers may be added in any order.
  __device__ void gather(uint32_t column, int part, int n_rows) {
    constexpr int row_pieces = 2 * chunk_columns / 4;
    const uint32_t begin = column * line_.rows, first = line_.block_of(begin),
                   last = line_.block_of(begin + line_.rows - 1);
    // A block whose part begins in this column has it as its first one.
    const uint32_t first_segment = column - line_.begin(first) / line_.rows;
    const int pieces = n_rows * row_pieces, helpers = max(1, product_threads / pieces);
    const int mine = threadIdx.x % pieces, step = threadIdx.x / pieces;
    for (int i = helpers == 1 ? threadIdx.x : mine; i < pieces && step < helpers; i += product_threads) {
      int4 sum = {0, 0, 0, 0};
#pragma unroll 4
      for (uint32_t b = first + (helpers == 1 ? 0 : step); b <= last; b += helpers) {
        const int4 v =
            __ldcg(reinterpret_cast<const int4*>(slot(b, b == first ? static_cast<int>(first_segment) : 0)) + i);
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
      }
      int32_t* to = s_.sums[part] + i / row_pieces * padded_row + i % row_pieces * 4;
      atomicAdd(to, sum.x);
      atomicAdd(to + 1, sum.y);
      atomicAdd(to + 2, sum.z);
      atomicAdd(to + 3, sum.w);
    }
  }

  const Problem& p_;
  shared& s_;
  uint8_t* stages_;
  int32_t* slots_;
  uint32_t* counters_;
  int max_segments_, lane_, warp_;
  band_line line_;
};

template <int Rate, int Groups, class Problem>
__global__ void __launch_bounds__(product_threads + 32) __maxnreg__((band_ring<Rate, Groups>::registers))
    byte_product_kernel(const __grid_constant__ Problem p, int32_t* slots, uint32_t* counters, int max_segments) {
  extern __shared__ __align__(128) uint8_t memory[];
  // Groups of eight rows stand side by side in the grid, with slots and counters of their own.
  slots += static_cast<int64_t>(blockIdx.y) * gridDim.x * max_segments * slot_ints;
  counters += blockIdx.y * static_cast<uint32_t>(p.most_columns() / Problem::parts);
  byte_product<Rate, Groups, Problem>(p, memory, slots, counters, max_segments).run();
}

template <int Rate, int Groups, class Problem>
void launch_product_groups(const Problem& p, const product_shape& shape, int n_lines, int32_t* slots,
                           uint32_t* counters, cuda_stream on) {
  constexpr int bytes = byte_product<Rate, Groups, Problem>::shared_bytes();
  const auto kernel = byte_product_kernel<Rate, Groups, Problem>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "byte product: shared memory");
  launch_early(kernel, dim3(shape.n_blocks, n_lines), product_threads + 32, bytes, on, "byte product", p, slots,
               counters, shape.max_segments);
}

// n_lines: groups of eight rows, each a line of its own in blockIdx.y.
template <int Rate, class Problem>
void launch_byte_product(const Problem& p, const product_shape& shape, int n_lines, int32_t* slots, uint32_t* counters,
                         cuda_stream on) {
  if (shape.n_groups == 1)
    launch_product_groups<Rate, 1>(p, shape, n_lines, slots, counters, on);
  else
    launch_product_groups<Rate, 2>(p, shape, n_lines, slots, counters, on);
}

} // namespace troupe
