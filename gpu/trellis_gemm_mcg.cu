// Instances of the EXL3 product of many rows for codebook mcg.
#include "gpu/trellis_gemm.cuh"

namespace troupe {

void trellis_gemm_mcg(const gemm_args& a, const cuda_lane& lane) {
  launch_trellis_gemm_book<stored_matrix::codebook::mcg>(a, lane);
}

} // namespace troupe
