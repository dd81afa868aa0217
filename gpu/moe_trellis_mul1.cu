// Instances of the expert products for codebook mul1.
#include "gpu/moe_trellis.cuh"

namespace troupe {

void moe_gate_up_mul1(const moe_args& a, int32_t rate, cuda_stream on) {
  constexpr auto book = stored_matrix::codebook::mul1;
  with_rate<book>(rate, [&]<int Rate>() { launch_gate_up<Rate, book>(a, on); });
}

void moe_down_mul1(const moe_args& a, int32_t rate, cuda_stream on) {
  constexpr auto book = stored_matrix::codebook::mul1;
  with_rate<book>(rate, [&]<int Rate>() { launch_down<Rate, book>(a, on); });
}

} // namespace troupe
