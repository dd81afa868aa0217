// Linears on the device: EXL3 goes to its own kernels, the rest is decoded element by element on the way.
#include "gpu/cuda_check.cuh"
#include "gpu/plain_weights.cuh"
#include "gpu/trellis_block.cuh"
#include "gpu/trellis_gemm.h"
#include "gpu/trellis_gemv.h"

#include <algorithm>

namespace troupe {
namespace {

constexpr int plain_rows = 8, plain_warps = 8;

// A warp owns one output of eight rows. Bound by the bytes of W for few rows; x comes from L1 and L2.
template <plain_view::format How>
__global__ void __launch_bounds__(32 * plain_warps)
    plain_linear_kernel(matrix_view m, const float* x, float* y, int64_t rows, int64_t x_stride, int64_t y_stride) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * plain_warps + threadIdx.x / 32;
  if (n >= m.out) return;
  for (int64_t first = static_cast<int64_t>(blockIdx.y) * plain_rows; first < rows;
       first += static_cast<int64_t>(gridDim.y) * plain_rows) {
    const int n_rows = static_cast<int>(min(static_cast<int64_t>(plain_rows), rows - first));
    float sum[plain_rows];
    warp_dots<How, plain_rows>(sum, m.plain, m.in, n, n_rows,
                               [&](int r, int64_t k) { return x[(first + r) * x_stride + k]; });
    if (threadIdx.x % 32 != 0) continue;
    const float bias = m.bias != nullptr ? m.bias[n] : 0.0F;
    for (int r = 0; r < n_rows; ++r) y[(first + r) * y_stride + n] = sum[r] + bias;
  }
}

} // namespace

void trellis_gemv_cuda(gemv_args a, const cuda_lane& lane) {
  const bool is_parked = (lane.parked_linears >> a.w.rate & 1U) != 0;
  if (!is_parked && byte_gemv_cuda(a, lane)) return;
  const int64_t chunks = a.w.out / 128, slices = slices_of(a.w.in);
  const int64_t groups = std::min<int64_t>(
      {lane.scratch_bytes / (chunks * slices * 8 * 128 * 4), lane.n_counters / chunks, int64_t{65535}});
  TROUPE_CHECK(groups > 0, "the scratch of a lane holds the sums of eight rows of any matrix");
  const int32_t n_rows = a.n_rows, slab = static_cast<int32_t>(std::min<int64_t>(groups * 8, n_rows));
  a.partial = reinterpret_cast<float*>(lane.scratch);
  a.counters = lane.counters;
  for (int32_t first = 0; first < n_rows; first += slab) {
    a.n_rows = std::min(slab, n_rows - first);
    switch (a.w.book) {
    case stored_matrix::codebook::mul1: trellis_gemv_mul1(a, lane.on); break;
    case stored_matrix::codebook::mcg: trellis_gemv_mcg(a, lane.on); break;
    case stored_matrix::codebook::inst3: trellis_gemv_inst3(a, lane.on); break;
    }
    a.x += slab * a.x_stride;
    a.y += slab * a.y_stride;
  }
}

void linear_cuda(tensor y, tensor x, const matrix_view& m, int64_t rows, int64_t x_stride, int64_t y_stride,
                 const cuda_lane& lane) {
  if (rows == 0) return;
  if (m.is_trellis) {
    gemv_args a;
    a.w = m.trellis;
    a.x = x.f32();
    a.y = y.f32();
    a.bias = m.bias;
    a.x_stride = x_stride;
    a.y_stride = y_stride;
    a.n_rows = static_cast<int32_t>(rows);
    a.in = m.in;
    a.out = m.out;
    return lane.rows == row_class::prefill && lane.has_wgmma ? trellis_gemm_cuda(a, lane) : trellis_gemv_cuda(a, lane);
  }
  const dim3 grid((m.out + plain_warps - 1) / plain_warps,
                  static_cast<unsigned>(std::min<int64_t>((rows + plain_rows - 1) / plain_rows, 65535)));
  with_format(m.plain.how, [&]<plain_view::format How>() {
    plain_linear_kernel<How><<<grid, 32 * plain_warps, 0, lane.on>>>(m, x.f32(), y.f32(), rows, x_stride, y_stride);
  });
  cuda_check_launch("linear");
}

} // namespace troupe
