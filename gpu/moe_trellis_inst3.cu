// Instances of the expert products for codebook inst3.
#include "gpu/moe_trellis.cuh"

namespace troupe {

void moe_gate_up_inst3(const moe_args& a, int32_t rate, cuda_stream on) {
  constexpr auto book = stored_matrix::codebook::inst3;
  with_rate<book>(rate, [&]<int Rate>() { launch_gate_up<Rate, book>(a, on); });
}

void moe_down_inst3(const moe_args& a, int32_t rate, cuda_stream on) {
  constexpr auto book = stored_matrix::codebook::inst3;
  with_rate<book>(rate, [&]<int Rate>() { launch_down<Rate, book>(a, on); });
}

} // namespace troupe
