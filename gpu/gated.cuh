// The activation of a gated product on the device.                                                Spec: model.md 2.6.
#pragma once

#include "gpu/device_math.cuh"

namespace troupe {

// silu(min(g, limit)) * clamp(u, -limit, limit) * weight; limit <= 0: no clamp.
__device__ __forceinline__ float gated(float g, float u, float weight, float limit) {
  const float a = limit > 0 ? fminf(g, limit) : g;
  const float b = limit > 0 ? fminf(fmaxf(u, -limit), limit) : u;
  // fminf and fmaxf drop a NaN; a poisoned row stays visibly poisoned.
  return isnan(g) || isnan(u) ? NAN : device::silu_f32(a) * b * weight;
}

} // namespace troupe
