// Activations of a product with a mul1 matrix as two int8 terms: x suh H = q (i + r / 254).          Spec:
// exl3.md 13.4.
#pragma once

#include "gpu/cluster.cuh"
#include "gpu/early_launch.cuh"
#include "gpu/trellis_block.cuh"

namespace troupe {

constexpr int pack_warps = 8, pack_threads = 32 * pack_warps;
constexpr int most_packed_in = 16384; // inputs: exact int32 sums hold up to 16,576 (exl3.md 9.4)
constexpr int most_sharers = 8;       // blocks of a cluster that pack a row together

// What a row is multiplied with afterwards: value = scale / 254 * (254 i + r) summed, and the sum of all of it.
struct row_scale {
  int32_t sum;
  float scale;
};
// The same as its packing leaves it.
struct alignas(16) packed_row {
  int32_t sums[most_sharers]; // of 254 i + r of each block's part; zeros behind
  float scale;                // q; NaN if the row held a value that is no finite number
  __device__ __forceinline__ row_scale load() const {
    const int4 a = reinterpret_cast<const int4*>(sums)[0], b = reinterpret_cast<const int4*>(sums)[1];
    return {a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w, scale};
  }
};

// Codes of up to eight rows for one matrix: (in / 16 tile rows, groups of four rows, 128 bytes), a group's bytes as
// lane l's fragment of four at 4 l: main terms of row j for lanes 8 j .. 8 j + 3, rests for 8 j + 4 .. 8 j + 7, the
// columns k = 0 1 8 9, 2 3 10 11, 4 5 12 13, 6 7 14 15 of the tile row.
__host__ __device__ constexpr int64_t packed_bytes(int in) { return static_cast<int64_t>(in) / 16 * 256; }

// A block's place among those of its cluster, which pack a row together. First statement of a kernel: what others write
// into this block's memory waits for it.
struct row_sharer {
  int rank, n;
  __device__ row_sharer(unsigned block, int n_sharers) : rank(static_cast<int>(block) % n_sharers), n(n_sharers) {
    if (n > 1) cluster_arrive();
  }
};

// Calls f.template operator()<Jobs>(blocks of a row) for stored inputs `in`: Jobs 128-blocks a warp at most. Loads,
// shuffles and stores of a row take one multiprocessor 3 us at 5120 inputs, 7 at 16384 (H200).
template <class F> void with_sharers(int in, int most_cluster, const F& f) {
  const int n_blocks = in / 128;
  const auto sharers = [&](int jobs) {
    return static_cast<unsigned>((n_blocks + jobs * pack_warps - 1) / (jobs * pack_warps));
  };
  if (sharers(2) == 1) return f.template operator()<2>(1U);
  if (static_cast<int>(sharers(1)) <= std::min(most_cluster, most_sharers)) return f.template operator()<1>(sharers(1));
  if (static_cast<int>(sharers(2)) <= std::min(most_cluster, most_sharers)) return f.template operator()<2>(sharers(2));
  f.template operator()<most_packed_in / 128 / pack_warps>(1U);
}

// Packs a row in two steps: suh is loaded at once, for weights depend on no kernel before; the row when it is there.
template <int Jobs> class packing_row {
public:
  __device__ __forceinline__ packing_row(const uint16_t* suh, int in, const row_sharer& me)
      : me_(me), lane_(threadIdx.x % 32), warp_(threadIdx.x / 32), n_blocks_(in / 128),
        first_job_(me.rank * pack_warps + warp_), n_warps_(me.n * pack_warps) {
#pragma unroll
    for (int j = 0; j < Jobs; ++j) {
      const int block = first_job_ + j * n_warps_;
      if (block < n_blocks_) signs_[j] = *reinterpret_cast<const uint2*>(suh + block * 128 + lane_ * 4);
    }
  }
  // Row `x` (in_real elements, zeros behind) as row `place` of `codes`. One scale for the whole row, so that sums over
  // any part of k are exact integers in one unit.
  __device__ __forceinline__ void pack(const float* x, int in_real, uint8_t* codes, int groups, int place,
                                       packed_row* to) {
    transform(x, in_real);
    store(codes, groups, place, to);
  }
  // The two steps of it. x is read from the L2, so that it may be of any kernel whose end the one before has waited
  // for.
  __device__ __forceinline__ void transform(const float* x, int in_real) {
    __shared__ uint32_t tops[most_sharers * pack_warps]; // of all warps of the cluster
    const bool in_fours = in_real == n_blocks_ * 128 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
    uint32_t top = 0;
#pragma unroll
    for (int j = 0; j < Jobs; ++j) {
      const int block = first_job_ + j * n_warps_, first = block * 128 + lane_ * 4;
      if (block >= n_blocks_) break;
      if (in_fours) {
        const float4 four = __ldcg(reinterpret_cast<const float4*>(x + first));
        v_[j][0] = four.x, v_[j][1] = four.y, v_[j][2] = four.z, v_[j][3] = four.w;
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) v_[j][i] = first + i < in_real ? __ldcg(x + first + i) : 0.0F;
      }
    }
#pragma unroll
    for (int j = 0; j < Jobs; ++j) {
      if (first_job_ + j * n_warps_ >= n_blocks_) break;
      v_[j][0] *= f16_bits(static_cast<uint16_t>(signs_[j].x));
      v_[j][1] *= f16_bits(static_cast<uint16_t>(signs_[j].x >> 16));
      v_[j][2] *= f16_bits(static_cast<uint16_t>(signs_[j].y));
      v_[j][3] *= f16_bits(static_cast<uint16_t>(signs_[j].y >> 16));
      warp_hadamard(v_[j], lane_);
#pragma unroll
      for (int i = 0; i < 4; ++i) top = max(top, __float_as_uint(v_[j][i]) & 0x7FFFFFFFU);
    }
    top = __reduce_max_sync(0xFFFFFFFF, top);
    if (me_.n > 1) {
      cluster_wait(); // for their begin
      if (lane_ < me_.n) store_in_block(lane_, &tops[first_job_], top);
      cluster_arrive();
      cluster_wait();
    } else {
      if (lane_ == 0) tops[warp_] = top;
      __syncthreads();
    }
    for (int i = lane_; i < n_warps_; i += 32) top = max(top, tops[i]);
    largest_ = __uint_as_float(__reduce_max_sync(0xFFFFFFFF, top));
  }
  __device__ __forceinline__ void store(uint8_t* codes, int groups, int place, packed_row* to) const {
    __shared__ int32_t sums[pack_warps];
    const float largest = largest_;
    const bool finite = largest < INFINITY; // false for NaN too
    const float by = finite && largest > 0 ? 127.0F / largest : 0.0F;
    int32_t sum = 0;
#pragma unroll
    for (int j = 0; j < Jobs; ++j) {
      const int block = first_job_ + j * n_warps_;
      if (block >= n_blocks_) break;
      uint32_t main = 0, rest = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float t = finite ? v_[j][i] * by : 0.0F;
        const int32_t a = max(-127, min(127, __float2int_rn(t)));
        const int32_t r = max(-127, min(127, __float2int_rn((t - static_cast<float>(a)) * 254.0F)));
        sum += 254 * a + r;
        main |= static_cast<uint32_t>(a & 255) << (8 * i);
        rest |= static_cast<uint32_t>(r & 255) << (8 * i);
      }
      // Four lanes have 16 main terms and 16 rests of a tile row, which lie as 32 bytes: 8 of them each.
      const int tile = block * 8 + lane_ / 4, quarter = lane_ % 4;
      const uint32_t other = __shfl_xor_sync(0xFFFFFFFF, quarter < 2 ? rest : main, 2);
      const uint32_t low = quarter < 2 ? main : other, high = quarter < 2 ? other : rest;
      uint8_t* at = codes + (tile * groups + place / 4) * 128 + place % 4 * 32 + 8 * quarter;
      *reinterpret_cast<uint2*>(at) = {__byte_perm(low, high, 0x5410), __byte_perm(low, high, 0x7632)};
    }
    sum = __reduce_add_sync(0xFFFFFFFF, sum);
    if (lane_ == 0) sums[warp_] = sum;
    __syncthreads();
    if (warp_ > 0) return;
    sum = __reduce_add_sync(0xFFFFFFFF, lane_ < pack_warps ? sums[lane_] : 0);
    if (lane_ == me_.rank || (me_.rank == 0 && lane_ >= me_.n && lane_ < most_sharers))
      to->sums[lane_] = lane_ == me_.rank ? sum : 0;
    if (lane_ == 0 && me_.rank == 0) to->scale = finite ? largest / 127.0F : NAN;
  }

private:
  const row_sharer& me_;
  int lane_, warp_, n_blocks_, first_job_, n_warps_;
  uint2 signs_[Jobs]; // suh of the elements that this thread has
  float v_[Jobs][4];  // transformed
  float largest_ = 0; // of the row
};

} // namespace troupe
