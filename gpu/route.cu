// Choice of experts from the gate's outputs.
#include "gpu/cuda_check.cuh"
#include "gpu/cuda_ops.h"
#include "gpu/early_launch.cuh"
#include "gpu/order.cuh"

namespace troupe {
namespace {

using namespace device;

constexpr int route_warps = 4;         // rows of a block
constexpr int64_t most_experts = 1024; // of a layer: 32 a lane

__device__ float softplus(float v) { return v > 20 ? v : log1pf(expf(v)); }

struct route_args {
  int32_t* ids;
  float* weights;
  const float *logits, *bias, *bias_vl;
  const int32_t* vl;
  int64_t n_rows;
  int n_experts, k;
  float scale;
};

// A warp owns a row, a lane every 32nd expert: 384 of them are 12 a lane, the 6 best are 6 turns of finding the largest
// of what is left. Bound by latency, so all is read at once and stays in registers. The order of an expert counts its
// score, then the lower id; what was chosen has none.
template <int Items> __global__ void __launch_bounds__(route_warps* warp_lanes) route_kernel(route_args a) {
  fetch_lines(a.bias, a.n_experts * int64_t{4}, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  begin_in_turn();
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * route_warps + threadIdx.x / warp_lanes;
  if (r >= a.n_rows) return;
  const float* by = a.vl != nullptr && a.bias_vl != nullptr && a.vl[r] != 0 ? a.bias_vl : a.bias;
  float score[Items], bias[Items];
#pragma unroll
  for (int i = 0; i < Items; ++i) {
    const int e = i * warp_lanes + lane;
    score[i] = e < a.n_experts ? a.logits[r * a.n_experts + e] : 0.0F;
    bias[i] = e < a.n_experts ? by[e] : 0.0F;
  }
  uint32_t order[Items];
#pragma unroll
  for (int i = 0; i < Items; ++i) {
    score[i] = sqrtf(softplus(score[i]));
    order[i] = i * warp_lanes + lane < a.n_experts ? order_of(score[i] + bias[i]) : 0;
  }
  float sum = 0, own = 0; // own: lane j has weight j of the first 32
  for (int j = 0; j < a.k; ++j) {
    uint32_t top = 0, mine = UINT32_MAX; // mine: the lowest id of that order
#pragma unroll
    for (int i = 0; i < Items; ++i) top = max(top, order[i]);
    top = __reduce_max_sync(all_lanes, top);
#pragma unroll
    for (int i = Items - 1; i >= 0; --i)
      if (order[i] == top) mine = static_cast<uint32_t>(i * warp_lanes + lane);
    const auto e = static_cast<int>(__reduce_min_sync(all_lanes, mine));
    float weight = 0;
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (i * warp_lanes + lane == e) weight = score[i], order[i] = 0;
    weight = __shfl_sync(all_lanes, weight, e % warp_lanes);
    sum += weight;
    if (j % warp_lanes != lane) continue;
    a.ids[r * a.k + j] = e;
    if (j < warp_lanes)
      own = weight;
    else
      a.weights[r * a.k + j] = weight;
  }
  if (lane < a.k) a.weights[r * a.k + lane] = own / (sum + 1e-20F) * a.scale;
  for (int64_t j = r * a.k + lane + warp_lanes; j < (r + 1) * a.k; j += warp_lanes)
    a.weights[j] = a.weights[j] / (sum + 1e-20F) * a.scale;
}

} // namespace

void route_cuda(tensor ids, tensor weights, tensor score, tensor bias, tensor bias_vl, tensor vl, float scale,
                const cuda_lane& lane) {
  const int64_t n_rows = ids.shape[0], k = ids.shape[1];
  if (n_rows == 0) return;
  const int64_t n_experts = score.row_elements();
  TROUPE_CHECK(n_experts <= most_experts, "a layer has at most 1024 experts");
  TROUPE_CHECK(k <= n_experts, "no more experts are chosen than there are");
  const route_args a{ids.i32(),
                     weights.f32(),
                     score.f32(),
                     bias.f32(),
                     bias_vl ? bias_vl.f32() : nullptr,
                     vl ? vl.i32() : nullptr,
                     n_rows,
                     static_cast<int>(n_experts),
                     static_cast<int>(k),
                     scale};
  const auto kernel = n_experts <= 64 ? route_kernel<2> : n_experts <= 384 ? route_kernel<12> : route_kernel<32>;
  launch_early(kernel, static_cast<unsigned>((n_rows + route_warps - 1) / route_warps), route_warps * warp_lanes, 0,
               lane.on, "route", a);
}

} // namespace troupe
