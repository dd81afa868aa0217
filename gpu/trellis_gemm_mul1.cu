// Instances of the EXL3 product of many rows for codebook mul1.
#include "gpu/trellis_gemm.cuh"

namespace troupe {

void trellis_gemm_mul1(const gemm_args& a, const cuda_lane& lane) {
  launch_trellis_gemm_book<stored_matrix::codebook::mul1>(a, lane);
}

} // namespace troupe
