// Products with EXL3 matrices of codebook mul1, 1 .. 8 rows, by integer mma on the bytes of s * 0x83DCD12D.
//                                                                                              Spec: exl3.md 13.2
//                                                                                              - 13.5.
// Sums are exact int32 over all of k, so the work can be cut anywhere and added in any order, and a row has the same
// bits in every cut. It is cut evenly: the bands (eight tiles of one tile row, 128 columns) of all columns stand in one
// line, block b takes [T b / B, T (b + 1) / B) of them, and inside each column its eight warps take an eighth each.
// Every warp streams its bands through a ring of its own in shared memory and never waits for another one until its
// column ends. The block that hands in the last part of a column adds the parts up and finishes it; nothing spins.
//
// Bound by instruction issue on Hopper at K <= 4: about 31 instructions for a tile of 256 weights (8 windows of two
// shifts and a multiply, 2 mma), 4 schedulers: 33 weights a clock and multiprocessor; by bytes above that.
#pragma once

#include "gpu/async_copy.cuh"
#include "gpu/byte_rows.cuh"
#include "gpu/cuda_check.h"
#include "gpu/cuda_lane.h"

#include <algorithm>

namespace troupe {

constexpr int product_warps = 8, product_threads = 32 * product_warps;
constexpr int slot_ints = max_block_rows * 2 * chunk_columns; // a part's sums: (rows, main and rest, 128)

// Groups: of four rows, 1 or 2; one group needs fewer registers, so more warps hide each other's latencies.
template <int Rate, int Groups> struct band_ring {
  static constexpr int band_bytes = 128 * Rate, code_bytes = 128 * Groups;
  static constexpr int stage_bands = Rate <= 8 ? 4 : 2;
  static constexpr int stage_bytes = stage_bands * (band_bytes + code_bytes); // packed weights, then codes
  static constexpr int warp_bytes = Groups == 1 ? 8 * 1024 : 12 * 1024;       // of 3 and 2 blocks a multiprocessor
  static constexpr int n_stages = warp_bytes / stage_bytes > 1 ? warp_bytes / stage_bytes : 2;
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
//   static constexpr int parts;    columns that are finished together
//   finish(first column, sums, warp, lane): sums.row(v, part, r, packed) gives Q x of row r, 4 columns a lane
template <int Rate, int Groups, class Problem> class byte_product {
public:
  using ring = band_ring<Rate, Groups>;
  static constexpr int most_rows = 4 * Groups;
  static constexpr int padded_row = 2 * chunk_columns + 8; // ints; rows of one column fall on other banks
  struct shared {
    uint64_t full[product_warps][ring::n_stages];
    int32_t sums[Problem::parts][most_rows * padded_row]; // zeros but while a column is handed in and finished
    bool is_last;
  };
  static constexpr int shared_bytes() {
    return static_cast<int>((sizeof(shared) + 127) / 128 * 128) + product_warps * ring::n_stages * ring::stage_bytes;
  }

  __device__ byte_product(const Problem& p, uint8_t* memory, int32_t* slots, uint32_t* counters, int max_segments)
      : p_(p), s_(*reinterpret_cast<shared*>(memory)), slots_(slots), counters_(counters), max_segments_(max_segments),
        lane_(threadIdx.x % 32), warp_(threadIdx.x / 32), windows_(lane_), line_(p.n_columns(), p.rows(), gridDim.x),
        stages_(memory + (sizeof(shared) + 127) / 128 * 128 + warp_ * ring::n_stages * ring::stage_bytes),
        ahead_{line_.begin(blockIdx.x), line_.begin(blockIdx.x + 1)} {}

  __device__ void run() {
    if (lane_ == 0)
      for (int i = 0; i < ring::n_stages; ++i) init_barrier(&s_.full[warp_][i]);
    __syncwarp();
    for (int i = 0; i < ring::n_stages; ++i) issue(i);
    for (int i = threadIdx.x; i < Problem::parts * most_rows * padded_row; i += product_threads)
      (&s_.sums[0][0])[i] = 0;
    __syncthreads();
    const uint32_t end = line_.begin(blockIdx.x + 1);
    int segment = 0;
    for (uint32_t at = line_.begin(blockIdx.x); at < end; ++segment) {
      const uint32_t column = at / line_.rows, first = at - column * line_.rows;
      const uint32_t n = min(line_.rows - first, end - at);
      at += n;
      const int n_rows = p_.n_rows(column);
      accumulate(n * (warp_ + 1) / product_warps - n * warp_ / product_warps, n_rows);
      hand_in(column, segment, n, n_rows);
    }
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
  static __device__ __forceinline__ void init_barrier(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  }

  // The bands of this warp that no copy was started for, in order.
  struct band_cursor {
    uint32_t at, end;              // of the block's part: what no column has been cut from
    uint32_t row = 0, row_end = 0; // of the warp in the column that the pointers are of
    const uint32_t* words = nullptr;
    const uint8_t* codes = nullptr;
  };

  // Starts the copies of the warp's next piece into a stage. All lanes call it, after the last read of that stage.
  __device__ __forceinline__ void issue(int stage) {
    while (ahead_.row == ahead_.row_end) {
      if (ahead_.at >= ahead_.end) return;
      const uint32_t column = ahead_.at / line_.rows, first = ahead_.at - column * line_.rows;
      const uint32_t n = min(line_.rows - first, ahead_.end - ahead_.at);
      ahead_.row = first + n * warp_ / product_warps;
      ahead_.row_end = first + n * (warp_ + 1) / product_warps;
      ahead_.words = p_.words(column);
      ahead_.codes = p_.codes(column);
      ahead_.at += n;
    }
    const uint32_t n = min(static_cast<uint32_t>(ring::stage_bands), ahead_.row_end - ahead_.row);
    const uint32_t* words = ahead_.words + static_cast<int64_t>(ahead_.row) * (ring::band_bytes / 4);
    const uint8_t* codes = ahead_.codes + ahead_.row * ring::code_bytes;
    ahead_.row += n;
    uint8_t* to = stages_ + stage * ring::stage_bytes;
#if __CUDA_ARCH__ >= 900
    if (lane_ == 0) {
      const uint32_t barrier = shared_address(&s_.full[warp_][stage]);
      const uint32_t word_bytes = n * ring::band_bytes, code_bytes = n * ring::code_bytes;
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(word_bytes + code_bytes)
                   : "memory");
      bulk_copy(to, words, word_bytes, barrier);
      bulk_copy(to + ring::stage_bands * ring::band_bytes, codes, code_bytes, barrier);
    }
#else
    for (int i = lane_; i < n * ring::band_bytes / 16; i += 32)
      reinterpret_cast<uint4*>(to)[i] = __ldcs(reinterpret_cast<const uint4*>(words) + i);
    for (int i = lane_; i < n * ring::code_bytes / 16; i += 32)
      reinterpret_cast<uint4*>(to + ring::stage_bands * ring::band_bytes)[i] = reinterpret_cast<const uint4*>(codes)[i];
    __syncwarp();
#endif
  }

  static __device__ __forceinline__ void bulk_copy(void* to, const void* from, uint32_t n_bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(n_bytes), "r"(barrier)
                 : "memory");
  }

  __device__ __forceinline__ void wait(int stage) const {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra ready;\n"
                 "bra again;\n"
                 "ready:\n"
                 "}\n" ::"r"(shared_address(&s_.full[warp_][stage])),
                 "r"(phase_)
                 : "memory");
#endif
  }

  __device__ __forceinline__ void accumulate(int n_bands, int n_rows) {
    int c[Groups][8][4] = {};
    while (n_bands > 0) {
      const int n = min(n_bands, ring::stage_bands);
      wait(stage_);
      const uint8_t* at = stages_ + stage_ * ring::stage_bytes;
      for (int b = 0; b < n; ++b) {
        const auto* band = reinterpret_cast<const uint32_t*>(at + b * ring::band_bytes);
        const auto* codes =
            reinterpret_cast<const uint32_t*>(at + ring::stage_bands * ring::band_bytes + b * ring::code_bytes);
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
        for (int t = 0; t < 8; ++t) {
          uint32_t w[8];
          windows_.states(band + t * (4 * Rate), w);
#pragma unroll
          for (uint32_t& state : w) state *= 0x83DCD12DU;
#pragma unroll
          for (int g = 0; g < Groups; ++g) {
            mma_bytes(c[g][t], w[0], w[4], w[1], w[5], x[g][0], x[g][1]);
            mma_bytes(c[g][t], w[2], w[6], w[3], w[7], x[g][2], x[g][3]);
          }
        }
      }
      __syncwarp();
      issue(stage_);
      if (++stage_ == ring::n_stages) {
        stage_ = 0;
        phase_ ^= 1;
      }
      n_bands -= n;
    }
    add_up(c, n_rows);
  }

  // Into the block's sums: lane l holds columns l / 4 and + 8 of each tile for row l % 4 of each group.
  __device__ __forceinline__ void add_up(const int (&c)[Groups][8][4], int n_rows) {
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
      const int r = 4 * g + lane_ % 4;
      if (r >= n_rows) continue;
      int32_t* to = s_.sums[0] + r * padded_row + lane_ / 4;
#pragma unroll
      for (int t = 0; t < 8; ++t)
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
    __syncthreads();
    constexpr int row_pieces = 2 * chunk_columns / 4;
    int4* to = reinterpret_cast<int4*>(slot(blockIdx.x, segment));
    for (int i = threadIdx.x; i < n_rows * row_pieces; i += product_threads) {
      int4* from = reinterpret_cast<int4*>(s_.sums[0] + i / row_pieces * padded_row) + i % row_pieces;
      __stcg(to + i, *from);
      *from = {0, 0, 0, 0};
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      uint32_t* counter = counters_ + column / Problem::parts;
      s_.is_last = atomicAdd(counter, n_bands) + n_bands == Problem::parts * line_.rows;
      if (s_.is_last) *counter = 0;
    }
    __syncthreads();
    if (!s_.is_last) return;
    __threadfence();
    const uint32_t first = column / Problem::parts * Problem::parts;
    for (int part = 0; part < Problem::parts; ++part) gather(first + part, part, n_rows);
    __syncthreads();
    p_.finish(first, *this, warp_, lane_);
    __syncthreads();
    for (int part = 0; part < Problem::parts; ++part)
      for (int i = threadIdx.x; i < n_rows * padded_row; i += product_threads) s_.sums[part][i] = 0;
    __syncthreads();
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
  int32_t* slots_;
  uint32_t* counters_;
  int max_segments_, lane_, warp_;
  lane_windows<Rate> windows_;
  band_line line_;
  uint8_t* stages_; // of this warp
  band_cursor ahead_;
  int stage_ = 0;
  uint32_t phase_ = 0;
};

template <int Rate, int Groups, class Problem>
__global__ void __launch_bounds__(product_threads, Groups == 1 ? 3 : 2)
    byte_product_kernel(Problem p, int32_t* slots, uint32_t* counters, int max_segments) {
  extern __shared__ __align__(128) uint8_t memory[];
  if (p.n_columns() == 0) return;
  // Groups of eight rows stand side by side in the grid, with slots and counters of their own.
  slots += static_cast<int64_t>(blockIdx.y) * gridDim.x * max_segments * slot_ints;
  counters += blockIdx.y * (p.n_columns() / Problem::parts);
  byte_product<Rate, Groups, Problem>(p, memory, slots, counters, max_segments).run();
}

// How many blocks share a line of at most `n_columns` columns, and the most columns that one of them touches.
struct product_shape {
  int n_groups, n_blocks, max_segments; // n_groups: of four rows that any column has at most
  product_shape(int64_t n_columns, int rows, int most_rows, int n_multiprocessors)
      : n_groups(most_rows <= 4 ? 1 : 2),
        n_blocks(static_cast<int>(std::max<int64_t>(
            1, std::min<int64_t>((n_groups == 1 ? 3 : 2) * n_multiprocessors, n_columns * rows / product_warps)))),
        max_segments(static_cast<int>((n_columns + n_blocks - 1) / n_blocks) + 2) {
    TROUPE_CHECK(n_columns * rows * n_blocks < int64_t{1} << 32, "the bands of a line are counted in 32 bits");
  }
  int64_t slot_bytes() const { return static_cast<int64_t>(n_blocks) * max_segments * slot_ints * 4; }
};

template <int Rate, int Groups, class Problem>
void launch_product_groups(const Problem& p, const product_shape& shape, int n_lines, int32_t* slots,
                           uint32_t* counters, cuda_stream on) {
  constexpr int bytes = byte_product<Rate, Groups, Problem>::shared_bytes();
  const auto kernel = byte_product_kernel<Rate, Groups, Problem>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "byte product: shared memory");
  kernel<<<dim3(shape.n_blocks, n_lines), product_threads, bytes, on>>>(p, slots, counters, shape.max_segments);
  cuda_check_launch("byte product");
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
