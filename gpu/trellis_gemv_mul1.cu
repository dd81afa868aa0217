// Instances of the EXL3 product for codebook mul1.
#include "gpu/trellis_gemv.cuh"

namespace troupe {

void trellis_gemv_mul1(const gemv_args& a, cuda_stream on) {
  launch_trellis_book<stored_matrix::codebook::mul1>(a, on);
}

} // namespace troupe
