// Sampling on the device: parts of rows are masked, edited and measured, weighed into bins, sorted by bin, then a block
// a row draws.
#include "gpu/cuda_check.cuh"
#include "gpu/cuda_lane.h"
#include "gpu/early_launch.cuh"
#include "gpu/sample_draw.cuh"
#include "gpu/sample_logprobs.cuh"
#include "storage/check.h"

#include <bit>
#include <cmath>

namespace troupe {
namespace {

using namespace device;

__device__ bool is_allowed(const sample_view& v, int32_t mask, int64_t id) {
  return mask < 0 || (v.masks[mask * ((v.n + 31) / 32) + id / 32] >> (id % 32) & 1U) != 0;
}
__device__ bool is_unsound(float raw) { return !(raw <= 3.402823466e38F); }

// Keeps a finite logit finite, so that no penalty bans a token by overflow.
__device__ float bounded(float logit, float value) {
  if (!isfinite(logit)) return logit;
  return fminf(fmaxf(value, -3.402823466e38F), 3.402823466e38F);
}

__device__ float edited(const logit_edit& e, const sample_row& rules, float raw, bool allowed) {
  if ((e.what & logit_edit::ban) != 0) return -INFINITY;
  float logit = allowed || (e.what & logit_edit::lift) != 0 ? raw : -INFINITY;
  logit += e.bias;
  if ((e.what & logit_edit::repeated) != 0 && rules.repetition_penalty != 1)
    logit = bounded(logit, logit > 0 ? logit / rules.repetition_penalty : logit * rules.repetition_penalty);
  if ((e.what & logit_edit::generated) != 0)
    logit = bounded(logit, logit - rules.frequency_penalty * static_cast<float>(e.count) - rules.presence_penalty);
  return logit;
}

// Masks and edits of a part, in place. Returns whether a raw logit of those it looked at is unsound.
__device__ bool change_part(const sample_view& v, const sample_row& rules, float* logits, const part_range& ids) {
  bool unsound = false;
  logit_edit* edits = v.edits + rules.first_edit;
  for (int e = static_cast<int>(threadIdx.x); e < rules.n_edits; e += sample_threads) {
    const int64_t id = edits[e].id;
    if (!ids.holds(id)) continue;
    const float raw = logits[id];
    unsound |= is_unsound(raw);
    edits[e].raw = raw;
    edits[e].value = edited(edits[e], rules, raw, is_allowed(v, rules.mask, id));
  }
  __syncthreads();
  if (rules.mask >= 0)
    for (int64_t id = ids.first + threadIdx.x; id < ids.end; id += sample_threads)
      if (!is_allowed(v, rules.mask, id)) {
        unsound |= is_unsound(logits[id]);
        logits[id] = -INFINITY;
      }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < rules.n_edits; e += sample_threads)
    if (ids.holds(edits[e].id)) logits[edits[e].id] = edits[e].value;
  __syncthreads();
  return unsound;
}

// Grid (parts, rows): a block owns a part. Bound by the bytes of the logits, which the head left in L2.
__global__ void __launch_bounds__(sample_threads) sample_parts_kernel(sample_view v) {
  begin_in_turn();
  __shared__ part_state of_warp[sample_threads / warp_lanes];
  const int64_t row = blockIdx.y;
  const sample_row rules = v.rules[row];
  const part_range ids(v);
  float* logits = v.logits + row * v.n;
  for (int i = static_cast<int>(blockIdx.x) * sample_threads + static_cast<int>(threadIdx.x); i < sample_bins;
       i += v.n_parts * sample_threads)
    v.mass[row * sample_bins + i] = 0, v.count[row * sample_bins + i] = 0, v.taken[row * sample_bins + i] = 0;
  bool unsound = change_part(v, rules, logits, ids);
  uint64_t best = 0;
  float least = INFINITY;
#pragma unroll 4
  for (int64_t id = ids.first + threadIdx.x; id < ids.end; id += sample_threads) {
    const float logit = logits[id];
    unsound |= is_unsound(logit);
    if (!(logit > -INFINITY)) continue;
    best = max(best, place_of(logit, id));
    least = fminf(least, logit);
  }
  best = lanes_largest(best);
  least = -lanes_max(-least);
  unsound = __any_sync(all_lanes, unsound) != 0;
  if (threadIdx.x % warp_lanes == 0) of_warp[threadIdx.x / warp_lanes] = {best, least, unsound ? 1U : 0U};
  __syncthreads();
  if (threadIdx.x != 0) return;
  part_state all = of_warp[0];
  for (int w = 1; w < sample_threads / warp_lanes; ++w) {
    all.best = max(all.best, of_warp[w].best);
    all.least = fminf(all.least, of_warp[w].least);
    all.unsound |= of_warp[w].unsound;
  }
  v.parts[row * v.n_parts + blockIdx.x] = all;
}

// What the parts of a row found together. Whole warps call it.
__device__ part_state whole_row(const sample_view& v, int64_t row) {
  part_state all{0, INFINITY, 0};
  for (int p = static_cast<int>(threadIdx.x) % warp_lanes; p < v.n_parts; p += warp_lanes) {
    const part_state other = v.parts[row * v.n_parts + p];
    all.best = max(all.best, other.best);
    all.least = fminf(all.least, other.least);
    all.unsound |= other.unsound;
  }
  all.best = lanes_largest(all.best);
  all.least = -lanes_max(-all.least);
  all.unsound = __any_sync(all_lanes, all.unsound != 0) != 0 ? 1U : 0U;
  return all;
}

// Whether a row has a choice to make.
__device__ bool draws(const part_state& all, const sample_row& rules) {
  return all.unsound == 0 && all.best != 0 && rules.temperature != 0;
}

// Grid (parts, rows). Bound by the f64 exponentials: about 60 f64 instructions an id, 4 us for 8 rows of 129280 on an
// H200 if all of them are kept.
__global__ void __launch_bounds__(sample_threads) sample_bins_kernel(sample_view v) {
  begin_in_turn();
  __shared__ uint64_t mass[sample_bins];
  __shared__ uint32_t count[sample_bins];
  const int64_t row = blockIdx.y;
  const part_state all = whole_row(v, row);
  if (!draws(all, v.rules[row])) return;
  const row_scale scale(v.rules[row], logit_of(all.best), all.least, v.mass_bits);
  for (int i = static_cast<int>(threadIdx.x); i < sample_bins; i += sample_threads) mass[i] = 0, count[i] = 0;
  __syncthreads();
  const part_range ids(v);
#pragma unroll 4
  for (int64_t id = ids.first + threadIdx.x; id < ids.end; id += sample_threads) {
    const float logit = v.logits[row * v.n + id];
    const double weight = scale.log_weight(logit);
    if (!(weight >= scale.least_log_weight)) continue;
    const int bin = scale.bin_of(logit);
    atomicAdd(count + bin, 1U);
    atomicAdd(reinterpret_cast<unsigned long long*>(mass + bin), scale.mass_of(weight));
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < sample_bins; i += sample_threads) {
    if (count[i] == 0) continue;
    atomicAdd(v.count + row * sample_bins + i, count[i]);
    atomicAdd(reinterpret_cast<unsigned long long*>(v.mass + row * sample_bins + i), mass[i]);
  }
}

// Grid (parts, rows): the places of what may be drawn, each behind the places of all bins before its own. Bound by the
// atomics, hence no bin behind the nucleus.
__global__ void __launch_bounds__(sample_threads) sample_sort_kernel(sample_view v) {
  begin_in_turn();
  __shared__ bin_sums sums;
  const int64_t row = blockIdx.y;
  const part_state all = whole_row(v, row);
  const sample_row rules = v.rules[row];
  if (!draws(all, rules)) return;
  sums.load<sample_threads>(v.mass + row * sample_bins, v.count + row * sample_bins);
  const int last = sums.last_bin<sample_threads>(rules);
  const row_scale scale(rules, logit_of(all.best), all.least, v.mass_bits);
  const part_range ids(v);
  uint32_t* taken = v.taken + row * sample_bins;
#pragma unroll 4
  for (int64_t id = ids.first + threadIdx.x; id < ids.end; id += sample_threads) {
    const float logit = v.logits[row * v.n + id];
    if (!(scale.log_weight(logit) >= scale.least_log_weight)) continue;
    const int bin = scale.bin_of(logit);
    if (bin > last) continue;
    const uint32_t before = bin > 0 ? sums.count_upto[bin - 1] : 0;
    v.sorted[row * v.n + before + atomicAdd(taken + bin, 1U)] = place_of(logit, id);
  }
}

// The logit of an id as it was before masks and edits; all threads call it. An id that was drawn is not masked.
__device__ float raw_logit(const sample_view& v, const sample_row& rules, int64_t row, int32_t id) {
  __shared__ float raw;
  if (threadIdx.x == 0) raw = v.logits[row * v.n + id];
  __syncthreads();
  const logit_edit* edits = v.edits + rules.first_edit;
  for (int e = static_cast<int>(threadIdx.x); e < rules.n_edits; e += draw_threads)
    if (edits[e].id == id) raw = edits[e].raw;
  __syncthreads();
  return raw;
}

// A block a row.
__global__ void __launch_bounds__(draw_threads) sample_draw_kernel(sample_view v) {
  begin_in_turn();
  __shared__ row_draw::shared memory;
  const int64_t row = blockIdx.x;
  const part_state all = whole_row(v, row);
  const sample_row rules = v.rules[row];
  int32_t id = all.unsound != 0 ? sample_unsound : sample_all_masked;
  if (all.unsound == 0 && all.best != 0) {
    uint64_t place = all.best;
    if (draws(all, rules)) {
      row_draw draw(memory, v.sorted + row * v.n, row_scale(rules, logit_of(all.best), all.least, v.mass_bits));
      draw.load(v.mass + row * sample_bins, v.count + row * sample_bins);
      place = draw_token(draw, rules);
    }
    id = id_of(place);
  }
  if (threadIdx.x == 0) v.ids[row] = id;
  if (v.logprobs == nullptr) return;
  const float raw = id < 0 ? quiet_nan() : raw_logit(v, rules, row, id);
  if (threadIdx.x == 0) v.logprobs[row] = static_cast<float>(static_cast<double>(raw) - v.log_total[row]);
}

// Scratch of a slab of rows, laid out in this order.
struct sample_scratch {
  int64_t used = 0;
  std::byte* base;
  template <class T> T* take(int64_t n) {
    auto* at = reinterpret_cast<T*>(base + used);
    used += (n * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return at;
  }
};

struct best_scratch {
  int32_t* chosen;
  uint32_t* between;
};

best_scratch cut(sample_view& v, sample_scratch& from, int64_t rows, int64_t n_best) {
  v.parts = from.take<part_state>(rows * v.n_parts);
  v.mass = from.take<uint64_t>(rows * sample_bins);
  v.count = from.take<uint32_t>(rows * sample_bins);
  v.taken = from.take<uint32_t>(rows * sample_bins);
  v.sorted = from.take<uint64_t>(rows * v.n);
  v.raw_parts = from.take<double>(rows * v.n_parts * 2);
  v.log_total = from.take<double>(rows);
  auto* chosen = from.take<int32_t>(rows * n_best);
  return {chosen, from.take<uint32_t>(rows * 2 * survivors(v.n, n_best))};
}

void sample_slab(const sample_args& a, sample_view v, int64_t first, int64_t rows, const cuda_lane& lane) {
  const int64_t n_best = a.best_ids ? a.best_ids.shape[1] : 0;
  sample_scratch scratch{0, lane.scratch};
  const best_scratch best = cut(v, scratch, rows, n_best);
  v.logits = a.logits.f32() + first * v.n;
  v.rules = a.rows + first;
  v.ids = a.ids.i32() + first;
  v.logprobs = a.logprobs ? a.logprobs.f32() + first : nullptr;
  const dim3 grid(static_cast<unsigned>(v.n_parts), static_cast<unsigned>(rows));
  const auto blocks = static_cast<unsigned>(rows);
  if (a.logprobs || n_best > 0) {
    raw_parts_kernel<<<grid, sample_threads, 0, lane.on>>>(v);
    cuda_check_launch("sample: sums of raw logits");
    select_best(raw_items{v.logits, v.n}, rows, v.n, best.chosen, n_best, best.between, lane.on);
    rank_best_kernel<<<blocks, 128, 0, lane.on>>>(v, best.chosen, static_cast<int>(n_best),
                                                  n_best > 0 ? a.best_ids.i32() + first * n_best : nullptr,
                                                  n_best > 0 ? a.best_logprobs.f32() + first * n_best : nullptr);
    cuda_check_launch("sample: best of raw logits");
  }
  launch_early(sample_parts_kernel, grid, sample_threads, 0, lane.on, "sample: masks and edits", v);
  launch_early(sample_bins_kernel, grid, sample_threads, 0, lane.on, "sample: bins", v);
  launch_early(sample_sort_kernel, grid, sample_threads, 0, lane.on, "sample: places", v);
  launch_early(sample_draw_kernel, blocks, draw_threads, 0, lane.on, "sample: draw", v);
}

} // namespace

void sample_cuda(const sample_args& a, const cuda_lane& lane) {
  const int64_t n_rows = a.ids.n_elements();
  if (n_rows == 0) return;
  sample_view v{};
  v.n = a.logits.n_elements() / n_rows;
  TROUPE_CHECK(v.n > 0 && v.n < (int64_t{1} << 30), "a vocabulary has ids of 30 bits");
  v.n_parts = static_cast<int>(std::clamp<int64_t>(v.n / 1024, 1, sample_parts));
  v.part = (v.n + v.n_parts - 1) / v.n_parts;
  v.mass_bits = 62 - std::bit_width(static_cast<uint64_t>(v.n - 1));
  v.edits = a.edits;
  v.masks = a.masks;
  sample_scratch one{0, lane.scratch};
  cut(v, one, 1, a.best_ids ? a.best_ids.shape[1] : 0);
  const int64_t slab = std::min<int64_t>({n_rows, lane.scratch_bytes / one.used, 65535});
  TROUPE_CHECK(slab > 0, "the scratch of a lane holds the bins and places of a row");
  for (int64_t first = 0; first < n_rows; first += slab) sample_slab(a, v, first, std::min(slab, n_rows - first), lane);
}

} // namespace troupe
