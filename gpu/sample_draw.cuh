// The draw of a row from its histogram: the one order's k-th item, the end of the nucleus and the token are each the
// first item at which a count or a mass passes a mark. For sample.cu.
#pragma once

#include "gpu/sample_device.cuh"

namespace troupe::device {

inline constexpr int draw_threads = 1024;
inline constexpr int draw_items = 1024; // of a bin that are compared with each other

// A mark on the way down the one order.
struct draw_mark {
  enum kind : uint8_t { count_reaches, mass_reaches, mass_passes } how;
  double at;
  __device__ bool holds(uint64_t mass, uint64_t count) const {
    if (how == count_reaches) return static_cast<double>(count) >= at;
    return how == mass_reaches ? static_cast<double>(mass) >= at : static_cast<double>(mass) > at;
  }
};

// The sums of a row's histogram, by a block of Threads. In shared memory.
struct bin_sums {
  uint64_t mass_upto[sample_bins]; // inclusive
  uint32_t count_upto[sample_bins];
  uint64_t warp_mass[max_warps];
  uint32_t warp_count[max_warps];
  int found;

  template <int Threads> __device__ void load(const uint64_t* mass, const uint32_t* count) {
    constexpr int own = sample_bins / Threads;
    const int lane = static_cast<int>(threadIdx.x) % warp_lanes, warp = static_cast<int>(threadIdx.x) / warp_lanes;
    const int first = static_cast<int>(threadIdx.x) * own;
    uint64_t own_mass[own], m = 0;
    uint32_t own_count[own], c = 0;
#pragma unroll
    for (int i = 0; i < own; ++i) m += own_mass[i] = mass[first + i], c += own_count[i] = count[first + i];
    const uint64_t of_thread = m;
    const uint32_t count_of_thread = c;
    for (int step = 1; step < warp_lanes; step *= 2) {
      const uint64_t other_mass = __shfl_up_sync(all_lanes, m, step);
      const uint32_t other_count = __shfl_up_sync(all_lanes, c, step);
      if (lane >= step) m += other_mass, c += other_count;
    }
    if (lane == warp_lanes - 1) warp_mass[warp] = m, warp_count[warp] = c;
    __syncthreads();
    m -= of_thread, c -= count_of_thread;
    for (int w = 0; w < warp; ++w) m += warp_mass[w], c += warp_count[w];
#pragma unroll
    for (int i = 0; i < own; ++i) {
      m += own_mass[i], c += own_count[i];
      mass_upto[first + i] = m, count_upto[first + i] = c;
    }
    __syncthreads();
  }

  // The first bin up to which `mark` holds, the last one where it never does. All threads call it.
  template <int Threads> __device__ int first_bin(const draw_mark& mark) {
    if (threadIdx.x == 0) found = sample_bins - 1;
    __syncthreads();
    for (int b = static_cast<int>(threadIdx.x); b < sample_bins; b += Threads)
      if (mark.holds(mass_upto[b], count_upto[b]) && (b == 0 || !mark.holds(mass_upto[b - 1], count_upto[b - 1])))
        found = b;
    __syncthreads();
    const int bin = found;
    __syncthreads();
    return bin;
  }

  // draw_token looks for no item of a later bin: that of top_k is the last of them, else the end of the nucleus.
  template <int Threads> __device__ int last_bin(const sample_row& rules) {
    if (rules.top_k > 0 && static_cast<uint32_t>(rules.top_k) < count_upto[sample_bins - 1])
      return first_bin<Threads>({draw_mark::count_reaches, static_cast<double>(rules.top_k)});
    if (rules.top_p >= 1) return sample_bins - 1;
    const double all = static_cast<double>(mass_upto[sample_bins - 1]);
    return first_bin<Threads>({draw_mark::mass_reaches, static_cast<double>(rules.top_p) * all});
  }
};

struct draw_place {
  uint64_t place, mass; // the item, and the mass up to and with it
};

// A block owns a row. Bound by the latency of a dozen steps: it reads the histogram and the items of two or three bins.
class row_draw {
public:
  struct shared {
    bin_sums sums;
    uint64_t place[draw_items], mass[draw_items];
    uint64_t digit_mass[256], digit_base;
    uint32_t digit_count[256], digit_count_base;
    uint64_t found_place, found_mass;
    int digit;
    uint32_t n;
  };

  // sorted: places of the kept items, bin after bin.
  __device__ row_draw(shared& memory, const uint64_t* sorted, const row_scale& scale)
      : s_(memory), sorted_(sorted), scale_(scale) {}

  __device__ uint64_t total_mass() const { return s_.sums.mass_upto[sample_bins - 1]; }
  __device__ uint32_t total_count() const { return s_.sums.count_upto[sample_bins - 1]; }

  __device__ void load(const uint64_t* mass, const uint32_t* count) { s_.sums.load<draw_threads>(mass, count); }

  // The first item of the kept ones at which `mark` holds; if rounding leaves none, the last item. Precondition: there
  // are kept ones. All threads call it and get the same.
  __device__ draw_place find(draw_mark mark) {
    if (!mark.holds(total_mass(), total_count())) mark = {draw_mark::count_reaches, static_cast<double>(total_count())};
    const int bin = s_.sums.first_bin<draw_threads>(mark);
    uint64_t base_mass = bin > 0 ? s_.sums.mass_upto[bin - 1] : 0, prefix = 0, known = 0;
    uint32_t base_count = bin > 0 ? s_.sums.count_upto[bin - 1] : 0, n = s_.sums.count_upto[bin] - base_count;
    // Many items of one bin are narrowed down by eight bits of their place a time.
    for (int shift = 56; n > draw_items; shift -= 8) {
      count_digits(bin, prefix, known, shift);
      if (threadIdx.x == 0) choose_digit(mark, base_mass, base_count);
      __syncthreads();
      base_mass = s_.digit_base, base_count = s_.digit_count_base, n = s_.digit_count[s_.digit];
      prefix |= static_cast<uint64_t>(s_.digit) << shift, known |= uint64_t{255} << shift;
      __syncthreads();
    }
    gather(bin, prefix, known);
    return first_of_gathered(mark, base_mass, base_count, static_cast<int>(n));
  }

private:
  // Calls f(place, log weight) for the kept items of a bin whose known bits are those of `prefix`.
  template <class F> __device__ void each_item(int bin, uint64_t prefix, uint64_t known, const F& f) const {
    const uint32_t end = s_.sums.count_upto[bin];
#pragma unroll 4
    for (uint32_t i = (bin > 0 ? s_.sums.count_upto[bin - 1] : 0) + threadIdx.x; i < end; i += draw_threads) {
      const uint64_t place = sorted_[i];
      if ((place & known) == prefix) f(place, scale_.log_weight(logit_of(place)));
    }
  }

  __device__ void count_digits(int bin, uint64_t prefix, uint64_t known, int shift) {
    if (threadIdx.x < 256) s_.digit_mass[threadIdx.x] = 0, s_.digit_count[threadIdx.x] = 0;
    __syncthreads();
    each_item(bin, prefix, known, [&](uint64_t place, double weight) {
      const int digit = static_cast<int>(place >> shift & 255);
      atomicAdd(s_.digit_count + digit, 1U);
      atomicAdd(reinterpret_cast<unsigned long long*>(s_.digit_mass + digit), scale_.mass_of(weight));
    });
    __syncthreads();
  }

  // Larger digits come first. One thread; the mark holds behind the last of them.
  __device__ void choose_digit(const draw_mark& mark, uint64_t mass, uint32_t count) {
    int digit = 255;
    while (digit > 0 && !mark.holds(mass + s_.digit_mass[digit], count + s_.digit_count[digit]))
      mass += s_.digit_mass[digit], count += s_.digit_count[digit], --digit;
    s_.digit = digit, s_.digit_base = mass, s_.digit_count_base = count;
  }

  __device__ void gather(int bin, uint64_t prefix, uint64_t known) {
    if (threadIdx.x == 0) s_.n = 0, s_.found_place = 0;
    __syncthreads();
    each_item(bin, prefix, known, [&](uint64_t place, double weight) {
      const uint32_t at = atomicAdd(&s_.n, 1U);
      s_.place[at] = place, s_.mass[at] = scale_.mass_of(weight);
    });
    __syncthreads();
  }

  // A thread an item: the sums over what comes before it, in any order since they are whole numbers.
  __device__ draw_place first_of_gathered(const draw_mark& mark, uint64_t mass, uint64_t count, int n) {
    uint64_t candidate = 0;
    if (static_cast<int>(threadIdx.x) < n) {
      const uint64_t mine = s_.place[threadIdx.x];
#pragma unroll 4
      for (int j = 0; j < n; ++j) {
        const bool before = s_.place[j] >= mine;
        mass += before ? s_.mass[j] : 0, count += before ? 1 : 0;
      }
      if (mark.holds(mass, count)) candidate = mine;
    }
    const uint64_t of_warp = lanes_largest(candidate);
    if (threadIdx.x % warp_lanes == 0 && of_warp != 0)
      atomicMax(reinterpret_cast<unsigned long long*>(&s_.found_place), static_cast<unsigned long long>(of_warp));
    __syncthreads();
    if (candidate != 0 && candidate == s_.found_place) s_.found_mass = mass;
    __syncthreads();
    const draw_place found{s_.found_place, s_.found_mass};
    __syncthreads();
    return found;
  }

  shared& s_;
  const uint64_t* sorted_;
  row_scale scale_;
};

// api.md 2.1: top_k, then the shortest prefix that holds top_p of its mass, then the draw.
__device__ inline uint64_t draw_token(row_draw& row, const sample_row& rules) {
  uint64_t total = row.total_mass();
  if (rules.top_k > 0 && static_cast<uint32_t>(rules.top_k) < row.total_count())
    total = row.find({draw_mark::count_reaches, static_cast<double>(rules.top_k)}).mass;
  if (rules.top_p < 1)
    total = row.find({draw_mark::mass_reaches, static_cast<double>(rules.top_p) * static_cast<double>(total)}).mass;
  const double unit = random_unit(rules.seed, rules.choice, rules.position);
  return row.find({draw_mark::mass_passes, unit * static_cast<double>(total)}).place;
}

} // namespace troupe::device
