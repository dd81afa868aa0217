// Engram rows -> numbers, and the gated addition to the streams.
#include "gpu/engram_rows.h"

#include "gpu/cuda_check.cuh"
#include "gpu/cuda_ops.h"
#include "gpu/device_math.cuh"
#include "gpu/row_grid.cuh"

#include <cmath>

namespace troupe {
namespace {

struct record_shape {
  int64_t n_records, n_bytes, n_codes; // n_codes: bytes before the scales
  int64_t width, block;                // columns of a record, columns of a scale
};

// Signed code `i` of a record.
__device__ float mxint4_code(const uint8_t* codes, int64_t i) {
  const int nibble = (codes[i / 2] >> (i % 2 * 4)) & 15;
  return static_cast<float>(nibble >= 8 ? nibble - 16 : nibble);
}
__device__ float mxint3_code(const uint8_t* codes, int64_t i) {
  const uint8_t* group = codes + i / 8 * 3;
  const uint32_t word = group[0] | (static_cast<uint32_t>(group[1]) << 8) | (static_cast<uint32_t>(group[2]) << 16);
  const int three = static_cast<int>((word >> (3 * (i % 8))) & 7U);
  return static_cast<float>(three >= 4 ? three - 8 : three);
}

template <engram_format Format> __device__ float column_of(const uint8_t* record, const record_shape& s, int64_t i) {
  if constexpr (Format == engram_format::bf16) {
    return device::bf16_to_f32(static_cast<uint16_t>(record[2 * i] | (record[2 * i + 1] << 8)));
  } else {
    const uint8_t scale = record[s.n_codes + i / s.block];
    float code, by;
    if constexpr (Format == engram_format::fp8) {
      code = device::e4m3_to_f32(record[i]);
      by = device::e8m0_to_f32(scale);
    } else {
      code = Format == engram_format::mxint4 ? mxint4_code(record, i) : mxint3_code(record, i);
      by = device::e4m3_to_f32(scale) / 8.0F;
    }
    return device::is_nan(code) || device::is_nan(by) ? device::quiet_nan() : code * by;
  }
}

// Bound by the bytes of y, eight times those of the records at MXINT-4. A thread owns four columns of a record; codes
// are read byte by byte (records need no alignment), neighbours from the same cache lines.
template <engram_format Format, bool Fours>
__global__ void dequant_kernel(float* y, const uint8_t* records, record_shape s) {
  const int64_t i = 4 * device::piece_of_row();
  if (i >= s.width) return;
  for (int64_t r = device::first_of_rows(); r < s.n_records; r += device::step_of_rows()) {
    const uint8_t* record = records + r * s.n_bytes;
    const auto column = [&](int64_t c) { return c < s.width ? column_of<Format>(record, s, c) : 0.0F; };
    device::store_four<Fours>(y + r * s.width, i, s.width,
                              make_float4(column(i), column(i + 1), column(i + 2), column(i + 3)));
  }
}

template <engram_format Format>
void launch_dequant(tensor y, tensor records, const record_shape& s, const cuda_lane& lane) {
  const row_grid g = cover_rows(s.n_records, (s.width + 3) / 4);
  const auto kernel = in_fours(s.width, {y.data}) ? dequant_kernel<Format, true> : dequant_kernel<Format, false>;
  kernel<<<g.grid, g.block, 0, lane.on>>>(y.f32(), records.as<uint8_t>(), s);
  cuda_check_launch("dequant_rows");
}

struct gate_pointers {
  float* h;
  const float *kv, *q_weight, *k_weight;
  const int32_t* dead;
  float* gates;
  int64_t copies, dim;
  float norm, eps;
};

// Bound by bytes: h, key and value once each, h once out (the second look at h comes from the L1 cache). A block owns a
// copy of a row; three sums at once, each in the order that the width gives.
template <bool Fours> __global__ void __launch_bounds__(768) gate_kernel(gate_pointers a) {
  __shared__ float shared[3][device::max_warps];
  const int64_t m = blockIdx.x % a.copies, r = blockIdx.x / a.copies;
  float* h = a.h + (r * a.copies + m) * a.dim;
  const float* key = a.kv + (r * (a.copies + 1) + m) * a.dim;
  const float* value = a.kv + (r * (a.copies + 1) + a.copies) * a.dim;
  if (a.dead != nullptr && a.dead[r] != 0) {
    if (a.gates != nullptr && threadIdx.x == 0) a.gates[r * a.copies + m] = 0;
    return;
  }
  float sum[3] = {0, 0, 0}; // h key, h h, key key
  const int64_t first = 4 * threadIdx.x, step = 4 * blockDim.x;
  const auto times = [](float p, float q) { return p * q; };
  for (int64_t i = first; i < a.dim; i += step) {
    const float4 in = device::load_four<Fours>(h, i, a.dim), k = device::load_four<Fours>(key, i, a.dim);
    const float4 q_weight = device::load_four<Fours>(a.q_weight + m * a.dim, i, a.dim);
    const float4 k_weight = device::load_four<Fours>(a.k_weight + m * a.dim, i, a.dim);
    const float4 p = device::each_of(in, q_weight, times), q = device::each_of(k_weight, k, times);
    sum[0] = fmaf(p.w, q.w, fmaf(p.z, q.z, fmaf(p.y, q.y, fmaf(p.x, q.x, sum[0]))));
    sum[1] = device::fused_squares(in, sum[1]);
    sum[2] = device::fused_squares(k, sum[2]);
  }
  device::block_sums(sum, shared);
  const float n = static_cast<float>(a.dim);
  const float dot = sum[0] / sqrtf(sum[1] / n + a.eps) / sqrtf(sum[2] / n + a.eps) * a.norm;
  const float gate = device::sigmoid_f32(copysignf(sqrtf(fmaxf(fabsf(dot), 1e-6F)), dot));
  if (a.gates != nullptr && threadIdx.x == 0) a.gates[r * a.copies + m] = gate;
  for (int64_t i = first; i < a.dim; i += step)
    device::store_four<Fours>(
        h, i, a.dim,
        device::fused(gate, device::load_four<Fours>(value, i, a.dim), device::load_four<Fours>(h, i, a.dim)));
}

} // namespace

void dequant_rows_cuda(tensor y, tensor records, engram_format format, int64_t width, const cuda_lane& lane) {
  if (records.n_elements() == 0 || width == 0) return;
  const int64_t n_bytes = records.shape[records.rank - 1];
  const int64_t n_codes = engram_record_bytes(format, width, width + 1); // a block wider than the record: no scales
  record_shape s{records.n_elements() / n_bytes, n_bytes, n_codes, width, 1};
  TROUPE_CHECK(y.n_elements() == s.n_records * width, "a record gives one row");
  if (format == engram_format::bf16) {
    TROUPE_CHECK(n_bytes == n_codes, "a record of plain numbers holds nothing else");
    return launch_dequant<engram_format::bf16>(y, records, s, lane);
  }
  const int64_t n_scales = n_bytes - n_codes;
  TROUPE_CHECK(n_scales > 0 && width % n_scales == 0, "a record holds codes and whole blocks of scales");
  s.block = width / n_scales;
  TROUPE_CHECK(s.block == 32 || (s.block == 16 && format != engram_format::fp8),
               "a scale covers 32 columns, MXINT also 16");
  if (format == engram_format::fp8) return launch_dequant<engram_format::fp8>(y, records, s, lane);
  if (format == engram_format::mxint4) return launch_dequant<engram_format::mxint4>(y, records, s, lane);
  launch_dequant<engram_format::mxint3>(y, records, s, lane);
}

void engram_gate_cuda(tensor h, tensor kv, tensor q_weight, tensor k_weight, tensor dead, tensor gates, float eps,
                      const cuda_lane& lane) {
  if (h.n_elements() == 0) return;
  const int64_t n_rows = h.shape[0], copies = h.shape[1], dim = h.shape[2];
  TROUPE_CHECK(kv.n_elements() == n_rows * (copies + 1) * dim && q_weight.n_elements() == copies * dim &&
                   k_weight.n_elements() == copies * dim,
               "every copy has a key, and a row a value");
  const gate_pointers a{h.f32(),
                        kv.f32(),
                        q_weight.f32(),
                        k_weight.f32(),
                        dead.i32(),
                        gates.f32(),
                        copies,
                        dim,
                        1.0F / std::sqrt(static_cast<float>(dim)),
                        eps};
  const bool fours = in_fours(dim, {h.data, kv.data, q_weight.data, k_weight.data});
  const auto kernel = fours ? gate_kernel<true> : gate_kernel<false>;
  kernel<<<static_cast<unsigned>(n_rows * copies), threads_of_row(dim), 0, lane.on>>>(a);
  cuda_check_launch("engram_gate");
}

} // namespace troupe
