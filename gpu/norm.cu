// Root mean square norm.
#include "gpu/norm.h"

#include "gpu/cuda_check.cuh"
#include "gpu/cuda_ops.h"
#include "gpu/device_math.cuh"
#include "gpu/early_launch.cuh"
#include "gpu/row_grid.cuh"

namespace troupe {
namespace {

// Bound by bytes: x and y once each. Held: a thread has four elements or none, which stay in registers, and the weights
// come with them; else the second look at x comes from the L1 cache. A block owns a row. y may be x: a thread writes
// only elements that it alone reads.
template <bool Fours, bool Held>
__global__ void __launch_bounds__(768)
    rms_norm_kernel(float* y, const float* x, const float* weight, int64_t dim, float eps) {
  fetch_lines(weight, dim * 4, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  begin_in_turn();
  __shared__ float shared[1][device::max_warps];
  const float* in = x + static_cast<int64_t>(blockIdx.x) * dim;
  float* out = y + static_cast<int64_t>(blockIdx.x) * dim;
  const int64_t first = 4 * threadIdx.x, step = 4 * blockDim.x;
  float sum[1] = {0};
  if constexpr (Held) {
    float4 v{}, w{};
    if (first < dim) v = device::load_four<Fours>(in, first, dim), w = device::load_four<Fours>(weight, first, dim);
    if (first < dim) sum[0] = device::fused_squares(v, sum[0]);
    device::block_sums(sum, shared);
    const float by = 1.0F / sqrtf(sum[0] / static_cast<float>(dim) + eps);
    if (first < dim)
      device::store_four<Fours>(out, first, dim, device::each_of(w, v, [=](float a, float b) { return a * (b * by); }));
  } else {
    for (int64_t i = first; i < dim; i += step)
      sum[0] = device::fused_squares(device::load_four<Fours>(in, i, dim), sum[0]);
    device::block_sums(sum, shared);
    const float by = 1.0F / sqrtf(sum[0] / static_cast<float>(dim) + eps);
    for (int64_t i = first; i < dim; i += step) {
      const float4 w = device::load_four<Fours>(weight, i, dim), v = device::load_four<Fours>(in, i, dim);
      device::store_four<Fours>(out, i, dim, device::each_of(w, v, [=](float a, float b) { return a * (b * by); }));
    }
  }
}

} // namespace

void rms_norm_cuda(tensor y, tensor x, tensor weight, float eps, const cuda_lane& lane) {
  const int64_t dim = weight.n_elements(), n_rows = dim == 0 ? 0 : x.n_elements() / dim;
  TROUPE_CHECK(y.n_elements() == x.n_elements() && x.n_elements() == n_rows * dim,
               "a norm keeps the shape of its rows");
  if (n_rows == 0) return;
  const unsigned threads = threads_of_row(dim);
  const bool fours = in_fours(dim, {y.data, x.data, weight.data}), held = dim <= 4 * int64_t{threads};
  const auto kernel = fours ? (held ? rms_norm_kernel<true, true> : rms_norm_kernel<true, false>)
                            : (held ? rms_norm_kernel<false, true> : rms_norm_kernel<false, false>);
  launch_early(kernel, static_cast<unsigned>(n_rows), threads, 0, lane.on, "rms_norm", y.f32(), x.f32(), weight.f32(),
               dim, eps);
}

} // namespace troupe
