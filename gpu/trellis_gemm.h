// Products of many rows with EXL3 matrices, for prefill: one matrix, or segments of rows that share an expert.
//                                                                                           Spec: exl3.md 9, 13.6.
// Rows come transformed (gemm_rows.cuh): x * suh, Hadamard, f16 times a power of two a row. Order of sums: k ascending,
// sixteen at a time, in one f32 accumulator; the same for every row count.
#pragma once

#include "gpu/cuda_matrix.h"

#include <span>

namespace troupe {

// Transformed rows in device memory: (in / 64, groups, 8 rows, 64) f16 with the 16-byte piece c of row r at c ^ r, as
// tensor cores want it in shared memory, so that any run of groups is one copy per 64 inputs. Rows of segments: the
// same for the groups of each region on its own, region after region.
struct gemm_rows {
  uint8_t* at = nullptr;
  float* scale = nullptr; // (8 groups): a row's value is scale times what is stored
  int64_t groups = 0;
  static constexpr int64_t atom_bytes = 1024; // eight rows of 64 inputs
  static constexpr int64_t size_bytes(int64_t groups, int64_t in) { return groups * (in / 64) * atom_bytes; }
};

// Groups that lie together in gemm_rows.
struct alignas(8) row_region {
  int32_t first_group = 0, groups = 0;
  // The group's first 64 inputs; the next are groups * atom_bytes on.
  __host__ __device__ uint8_t* at(uint8_t* rows, int64_t group, int64_t in) const {
    return rows + (first_group * (in / 64) + group - first_group) * gemm_rows::atom_bytes;
  }
};

// Rows of one expert that are multiplied together; they begin at a group.
struct row_segment {
  int32_t expert;
  int32_t first_group;
  int32_t n_rows;
  row_region region; // all groups of the expert, so that a row is written near itself
};

// Of a launch without a table: a matrix, its outputs. All have the widths, rate and codebook of gemm_args::w.
struct gemm_part {
  const uint32_t* words = nullptr;
  const uint16_t* svh = nullptr;
  const float* bias = nullptr;
};

struct gemm_args {
  static constexpr int most_parts = 8;
  // `parts` matrices, each with its rows; or, with a table, `parts` matrices of each expert from number first_part on
  // (gate, up: 2 from 0; down: 1 from 2).
  trellis_view w; // widths, rate and codebook
  gemm_part of[most_parts];
  const matrix_view* table = nullptr;    // (n_experts, 3) in device memory
  const row_segment* segments = nullptr; // in device memory
  const int32_t* n_segments = nullptr;   // in device memory
  int32_t parts = 1, first_part = 0;
  gemm_rows x[most_parts];   // for each part
  float* y[most_parts] = {}; // (rows, out), y_stride apart
  int64_t y_stride = 0;
  int32_t n_rows = 0;      // without a table
  int32_t tile_rows = 256; // rows a block takes together, at most 256; no segment has more
  int32_t out = 0;         // real width
};

// One function a codebook. Devices of compute capability 9.0 only.
void trellis_gemm_mul1(const gemm_args&, const cuda_lane&);
void trellis_gemm_mcg(const gemm_args&, const cuda_lane&);
void trellis_gemm_inst3(const gemm_args&, const cuda_lane&);
void trellis_gemm_any(const gemm_args&, const cuda_lane&);

// y = x W + bias for matrices of one stored width and one x, up to most_listed, in slabs of rows that fit the lane's
// scratch. A result's bits do not depend on its company. gemm_rows.cu
struct gemv_args;
void trellis_gemms_cuda(std::span<const gemv_args>, const cuda_lane&);
// The same behind the transform of rows: x[i] are those of matrix i. Neighbours of one form share a launch.
void multiply_rows_cuda(std::span<const gemv_args>, std::span<const gemm_rows> x, const cuda_lane&);

} // namespace troupe
