// Products with EXL3 matrices of codebook mul1, 1 .. 8 rows, by integer mma on the bytes of s * 0x83DCD12D. Spec:
// exl3.md 13.2 - 13.5. Sums are exact int32 over all of k, so the work can be cut anywhere and added in any order, and
// a row has the same bits in every cut. It is cut evenly: the bands (eight tiles of one tile row, 128 columns) of all
// items (a column, or two that are finished together) stand in one line and block b takes [T b / B, T (b + 1) / B) of
// them. One warp streams them through a ring in shared memory, the other eight take a band, or half of one, each. At
// the end of a column they share their sums out, so that each has those of one tile: atomics in shared memory cost a
// clock a lane. Parts of an item are added up in device memory, by the L2, and the block that comes last finishes the
// item; nothing spins on another block. The kernel may start before the one that packs its rows has ended (programmatic
// dependent launch): weights depend on nothing, so its first stage is filled with them before.
//
// Bound by instruction issue on Hopper at K <= 4: 28 instructions for a tile of 256 weights (8 windows of two shifts
// and a multiply, 2 mma), 13 of them on the multiplier's pipe and 12 on the other, which take one in two clocks. From
// shared memory alone, 24 warps a multiprocessor (H200, K = 3): windows and multiplies 29.6 weights a clock, mma 58,
// both together 21.2, for they hardly overlap: 5.5e12 weights/s; wgmma on the same bytes reaches 17.6. Here 5.2e12 in
// the middle of a large matrix. By bytes above that.
#pragma once

#include "gpu/async_copy.cuh"
#include "gpu/band_ring.cuh"
#include "gpu/byte_rows.cuh"
#include "gpu/early_launch.cuh"

namespace troupe {

constexpr int product_threads = 32 * product_warps;
static_assert(max_block_rows <= product_warps, "a warp finishes a row");

// Problem: what the columns are.
//   int32_t n_items();             of the line
//   static constexpr int parts;    columns of an item: item * parts + 0 .. parts - 1
//   int32_t rows();                bands of a column
//   const uint32_t* words(column); const uint8_t* codes(column); int32_t n_rows(column);
//   fetch_early(column, lane);     what finish() will read of the weights, to the cache
//   ready prepare(first column, r, lane);  what finishing row r of an item reads, so that it is there in time
//   finish(first column, ready, sums, r, lane): sums.row(v, part, r, scale) gives Q x of row r, 4 columns a lane
template <int Rate, int Groups, class Problem> class byte_product {
public:
  using ring = band_ring<Rate, Groups>;
  static constexpr int most_rows = 4 * Groups;
  static constexpr int sharers = 8 / ring::warp_tiles;           // warps of a band
  static constexpr int padded_row = 2 * chunk_columns + 8;       // ints; rows of one column fall on other banks
  static constexpr int part_ints = Groups * 4 * product_threads; // (groups, 4, threads)
  static constexpr int given = Groups * ring::warp_tiles / 2;    // tiles' sums that a warp gives away at first
  struct shared {
    uint64_t full[ring::n_stages], empty[ring::n_stages];
    bool is_last;
    union { // while a column is handed in
      int4 given_to[product_warps][given * 32];
      alignas(16) int32_t sums[Problem::parts][most_rows * padded_row];
    };
  };
  static constexpr int head_bytes = static_cast<int>((sizeof(shared) + 127) / 128 * 128);
  static constexpr int shared_bytes() { return head_bytes + ring::n_stages * ring::stage_bytes; }

  // shared_sums: zeros, and left so; (blocks, part_ints of each part). counters: likewise, (blocks).
  __device__ byte_product(const Problem& p, uint8_t* memory, int32_t* shared_sums, uint32_t* counters)
      : p_(p), s_(*reinterpret_cast<shared*>(memory)), stages_(memory + head_bytes), shared_sums_(shared_sums),
        counters_(counters), lane_(threadIdx.x % 32), warp_(threadIdx.x / 32), line_(0, 1, 1) {}

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
  __device__ __forceinline__ void row(float (&v)[4], int part, int r, const row_scale& of) const {
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
  // Calls f(item, first band, bands) for the block's part of each item.
  template <class F> __device__ __forceinline__ void each_item(const F& f) {
    line_ = band_line(p_.n_items(), p_.rows() * Problem::parts, gridDim.x);
    const uint32_t end = line_.begin(blockIdx.x + 1);
    for (uint32_t at = line_.begin(blockIdx.x); at < end;) {
      const uint32_t item = at / line_.bands, first = at - item * line_.bands;
      const uint32_t n = min(line_.bands - first, end - at);
      at += n;
      f(item, first, n);
    }
  }
  // Calls f(part, first band, bands) for each column of an item that has bands in [first, first + n) of it.
  template <class F> __device__ __forceinline__ void each_part(uint32_t first, uint32_t n, const F& f) {
    const uint32_t rows = p_.rows();
#pragma unroll 1
    for (int part = 0; part < Problem::parts; ++part) {
      const uint32_t from = max(first, part * rows), to = min(first + n, (part + 1) * rows);
      if (from < to) f(part, from - part * rows, to - from);
    }
  }
  // The two as one: f(column, first band, bands).
  template <class F> __device__ __forceinline__ void each_column(const F& f) {
    each_item([&](uint32_t item, uint32_t first, uint32_t n) {
      each_part(first, n, [&](int part, uint32_t from, uint32_t bands) {
        f(item * Problem::parts + static_cast<uint32_t>(part), from, bands);
      });
    });
  }

  // The copying warp. The weights of the first stage go ahead of what the kernel before this one packs. Of no more: a
  // ring full of them in every block is 20 MB, behind which that kernel's own loads wait, 5 us for 2 (H200).
  __device__ void copy_bands() {
    int stage = 0, pass = 0;
    bool is_early = true; // columns and weights are older than the kernel before this one
    each_column([&](uint32_t column, uint32_t first, uint32_t n) {
      const uint32_t* words = p_.words(column);
      p_.fetch_early(column, lane_);
      for (uint32_t done = 0; done < n;) {
        const uint32_t bands = min(n - done, static_cast<uint32_t>(ring::stage_bands));
        if (pass > 0) wait(&s_.empty[stage], (pass - 1) & 1);
        copy_weights(stage, words, first + done, bands);
        if (is_early) wait_for_kernel_before();
        is_early = false;
        copy_codes(stage, p_.codes(column), first + done, bands);
        done += bands;
        if (++stage == ring::n_stages) {
          stage = 0;
          ++pass;
        }
      }
    });
    if (is_early) wait_for_kernel_before();
    let_next_kernel_start();
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
    const lane_windows<Rate> windows(lane_);
    wait_for_kernel_before(); // what it wrote is read below, and runs are counted by it
    constexpr int turns = ring::stage_bands * sharers / product_warps; // half bands are as fast in a loop
    int stage = 0;
    uint32_t phase = 0;
    each_item([&](uint32_t item, uint32_t first, uint32_t n) {
      int4 mine[Problem::parts][Groups] = {}; // of more parts than one in local memory: registers are short in the loop
      const int n_rows = p_.n_rows(item * Problem::parts);
      each_part(first, n, [&](int part, uint32_t, uint32_t part_bands) {
        int4 c[Groups][ring::warp_tiles] = {};
        for (uint32_t done = 0; done < part_bands; done += ring::stage_bands) {
          const int bands = static_cast<int>(min(part_bands - done, static_cast<uint32_t>(ring::stage_bands)));
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
        n_rows <= 2 ? share_out_few(c, n_rows) : share_out(c);
#pragma unroll
        for (int g = 0; g < Groups; ++g) mine[part][g] = c[g][0];
      });
      hand_in(mine, item, n, n_rows);
    });
  }

  __device__ __forceinline__ void multiply_band(int4 (&c)[Groups][ring::warp_tiles], const lane_windows<Rate>& windows,
                                                const uint8_t* stage, int b) {
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
  // Acquire and release: __threadfence() orders all fences of the device too, which takes longer.
  static __device__ void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
  static __device__ void sync_multipliers() { asm volatile("bar.sync 1, %0;" ::"n"(product_threads) : "memory"); }

  // The multiplying warps' sums of the block -> c[g][0] those of one tile, of tile_of_warp().
  __device__ __forceinline__ void share_out(int4 (&c)[Groups][ring::warp_tiles]) {
#pragma unroll
    for (int half = ring::warp_tiles / 2; half > 0; half /= 2) { // of those left, to the warp that differs in that bit
      const bool is_upper = (warp_ / sharers & half) != 0;
      int4* to = s_.given_to[warp_ ^ half * sharers] + lane_;
#pragma unroll
      for (int g = 0; g < Groups; ++g)
#pragma unroll
        for (int t = 0; t < half; ++t) {
          to[(g * half + t) * 32] = is_upper ? c[g][t] : c[g][t + half];
          if (is_upper) c[g][t] = c[g][t + half];
        }
      sync_multipliers();
#pragma unroll
      for (int g = 0; g < Groups; ++g)
#pragma unroll
        for (int t = 0; t < half; ++t) add(c[g][t], s_.given_to[warp_][(g * half + t) * 32 + lane_]);
      sync_multipliers();
    }
  }
  // The same for one or two rows, whose sums are in 8 or 16 lanes: all of them fit, in one step.
  __device__ __forceinline__ void share_out_few(int4 (&c)[Groups][ring::warp_tiles], int n_rows) {
    constexpr int peers = ring::warp_tiles;
    static_assert(sizeof(int4) * 2 * 8 * 8 * peers <= sizeof s_.given_to);
    const int lanes = 8 * n_rows, place = lane_ / 4 * n_rows + lane_ % 4;
    int4* all = s_.given_to[0] + place; // (tiles, peers, lanes)
    if (lane_ % 4 < n_rows)
#pragma unroll
      for (int t = 0; t < ring::warp_tiles; ++t)
        all[((warp_ % sharers * ring::warp_tiles + t) * peers + warp_ / sharers) * lanes] = c[0][t];
    sync_multipliers();
    c[0][0] = {0, 0, 0, 0};
    if (lane_ % 4 < n_rows)
#pragma unroll
      for (int peer = 0; peer < peers; ++peer) add(c[0][0], all[(tile_of_warp() * peers + peer) * lanes]);
    sync_multipliers();
  }
  __device__ int tile_of_warp() const { return warp_ % sharers * ring::warp_tiles + warp_ / sharers; }
  static __device__ __forceinline__ void add(int4& to, int4 x) { to.x += x.x, to.y += x.y, to.z += x.z, to.w += x.w; }

  // Lane l holds columns l / 4 and + 8 of its warp's tile for row l % 4 of each group.
  __device__ __forceinline__ void show(const int4 (&mine)[Groups], int part) {
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
      int32_t* to = s_.sums[part] + (4 * g + lane_ % 4) * padded_row + tile_of_warp() * 16 + lane_ / 4;
      to[0] = mine[g].x;
      to[chunk_columns] = mine[g].y;
      to[8] = mine[g].z;
      to[chunk_columns + 8] = mine[g].w;
    }
  }

  // The block's part of an item is whole: adds it to that of the others, and finishes the item if it was the last part.
  __device__ void hand_in(int4 (&mine)[Problem::parts][Groups], uint32_t item, uint32_t n_bands, int n_rows) {
    const uint32_t first = item * Problem::parts;
    const bool has_row = warp_ < n_rows;
    typename Problem::ready ready{};
    if (has_row) ready = p_.prepare(first, warp_, lane_);
    if (n_bands < line_.bands) { // an item that is cut belongs to the block where it begins, which has one such
      const uint32_t owner = line_.block_of(item * line_.bands);
      int32_t* sums = shared_sums_ + static_cast<int64_t>(owner) * (Problem::parts * part_ints) + threadIdx.x;
      each_word(n_rows, [&](int part, int g, int at) {
        const int4 v = mine[part][g];
        atomicAdd(sums + at, v.x);
        atomicAdd(sums + at + product_threads, v.y);
        atomicAdd(sums + at + 2 * product_threads, v.z);
        atomicAdd(sums + at + 3 * product_threads, v.w);
      });
      sync_multipliers();
      if (threadIdx.x == 0) {
        fence_device(); // and, by the barrier before it, what the other threads added
        s_.is_last = atomicAdd(counters_ + owner, n_bands) + n_bands == line_.bands;
        if (s_.is_last) counters_[owner] = 0;
        fence_device(); // what the other blocks added before they counted: by the barrier, for all threads
      }
      sync_multipliers();
      if (!s_.is_last) return;
      each_word(n_rows, [&](int part, int g, int at) {
        int* v = &mine[part][g].x;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          v[i] = __ldcg(sums + at + i * product_threads);
          __stcg(sums + at + i * product_threads, 0);
        }
      });
    }
#pragma unroll
    for (int part = 0; part < Problem::parts; ++part) show(mine[part], part);
    sync_multipliers();
    if (has_row) p_.finish(first, ready, *this, warp_, lane_);
    sync_multipliers();
  }
  // Calls f(part, group, place) for the sums of rows that this thread has four of.
  template <class F> __device__ __forceinline__ void each_word(int n_rows, const F& f) const {
#pragma unroll
    for (int part = 0; part < Problem::parts; ++part)
#pragma unroll
      for (int g = 0; g < Groups; ++g)
        if (4 * g + lane_ % 4 < n_rows) f(part, g, part * part_ints + g * (part_ints / Groups));
  }

  const Problem& p_;
  shared& s_;
  uint8_t* stages_;
  int32_t* shared_sums_;
  uint32_t* counters_;
  int lane_, warp_;
  band_line line_;
};

} // namespace troupe
