// What the kernels of sample.cu share: keys, masses, bins, the keyed random number. For .cu files only.
#pragma once

#include "gpu/order.cuh"
#include "gpu/sample.h"

namespace troupe::device {

inline constexpr int sample_bins = 2048;
inline constexpr int sample_parts = 64;    // of a row, at most: 84 us a row with 16 and no sort, 41 us (H200)
inline constexpr int sample_threads = 512; // of a block that owns a part

// Larger first, equal logits by ascending id: the one order of the chain, descending in this number.
__device__ inline uint64_t place_of(float logit, int64_t id) {
  return static_cast<uint64_t>(order_of(logit)) << 32 | (0xFFFFFFFFU - static_cast<uint32_t>(id));
}
__device__ inline int32_t id_of(uint64_t place) {
  return static_cast<int32_t>(0xFFFFFFFFU - static_cast<uint32_t>(place));
}
__device__ inline float logit_of(uint64_t place) {
  const auto order = static_cast<uint32_t>(place >> 32);
  return __uint_as_float((order & 0x80000000U) != 0 ? order ^ 0x80000000U : ~order);
}

// What a part of a row found after masks and edits.
struct part_state {
  uint64_t best;    // largest place; 0: nothing that is above -infinity
  float least;      // smallest finite logit
  uint32_t unsound; // 1: NaN or +infinity among the raw logits
};

// The arguments of all kernels of a slab of rows.
struct sample_view {
  float* logits;   // (rows, n)
  int64_t n, part; // vocabulary; ids of a part
  int n_parts;     // of a row
  int mass_bits;   // masses are multiples of 2^-mass_bits
  const sample_row* rules;
  logit_edit* edits;
  const uint32_t* masks;
  int32_t* ids;
  float* logprobs;   // or nullptr
  part_state* parts; // (rows, n_parts)
  uint64_t* mass;    // (rows, bins) of what is kept
  uint32_t* count;   // (rows, bins)
  uint32_t* taken;   // (rows, bins): places that `sorted` has of a bin
  uint64_t* sorted;  // (rows, n): places of what is kept, bin after bin, in any order within one
  double* raw_parts; // (rows, n_parts, 2): largest, sum of exp(logit - largest)
  double* log_total; // (rows) log(sum(exp(raw logits)))
};

// The ids of this block.
struct part_range {
  int64_t first, end;
  __device__ explicit part_range(const sample_view& v) : first(blockIdx.x * v.part), end(min(v.n, first + v.part)) {}
  __device__ bool holds(int64_t id) const { return id >= first && id < end; }
};

// Weights of a row and their bins. Bins ascend as logits descend, so a bin holds neighbours of the one order.
struct row_scale {
  float best, bins_a_unit;
  double temperature, least_log_weight, unit_mass;

  __device__ row_scale(const sample_row& rules, float best_logit, float least_logit, int mass_bits)
      : best(best_logit), temperature(fmaxf(rules.temperature, 0.01F)), least_log_weight(rules.least_log_weight),
        unit_mass(static_cast<double>(uint64_t{1} << mass_bits)) {
    // The range of what may be kept, if all of it is there.
    const float widest = static_cast<float>(-least_log_weight * temperature);
    const float by = static_cast<float>(sample_bins - 1) / fminf(widest, best - least_logit);
    bins_a_unit = by < 1e30F ? by : 0.0F; // one value only: one bin
  }
  __device__ int bin_of(float logit) const {
    return min(sample_bins - 1, static_cast<int>((best - logit) * bins_a_unit));
  }
  __device__ double log_weight(float logit) const {
    return (static_cast<double>(logit) - static_cast<double>(best)) / temperature;
  }
  __device__ uint64_t mass_of(double log_weight) const {
    return static_cast<uint64_t>(__double2ull_rn(exp(log_weight) * unit_mass));
  }
};

// Philox4x32-10 as model/philox.h has it: a number in [0, 1) with 53 bits.
__device__ inline double random_unit(uint64_t seed, int32_t choice, int64_t position) {
  uint32_t c0 = static_cast<uint32_t>(position), c1 = static_cast<uint32_t>(static_cast<uint64_t>(position) >> 32),
           c2 = static_cast<uint32_t>(choice), c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint32_t a_high = __umulhi(0xD2511F53U, c0), a_low = 0xD2511F53U * c0;
    const uint32_t b_high = __umulhi(0xCD9E8D57U, c2), b_low = 0xCD9E8D57U * c2;
    c0 = b_high ^ c1 ^ k0, c1 = b_low, c2 = a_high ^ c3 ^ k1, c3 = a_low;
    k0 += 0x9E3779B9U, k1 += 0xBB67AE85U;
  }
  return static_cast<double>(static_cast<uint64_t>(c0) << 21 | c1 >> 11) * 0x1p-53;
}

__device__ inline uint64_t lanes_largest(uint64_t x) {
  for (int step = warp_lanes / 2; step > 0; step /= 2) {
    const uint64_t other = __shfl_xor_sync(all_lanes, x, step);
    x = other > x ? other : x;
  }
  return x;
}

} // namespace troupe::device
