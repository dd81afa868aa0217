// Choice of experts from the gate's outputs.
#include "gpu/cuda_check.cuh"
#include "gpu/cuda_ops.h"
#include "gpu/early_launch.cuh"
#include "gpu/order.cuh"

#include <algorithm>

namespace troupe {
namespace {

using namespace device;

constexpr int64_t shared_floats = 12 * 1024; // 48 KB, what a block has without asking

__device__ float softplus(float v) { return v > 20 ? v : log1pf(expf(v)); }

// A warp owns a row: 384 experts are 12 a lane, the 6 best are 6 turns of finding the largest of what is left. Bound by
// latency. The order of an expert counts its score, then the lower id; what was chosen has none.
__global__ void route_kernel(int32_t* ids, float* weights, float* score, const float* bias, const float* bias_vl,
                             const int32_t* vl, int64_t n_rows, int n_experts, int k, float scale) {
  begin_in_turn();
  extern __shared__ uint32_t shared[];
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * (blockDim.x / warp_lanes) + warp;
  if (r >= n_rows) return;
  uint32_t* order = shared + warp * n_experts;
  float* of = score + r * n_experts;
  const float* by = vl != nullptr && bias_vl != nullptr && vl[r] != 0 ? bias_vl : bias;
  for (int e = lane; e < n_experts; e += warp_lanes) {
    const float s = sqrtf(softplus(of[e]));
    of[e] = s;
    order[e] = order_of(s + by[e]);
  }
  float sum = 0;
  for (int j = 0; j < k; ++j) {
    uint64_t best = 0;
    for (int e = lane; e < n_experts; e += warp_lanes)
      best = max(best, static_cast<uint64_t>(order[e]) << 32 | ~static_cast<uint32_t>(e));
    for (int step = warp_lanes / 2; step > 0; step /= 2)
      best = max(best, static_cast<uint64_t>(__shfl_xor_sync(all_lanes, static_cast<unsigned long long>(best), step)));
    const int e = static_cast<int>(~static_cast<uint32_t>(best));
    if (e % warp_lanes == lane) { // its own lane wrote and reads both
      order[e] = 0;
      ids[r * k + j] = e;
      weights[r * k + j] = of[e];
    }
    sum += __shfl_sync(all_lanes, e % warp_lanes == lane ? of[e] : 0.0F, e % warp_lanes);
  }
  __syncwarp();
  for (int j = lane; j < k; j += warp_lanes) weights[r * k + j] = weights[r * k + j] / (sum + 1e-20F) * scale;
}

} // namespace

void route_cuda(tensor ids, tensor weights, tensor score, tensor bias, tensor bias_vl, tensor vl, float scale,
                const cuda_lane& lane) {
  const int64_t n_rows = ids.shape[0], k = ids.shape[1];
  if (n_rows == 0) return;
  const int64_t n_experts = score.row_elements();
  TROUPE_CHECK(k <= n_experts, "no more experts are chosen than there are");
  TROUPE_CHECK(n_experts <= shared_floats, "a row of scores fits into a block's memory");
  const int64_t warps = std::clamp<int64_t>(shared_floats / n_experts, 1, 4);
  launch_early(route_kernel, static_cast<unsigned>((n_rows + warps - 1) / warps),
               static_cast<unsigned>(warps * warp_lanes), static_cast<size_t>(warps * n_experts) * sizeof(uint32_t),
               lane.on, "route", ids.i32(), weights.f32(), score.f32(), bias.f32(), bias_vl ? bias_vl.f32() : nullptr,
               vl ? vl.i32() : nullptr, n_rows, static_cast<int>(n_experts), static_cast<int>(k), scale);
}

} // namespace troupe
