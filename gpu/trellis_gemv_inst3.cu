// Instances of the EXL3 product for codebook inst3.
#include "gpu/trellis_gemv.cuh"

namespace troupe {

void trellis_gemv_inst3(const gemv_args& a, cuda_stream on) {
  launch_trellis_book<stored_matrix::codebook::inst3>(a, on);
}

} // namespace troupe
