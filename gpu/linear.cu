// Linears on the device: which kernels serve a matrix and a class of rows.
#include "gpu/plain_gemm.h"
#include "gpu/plain_linear.h"
#include "gpu/trellis_block.cuh"
#include "gpu/trellis_gemm.h"
#include "gpu/trellis_gemv.h"

#include <algorithm>

namespace troupe {

void trellis_gemv_cuda(gemv_args a, const cuda_lane& lane) {
  if (byte_form_serves(a.w, lane)) return byte_gemv_cuda({&a, 1}, lane);
  const int64_t chunks = a.w.out / 128, slices = slices_of(a.w.in);
  const int64_t groups = std::min<int64_t>(
      {lane.scratch_bytes / (chunks * slices * 8 * 128 * 4), lane.n_counters / chunks, int64_t{65535}});
  TROUPE_CHECK(groups > 0, "the scratch of a lane holds the sums of eight rows of any matrix");
  const int32_t n_rows = a.n_rows, slab = static_cast<int32_t>(std::min<int64_t>(groups * 8, n_rows));
  a.partial = reinterpret_cast<float*>(lane.scratch);
  a.counters = lane.counters;
  for (int32_t first = 0; first < n_rows; first += slab) {
    a.n_rows = std::min(slab, n_rows - first);
    switch (a.w.book) {
    case stored_matrix::codebook::mul1: trellis_gemv_mul1(a, lane.on); break;
    case stored_matrix::codebook::mcg: trellis_gemv_mcg(a, lane.on); break;
    case stored_matrix::codebook::inst3: trellis_gemv_inst3(a, lane.on); break;
    }
    a.x += slab * a.x_stride;
    a.y += slab * a.y_stride;
  }
}

namespace {

gemv_args args_of(const linear_call& c, int64_t rows) {
  const matrix_view& m = *c.w;
  gemv_args a;
  a.w = m.trellis;
  a.x = c.x;
  a.y = c.y;
  a.bias = m.bias;
  a.x_stride = c.x_stride;
  a.y_stride = c.y_stride;
  a.n_rows = static_cast<int32_t>(rows);
  a.in = m.in;
  a.out = m.out;
  return a;
}

// Whether two products share launches: of packing and multiplying (few rows), or of transforming one x (many).
bool go_together(const linear_call& a, const linear_call& b, bool decodes) {
  const trellis_view &v = a.w->trellis, &w = b.w->trellis;
  return v.in == w.in && (decodes ? v.rate == w.rate : a.x == b.x && a.x_stride == b.x_stride && a.w->in == b.w->in);
}

} // namespace

void linear_cuda(tensor y, tensor x, const matrix_view& m, int64_t rows, int64_t x_stride, int64_t y_stride,
                 const cuda_lane& lane) {
  if (rows == 0) return;
  if (m.is_trellis) {
    const gemv_args a = args_of({&m, x.f32(), y.f32(), x_stride, y_stride}, rows);
    return lane.rows == row_class::prefill && lane.has_wgmma ? trellis_gemms_cuda({&a, 1}, lane)
                                                             : trellis_gemv_cuda(a, lane);
  }
  if (lane.rows == row_class::prefill && lane.has_plain_gemm && plain_gemm_serves(m))
    plain_gemm_cuda(y, x, m, rows, x_stride, y_stride, lane);
  else
    plain_linear_cuda(y, x, m, rows, x_stride, y_stride, lane);
}

std::vector<linear_call> grouped_calls(tensor y, tensor x, std::span<const matrix* const> groups) {
  std::vector<linear_call> calls;
  const auto n = static_cast<int64_t>(groups.size());
  for (int64_t g = 0; g < n; ++g) {
    const matrix& m = *groups[static_cast<size_t>(g)];
    calls.push_back({&view_of(m), x.f32() + g * m.in, y.f32() + g * m.out, n * m.in, n * m.out});
  }
  return calls;
}

void linears_cuda(std::span<const linear_call> calls, int64_t rows, const cuda_lane& lane) {
  if (rows == 0) return;
  const bool decodes = lane.rows == row_class::decode || !lane.has_wgmma;
  const auto is_listed = [&](const linear_call& c) {
    return c.w->is_trellis && (!decodes || byte_form_serves(c.w->trellis, lane));
  };
  for (size_t first = 0; first < calls.size();) {
    const linear_call& c = calls[first];
    if (!is_listed(c)) {
      linear_cuda(tensor(c.y, dtype::f32, {rows, c.w->out}),
                  tensor(const_cast<float*>(c.x), dtype::f32, {rows, c.w->in}), *c.w, rows, c.x_stride, c.y_stride,
                  lane);
      ++first;
      continue;
    }
    gemv_args list[most_listed];
    size_t n = 0;
    while (n < most_listed && first + n < calls.size() && is_listed(calls[first + n]) &&
           go_together(calls[first + n], c, decodes)) {
      list[n] = args_of(calls[first + n], rows);
      ++n;
    }
    decodes ? byte_gemv_cuda({list, n}, lane) : trellis_gemms_cuda({list, n}, lane);
    first += n;
  }
}

} // namespace troupe
