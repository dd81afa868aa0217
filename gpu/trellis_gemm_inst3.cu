// Instances of the EXL3 product of many rows for codebook inst3.
#include "gpu/trellis_gemm.cuh"

namespace troupe {

void trellis_gemm_inst3(const gemm_args& a, const cuda_lane& lane) {
  launch_trellis_gemm_book<stored_matrix::codebook::inst3>(a, lane);
}

} // namespace troupe
