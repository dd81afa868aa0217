// A linear in device memory, as its checkpoint stores it: nothing is unpacked at load.
#pragma once

#include "gpu/backend.h"
#include "gpu/cuda_lane.h"

#include <functional>
#include <span>
#include <vector>

namespace troupe {

// EXL3 (exl3.md 3, 4). Stored widths are multiples of 128 and may pass the real ones by less than 128 (exl3.md 7).
struct trellis_view {
  // (out / 128, in / 16, 8, 4 * rate): the file's tiles, a chunk of 128 outputs after another, so that what one block
  // reads lies together (exl3.md 10.2 reports 6 % for it on GB10).
  const uint32_t* words = nullptr;
  const uint16_t* suh = nullptr; // (in) f16
  const uint16_t* svh = nullptr; // (out) f16
  int32_t in = 0, out = 0;       // stored, padded
  int32_t rate = 0;              // 2 K: 2 .. 16, odd for half rates
  stored_matrix::codebook book = stored_matrix::codebook::mul1;
};

// Everything else: one element at a time with its scale.
struct plain_view {
  enum class format : uint8_t { f32, bf16, f16, fp8, fp4 };
  const void* weight = nullptr;   // (out, in), fp4 (out, in / 2)
  const uint8_t* scale = nullptr; // fp8 (ceil(out / rows_a_scale), ceil(in / 32)), fp4 (out, in / 32), e8m0
  int32_t rows_a_scale = 1;
  format how = format::f32;
};

// A device form that kernels take by value or from a table in device memory.
struct matrix_view {
  bool is_trellis = false;
  trellis_view trellis;
  plain_view plain;
  const float* bias = nullptr; // (out) or nullptr
  int32_t in = 0, out = 0;     // real widths
};

// Owns its memory through `release`, called once.
class cuda_matrix final : public matrix {
public:
  matrix_view view;
  std::function<void()> release;
  ~cuda_matrix() override {
    if (release) release();
  }
};

class cuda_expert_set final : public expert_set {
public:
  std::vector<std::unique_ptr<matrix>> owned; // gate, up, down of each expert
  const matrix_view* table = nullptr;         // (n_experts, 3) in device memory
  matrix_view gate, up, down;                 // of the first expert: formats and widths, which all share
  bool is_trellis = false;                    // all of them
};

inline const matrix_view& view_of(const matrix& m) { return static_cast<const cuda_matrix&>(m).view; }

// y[r, n] = sum_k x[r, k] W[n, k] + bias[n], f32. x rows are x_stride apart, y rows y_stride. linear.cu
void linear_cuda(tensor y, tensor x, const matrix_view&, int64_t rows, int64_t x_stride, int64_t y_stride,
                 const cuda_lane&);

// Several linears of equally many rows; neighbours that may share a launch do. Outputs do not overlap inputs.
struct linear_call {
  const matrix_view* w = nullptr;
  const float* x = nullptr;
  float* y = nullptr;
  int64_t x_stride = 0, y_stride = 0;
};
void linears_cuda(std::span<const linear_call>, int64_t rows, const cuda_lane&);
// Those of a grouped product: y (R, G, out), x (R, G, in).
std::vector<linear_call> grouped_calls(tensor y, tensor x, std::span<const matrix* const> groups);

} // namespace troupe
