// What the kernels of products with unpacked matrices in the prefill class share. For .cu files only.
#pragma once

#include "gpu/cuda_matrix.h"
#include "gpu/mma.cuh"

namespace troupe {

constexpr int slice_inputs = 512; // sums of so many inputs are added up in f32
constexpr int n_parts = 3;        // bf16 of a float

struct plain_product {
  plain_view m;
  const float* bias;
  const float* x;
  float* y;
  int64_t rows, x_stride, y_stride;
  int in, out;
  int block_slices;     // slices of a block, of which blockIdx.z counts
  int64_t slice_stride; // from the sums of one blockIdx.z to the next
};

// A float as the sum of three bf16, for two neighbours at once: 24 bits, so nothing is lost.
__device__ __forceinline__ void split_three(float a, float b, uint32_t (&part)[n_parts]) {
#pragma unroll
  for (int i = 0; i < n_parts; ++i) {
    part[i] = device::bits_of(__floats2bfloat162_rn(a, b));
    a -= __uint_as_float(part[i] << 16), b -= __uint_as_float(part[i] & 0xFFFF0000U);
  }
}

// plain_groups.cu: products with bf16 on warp groups. Order of sums as in plain_gemm.h, in other instructions: whether
// it serves is told by the matrix and by how rows lie, so all rows of a product have it.
bool plain_groups_serve(const plain_product& p, const cuda_lane& lane);
int64_t plain_groups_blocks(const plain_product& p); // of one blockIdx.z
void plain_groups_launch(const plain_product& p, int z, const cuda_lane& lane);

} // namespace troupe
