// Which field of a lane a form hangs on.
#include "gpu/cuda_parking.h"

#include <utility>

namespace troupe {

namespace {

bool take(const wide_attention& a, cuda_lane& lane) {
  return std::exchange(a.rows == row_class::prefill ? lane.has_prompt_attention : lane.has_few_attention, false);
}

bool take(const weight_variant& v, cuda_lane& lane) {
  if (v.rows == row_class::prefill) // all of them go together
    return std::exchange(v.how == stored_matrix::format::exl3 ? lane.has_wgmma : lane.has_plain_gemm, false);
  if (v.how != stored_matrix::format::exl3 || v.book != stored_matrix::codebook::mul1) return false;
  uint32_t& parked = v.is_experts ? lane.parked_experts : lane.parked_linears;
  const uint32_t bits = 1U << v.rate | (v.is_experts ? 1U << v.down_rate : 0U);
  if ((parked & bits) != 0) return false; // the f16 form was already in use
  parked |= bits;
  return true;
}

} // namespace

bool take_out_of_use(const parkable& form, cuda_lane& lane) {
  return std::visit([&](const auto& f) { return take(f, lane); }, form);
}

} // namespace troupe
