// Instances of the EXL3 product for codebook mcg.
#include "gpu/trellis_gemv.cuh"

namespace troupe {

void trellis_gemv_mcg(const gemv_args& a, cuda_stream on) { launch_trellis_book<stored_matrix::codebook::mcg>(a, on); }

} // namespace troupe
