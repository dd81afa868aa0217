// Tables and rows: gathering, copying, adding. All of it is bound by the bytes it moves.
#include "gpu/cuda_ops.h"

#include "gpu/cuda_check.cuh"
#include "gpu/device_math.cuh"
#include "gpu/early_launch.cuh"
#include "gpu/row_grid.cuh"

namespace troupe {
namespace {

__device__ inline float to_float(float x) { return x; }
struct bf16_bits {
  uint16_t bits;
};
struct f16_bits {
  uint16_t bits;
};
__device__ inline float to_float(bf16_bits x) { return device::bf16_to_f32(x.bits); }
__device__ inline float to_float(f16_bits x) { return device::f16_to_f32(x.bits); }

template <class T> struct alignas(4 * sizeof(T)) four_of { T v[4]; };

// A thread owns four elements of a row of y.
template <class T, bool Fours>
__global__ void embed_kernel(float* y, const T* table, int64_t n_table_rows, int64_t first_id, const int32_t* ids,
                             int64_t n_rows, int64_t dim) {
  begin_in_turn();
  const int64_t i = 4 * device::piece_of_row();
  if (i >= dim) return;
  for (int64_t r = device::first_of_rows(); r < n_rows; r += device::step_of_rows()) {
    const int64_t row = ids[r] - first_id;
    float4 out = make_float4(0, 0, 0, 0);
    if (row >= 0 && row < n_table_rows) {
      const T* from = table + row * dim;
      if constexpr (Fours) {
        const auto in = *reinterpret_cast<const four_of<T>*>(from + i);
        out = make_float4(to_float(in.v[0]), to_float(in.v[1]), to_float(in.v[2]), to_float(in.v[3]));
      } else {
        out.x = to_float(from[i]);
        if (i + 1 < dim) out.y = to_float(from[i + 1]);
        if (i + 2 < dim) out.z = to_float(from[i + 2]);
        if (i + 3 < dim) out.w = to_float(from[i + 3]);
      }
    }
    device::store_four<Fours>(y + r * dim, i, dim, out);
  }
}

template <class T> void embed_of(tensor y, tensor table, int64_t first_id, tensor ids, const cuda_lane& lane) {
  const int64_t dim = table.row_elements(), n = ids.n_elements();
  const row_grid g = cover_rows(n, (dim + 3) / 4);
  const auto kernel = in_fours(dim, {y.data, table.data}) ? embed_kernel<T, true> : embed_kernel<T, false>;
  launch_early(kernel, g.grid, g.block, 0, lane.on, "embed", y.f32(), table.as<T>(), table.rows(), first_id, ids.i32(),
               n, dim);
}

// A thread owns one unit of 16, 4 or 1 bytes of a row. A row outside its tensor is broken code and ends the context.
template <class Unit>
__global__ void copy_rows_kernel(Unit* y, const int32_t* y_rows, int64_t n_y_rows, const Unit* x, const int32_t* x_rows,
                                 int64_t n_x_rows, int64_t n_rows, int64_t n_units) {
  begin_in_turn();
  const int64_t i = device::piece_of_row();
  if (i >= n_units) return;
  for (int64_t r = device::first_of_rows(); r < n_rows; r += device::step_of_rows()) {
    const int64_t to = y_rows != nullptr ? y_rows[r] : r, from = x_rows != nullptr ? x_rows[r] : r;
    if (to < 0 || to >= n_y_rows || from < 0 || from >= n_x_rows) __trap();
    y[to * n_units + i] = x[from * n_units + i];
  }
}

template <class Unit>
void copy_rows_in(tensor y, tensor y_rows, tensor x, tensor x_rows, int64_t n, int64_t n_bytes, const cuda_lane& lane) {
  const int64_t n_units = n_bytes / static_cast<int64_t>(sizeof(Unit));
  const row_grid g = cover_rows(n, n_units);
  launch_early(copy_rows_kernel<Unit>, g.grid, g.block, 0, lane.on, "copy_rows", y.as<Unit>(), y_rows.i32(), y.rows(),
               x.as<Unit>(), x_rows.i32(), x.rows(), n, n_units);
}

int64_t row_bytes(const tensor& t) { return t.row_elements() * size_bytes(t.type); }

// A thread owns four elements.
template <bool Fours> __global__ void add_kernel(float* y, const float* x, int64_t n) {
  begin_in_turn();
  const int64_t i = 4 * device::element_piece();
  if (i >= n) return;
  const float4 a = device::load_four<Fours>(y, i, n), b = device::load_four<Fours>(x, i, n);
  device::store_four<Fours>(y, i, n, device::each_of(a, b, [](float p, float q) { return p + q; }));
}

template <bool Fours> __global__ void scale_kernel(float* x, float by, int64_t n) {
  begin_in_turn();
  const int64_t i = 4 * device::element_piece();
  if (i >= n) return;
  device::store_four<Fours>(x, i, n,
                            device::each_of(device::load_four<Fours>(x, i, n), [=](float v) { return v * by; }));
}

// A thread owns four elements of x and writes them to every copy.
template <bool Fours>
__global__ void spread_kernel(float* h, const float* x, int64_t n_rows, int64_t copies, int64_t dim) {
  begin_in_turn();
  const int64_t i = 4 * device::piece_of_row();
  if (i >= dim) return;
  for (int64_t r = device::first_of_rows(); r < n_rows; r += device::step_of_rows()) {
    const float4 v = device::load_four<Fours>(x + r * dim, i, dim);
    for (int64_t k = 0; k < copies; ++k) device::store_four<Fours>(h + (r * copies + k) * dim, i, dim, v);
  }
}

} // namespace

void embed_cuda(tensor y, tensor table, int64_t first_id, tensor ids, const cuda_lane& lane) {
  if (y.n_elements() == 0 || ids.n_elements() == 0) return;
  TROUPE_CHECK(table.rows() > 0 && y.n_elements() == ids.n_elements() * table.row_elements(),
               "an embedding has a table row for every id");
  switch (table.type) {
  case dtype::f32: return embed_of<float>(y, table, first_id, ids, lane);
  case dtype::bf16: return embed_of<bf16_bits>(y, table, first_id, ids, lane);
  case dtype::f16: return embed_of<f16_bits>(y, table, first_id, ids, lane);
  default: TROUPE_CHECK(false, "an embedding table is f32, bf16 or f16");
  }
}

void copy_rows_cuda(tensor y, tensor y_rows, tensor x, tensor x_rows, const cuda_lane& lane) {
  TROUPE_CHECK(y.type == x.type && (row_bytes(y) == row_bytes(x) || y.rows() == 0 || x.rows() == 0),
               "rows are copied between tensors of one row type");
  const int64_t n = x_rows ? x_rows.n_elements() : y_rows ? y_rows.n_elements() : x.rows();
  const int64_t n_bytes = row_bytes(x);
  if (n == 0 || n_bytes == 0) return;
  TROUPE_CHECK((y_rows || n <= y.rows()) && (x_rows || n <= x.rows()) && (!y_rows || n <= y_rows.n_elements()),
               "copied rows lie inside their tensors");
  const auto together =
      reinterpret_cast<uintptr_t>(y.data) | reinterpret_cast<uintptr_t>(x.data) | static_cast<uintptr_t>(n_bytes);
  if (together % 16 == 0) return copy_rows_in<uint4>(y, y_rows, x, x_rows, n, n_bytes, lane);
  if (together % 4 == 0) return copy_rows_in<uint32_t>(y, y_rows, x, x_rows, n, n_bytes, lane);
  copy_rows_in<uint8_t>(y, y_rows, x, x_rows, n, n_bytes, lane);
}

void add_cuda(tensor y, tensor x, const cuda_lane& lane) {
  const int64_t n = y.n_elements();
  TROUPE_CHECK(n == x.n_elements(), "tensors of one size are added");
  if (n == 0) return;
  const element_grid g = cover_elements((n + 3) / 4);
  const auto kernel = in_fours(n, {y.data, x.data}) ? add_kernel<true> : add_kernel<false>;
  launch_early(kernel, g.grid, g.block, 0, lane.on, "add", y.f32(), x.f32(), n);
}

void scale_cuda(tensor x, float by, const cuda_lane& lane) {
  const int64_t n = x.n_elements();
  if (n == 0) return;
  const element_grid g = cover_elements((n + 3) / 4);
  const auto kernel = in_fours(n, {x.data}) ? scale_kernel<true> : scale_kernel<false>;
  launch_early(kernel, g.grid, g.block, 0, lane.on, "scale", x.f32(), by, n);
}

void spread_cuda(tensor h, tensor x, const cuda_lane& lane) {
  if (h.n_elements() == 0) return;
  const int64_t n_rows = h.shape[0], copies = h.shape[1], dim = h.shape[2];
  TROUPE_CHECK(x.n_elements() == n_rows * dim, "every row is spread over its copies");
  const row_grid g = cover_rows(n_rows, (dim + 3) / 4);
  const auto kernel = in_fours(dim, {h.data, x.data}) ? spread_kernel<true> : spread_kernel<false>;
  launch_early(kernel, g.grid, g.block, 0, lane.on, "spread", h.f32(), x.f32(), n_rows, copies, dim);
}

} // namespace troupe
