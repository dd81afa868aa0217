// The three quantise-dequantise operations, bit for bit as the twin.
#include "gpu/formats.h"

#include "gpu/cuda_check.cuh"
#include "gpu/cuda_ops.h"
#include "gpu/device_math.cuh"
#include "gpu/early_launch.cuh"

namespace troupe {
namespace {

// The step of a group whose largest magnitude is `amax`.                                             Spec: model.md 2.7
template <quantiser How> __device__ float group_step(float amax) {
  if constexpr (How == quantiser::fp8_32)
    return device::round_up_to_power_of_two(fmaxf(amax, 1e-4F) * (1.0F / 448.0F));
  else if constexpr (How == quantiser::fp4_e8m0_32)
    return device::round_up_to_power_of_two(fmaxf(amax, 6.0F * 0x1p-126F) * (1.0F / 6.0F));
  else
    return device::e4m3_to_f32(device::f32_to_e4m3(fminf(fmaxf(amax, 6.0F * 0x1p-9F) / 6.0F, 448.0F)));
}

template <quantiser How> __device__ float round_trip(float x, float step) {
  if constexpr (How == quantiser::fp8_32)
    return device::e4m3_to_f32(device::f32_to_e4m3(x / step)) * step;
  else
    return device::e2m1_to_f32(device::f32_to_e2m1(x / step)) * step;
}

// Bound by bytes: x once in, once out. A thread owns four elements, eight (four) neighbours a group. The largest
// magnitude is found on the bits, which order as the numbers do, infinities and NaN last. Threads past the end keep
// their warp whole.
template <quantiser How> __global__ void __launch_bounds__(256) quantise_kernel(float* x, int64_t n_fours) {
  begin_in_turn();
  constexpr int lanes = How == quantiser::fp4_e4m3_16 ? 4 : 8;
  constexpr uint32_t magnitude = 0x7FFFFFFFU, infinity = 0x7F800000U;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  auto* at = reinterpret_cast<float4*>(x) + i;
  float4 v = i < n_fours ? *at : make_float4(0, 0, 0, 0);
  uint32_t top = max(max(__float_as_uint(v.x) & magnitude, __float_as_uint(v.y) & magnitude),
                     max(__float_as_uint(v.z) & magnitude, __float_as_uint(v.w) & magnitude));
#pragma unroll
  for (int step = lanes / 2; step > 0; step /= 2) top = max(top, __shfl_xor_sync(device::all_lanes, top, step));
  if (i >= n_fours) return;
  if (top >= infinity) {
    const float poison = device::quiet_nan();
    *at = make_float4(poison, poison, poison, poison);
    return;
  }
  const float step = group_step<How>(__uint_as_float(top));
  *at = make_float4(round_trip<How>(v.x, step), round_trip<How>(v.y, step), round_trip<How>(v.z, step),
                    round_trip<How>(v.w, step));
}

template <quantiser How> void launch_quantise(tensor x, const cuda_lane& lane) {
  const int64_t n_fours = x.n_elements() / 4;
  launch_early(quantise_kernel<How>, static_cast<unsigned>((n_fours + 255) / 256), 256, 0, lane.on, "quantise", x.f32(),
               n_fours);
}

} // namespace

void quantise_cuda(tensor x, quantiser how, const cuda_lane& lane) {
  const int64_t width = x.rank == 0 ? 0 : x.shape[x.rank - 1];
  TROUPE_CHECK(width % (how == quantiser::fp4_e4m3_16 ? 16 : 32) == 0,
               "the last dimension is a whole number of quantiser groups");
  if (width == 0 || x.n_elements() == 0) return;
  TROUPE_CHECK(reinterpret_cast<uintptr_t>(x.data) % 16 == 0, "rows of whole groups begin at 16 bytes");
  switch (how) {
  case quantiser::fp8_32: return launch_quantise<quantiser::fp8_32>(x, lane);
  case quantiser::fp4_e8m0_32: return launch_quantise<quantiser::fp4_e8m0_32>(x, lane);
  case quantiser::fp4_e4m3_16: return launch_quantise<quantiser::fp4_e4m3_16>(x, lane);
  }
}

} // namespace troupe
