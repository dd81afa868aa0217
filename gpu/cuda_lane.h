// A CUDA stream and the scratch memory that belongs to it. Two lanes never share a buffer, a counter or a lock, so work
// on two streams cannot wait for each other (exl3.md 9.2 tells what happened elsewhere).
#pragma once

#include "gpu/backend.h"

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace troupe {

using cuda_stream = CUstream_st*; // cudaStream_t, for headers that the host compiler reads

struct cuda_lane {
  cuda_stream on = nullptr;
  std::byte* scratch = nullptr; // device memory, contents undefined between operations, 256-byte aligned
  int64_t scratch_bytes = 0;
  uint32_t* counters = nullptr; // device memory, all zero between operations: each leaves what it found
  int64_t n_counters = 0;
  int32_t n_multiprocessors = 0;
  int32_t multiprocessor_shared_bytes = 0;
  int32_t block_shared_bytes = 0; // that a block may ask for at most
  int32_t most_cluster = 1;       // byte_form_cluster()
  // Integer products of mul1 matrices that the self-check found wrong, bit r: rate r. The f16 form serves them.
  uint32_t parked_linears = 0, parked_experts = 0;
  row_class rows = row_class::decode;
  bool has_wgmma = false;                                       // compute capability 9.0: EXL3 has kernels for prefill
  bool has_few_attention = false, has_prompt_attention = false; // 9.0 too: rows 512 wide have theirs, of either class
  bool has_plain_gemm = true; // so have bf16, fp8 and fp4; false: the self-check found them wrong
};

} // namespace troupe
