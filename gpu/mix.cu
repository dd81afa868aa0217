// The hyper-connection streams: mixing coefficients, fold, expand, mean.
#include "gpu/mix.h"

#include "gpu/cuda_check.cuh"
#include "gpu/cuda_ops.h"
#include "gpu/device_math.cuh"
#include "gpu/early_launch.cuh"
#include "gpu/mix_coefficients.cuh"
#include "gpu/mix_rows.h"
#include "gpu/row_grid.cuh"

namespace troupe {
namespace {

constexpr int64_t max_copies = 8;

// A block owns a row. Many rows are bound by the bytes of h, read once (80 KB a row at M D = 20480; four blocks of 512
// a multiprocessor hide the Sinkhorn steps of each other), decode by the latency of those steps.
template <int M, int Held, bool Fours> __global__ void __launch_bounds__(512, 4) mix_kernel(mix_pointers a) {
  begin_in_turn();
  __shared__ float shared[1][device::max_warps];
  const int64_t r = blockIdx.x;
  const float* h = a.h + r * a.width;
  float sum[1] = {0};
#pragma unroll 5
  for (int64_t i = 4 * threadIdx.x; i < a.width; i += 4 * blockDim.x)
    sum[0] = device::fused_squares(device::load_four<Fours>(h, i, a.width), sum[0]);
  device::block_sums(sum, shared);
  const float by = 1.0F / sqrtf(sum[0] / static_cast<float>(a.width) + a.eps);
  const int m = M > 0 ? M : a.m, warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const float* z = a.z + r * (2 + m) * m;
  if (warp == 0) make_comb<M, Held>(a, z, by, a.comb + r * m * m);
  if (warp == 1 && lane < 2 * m) make_gate(a, z, by, r, m, lane);
}

// Below: a thread owns four elements of all copies of a row, and all of it is bound by bytes. Max: the copies that
// loops are unrolled for, so that the loads of all of them are on their way together.
template <int Max, bool Fours>
__global__ void fold_kernel(float* x, const float* h, const float* pre, int64_t n_rows, int m, int64_t dim) {
  begin_in_turn();
  const int64_t i = 4 * device::piece_of_row();
  if (i >= dim) return;
  for (int64_t r = device::first_of_rows(); r < n_rows; r += device::step_of_rows()) {
    float4 in[Max];
#pragma unroll
    for (int k = 0; k < Max; ++k)
      if (k < m) in[k] = device::load_four<Fours>(h + (r * m + k) * dim, i, dim);
    const float first = pre[r * m];
    float4 sum = device::each_of(in[0], [=](float v) { return first * v; });
#pragma unroll
    for (int k = 1; k < Max; ++k)
      if (k < m) sum = device::fused(pre[r * m + k], in[k], sum);
    device::store_four<Fours>(x + r * dim, i, dim, sum);
  }
}

// also: added to y before, or nullptr.
template <int Max, bool Fours>
__global__ void expand_kernel(float* h, const float* y, const float* also, const float* post, const float* comb,
                              int64_t n_rows, int m, int64_t dim) {
  begin_in_turn();
  const int64_t i = 4 * device::piece_of_row();
  if (i >= dim) return;
  for (int64_t r = device::first_of_rows(); r < n_rows; r += device::step_of_rows()) {
    float4 old[Max];
#pragma unroll
    for (int j = 0; j < Max; ++j)
      if (j < m) old[j] = device::load_four<Fours>(h + (r * m + j) * dim, i, dim);
    float4 in = device::load_four<Fours>(y + r * dim, i, dim);
    if (also != nullptr) {
      const float4 more = device::load_four<Fours>(also + r * dim, i, dim);
      in = make_float4(in.x + more.x, in.y + more.y, in.z + more.z, in.w + more.w);
    }
    const float* c = comb + r * m * m;
#pragma unroll
    for (int k = 0; k < Max; ++k) {
      if (k >= m) break;
      const float p = post[r * m + k];
      float4 sum = device::each_of(in, [=](float v) { return p * v; });
#pragma unroll
      for (int j = 0; j < Max; ++j)
        if (j < m) sum = device::fused(c[j * m + k], old[j], sum);
      device::store_four<Fours>(h + (r * m + k) * dim, i, dim, sum);
    }
  }
}

template <bool Fours> __global__ void mean_kernel(float* y, const float* h, int64_t n_rows, int m, int64_t dim) {
  begin_in_turn();
  const int64_t i = 4 * device::piece_of_row();
  if (i >= dim) return;
  const float n = static_cast<float>(m);
  for (int64_t r = device::first_of_rows(); r < n_rows; r += device::step_of_rows()) {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int k = 0; k < m; ++k)
      sum = device::each_of(sum, device::load_four<Fours>(h + (r * m + k) * dim, i, dim),
                            [](float a, float b) { return a + b; });
    device::store_four<Fours>(y + r * dim, i, dim, device::each_of(sum, [=](float v) { return v / n; }));
  }
}

// Fold and norm of a row, which a block owns: the folded elements stay in registers between the two. Sums have the
// order of rms_norm, whose threads a row has. Prefill is bound by the bytes of h.
constexpr int held_fours = 2; // of a thread

template <int Max, bool Fours>
__global__ void __launch_bounds__(768)
    fold_norm_kernel(float* x, const float* h, const float* pre, const float* weight, int m, int64_t dim, float eps) {
  fetch_lines(weight, dim * 4, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  begin_in_turn();
  __shared__ float shared[1][device::max_warps];
  const int64_t r = blockIdx.x, first = 4 * threadIdx.x, step = 4 * blockDim.x;
  float4 in[held_fours][Max], held[held_fours], w[held_fours];
  float share[Max]; // as all that is read, it is on its way at once
#pragma unroll
  for (int k = 0; k < Max; ++k)
    if (k < m) share[k] = pre[r * m + k];
#pragma unroll
  for (int j = 0; j < held_fours; ++j) {
    if (first + j * step >= dim) break;
#pragma unroll
    for (int k = 0; k < Max; ++k)
      if (k < m) in[j][k] = device::load_four<Fours>(h + (r * m + k) * dim, first + j * step, dim);
    w[j] = device::load_four<Fours>(weight, first + j * step, dim);
  }
  float sum[1] = {0};
#pragma unroll
  for (int j = 0; j < held_fours; ++j) {
    if (first + j * step >= dim) break;
    const float by = share[0];
    held[j] = device::each_of(in[j][0], [=](float v) { return by * v; });
#pragma unroll
    for (int k = 1; k < Max; ++k)
      if (k < m) held[j] = device::fused(share[k], in[j][k], held[j]);
    sum[0] = device::fused_squares(held[j], sum[0]);
  }
  device::block_sums(sum, shared);
  const float by = 1.0F / sqrtf(sum[0] / static_cast<float>(dim) + eps);
#pragma unroll
  for (int j = 0; j < held_fours; ++j) {
    const int64_t i = first + j * step;
    if (i >= dim) break;
    device::store_four<Fours>(x + r * dim, i, dim,
                              device::each_of(w[j], held[j], [=](float a, float b) { return a * (b * by); }));
  }
}

// Expand, then fold and norm of what it made, which stays in registers: the streams are read once for twice. The bits
// of the kernels above. Bound by bytes: two blocks of 640 a multiprocessor, so that one reads while the other meets.
struct expand_fold {
  float *h, *x;
  const float *y, *also, *post, *comb, *pre, *weight; // also: nullptr, or added to y
  int dim;
  float eps;
};
constexpr int expand_fold_threads = 640, expand_fold_copies = 4;

template <bool Fours>
__global__ void __launch_bounds__(expand_fold_threads, 2) expand_fold_norm_kernel(const expand_fold a) {
  constexpr int m = expand_fold_copies;
  __shared__ float shared[1][device::max_warps], comb[m * m], post[m], pre[m];
  const int me = static_cast<int>(threadIdx.x), dim = a.dim, step = 4 * static_cast<int>(blockDim.x);
  const int64_t r = blockIdx.x;
  begin_in_turn();
  if (me < m * m) comb[me] = a.comb[r * (m * m) + me];
  if (me < m) post[me] = a.post[r * m + me], pre[me] = a.pre[r * m + me];
  __syncthreads();
  float* h = a.h + r * m * dim;
  float4 held[held_fours];
  float sum[1] = {0};
#pragma unroll
  for (int j = 0; j < held_fours; ++j) {
    const int i = 4 * me + j * step;
    if (i >= dim) break;
    float4 old[m];
#pragma unroll
    for (int k = 0; k < m; ++k) old[k] = device::load_four<Fours>(h + k * dim, i, dim);
    float4 in = device::load_four<Fours>(a.y + r * dim, i, dim);
    if (a.also != nullptr) {
      const float4 more = device::load_four<Fours>(a.also + r * dim, i, dim);
      in = make_float4(in.x + more.x, in.y + more.y, in.z + more.z, in.w + more.w);
    }
#pragma unroll 1 // lest all coefficients wait in registers: there are 48
    for (int k = 0; k < m; ++k) {
      const float of_y = post[k], by = pre[k];
      float4 made = device::each_of(in, [=](float v) { return of_y * v; });
#pragma unroll
      for (int l = 0; l < m; ++l) made = device::fused(comb[l * m + k], old[l], made);
      device::store_four<Fours>(h + k * dim, i, dim, made);
      held[j] = k == 0 ? device::each_of(made, [=](float v) { return by * v; }) : device::fused(by, made, held[j]);
    }
    sum[0] = device::fused_squares(held[j], sum[0]);
  }
  device::block_sums(sum, shared);
  const float by = 1.0F / sqrtf(sum[0] / static_cast<float>(dim) + a.eps);
#pragma unroll
  for (int j = 0; j < held_fours; ++j) {
    const int i = 4 * me + j * step;
    if (i >= dim) break;
    const float4 w = device::load_four<Fours>(a.weight, i, dim);
    device::store_four<Fours>(a.x + r * dim, i, dim,
                              device::each_of(w, held[j], [=](float p, float q) { return p * (q * by); }));
  }
}

template <bool Fours> void launch_mix(const mix_pointers& a, int64_t n_rows, const cuda_lane& lane) {
  const auto kernel = a.m == 4 ? mix_kernel<4, 1, Fours> : a.m <= 5 ? mix_kernel<0, 1, Fours> : mix_kernel<0, 2, Fours>;
  const int64_t threads = std::clamp<int64_t>((a.width + 511) / 512 * 32, 64, 512); // four fours a thread or more
  launch_early(kernel, static_cast<unsigned>(n_rows), static_cast<unsigned>(threads), 0, lane.on, "mix", a);
}

} // namespace

void mix_cuda(const mix_args& a, const matrix_view& fn, const cuda_lane& lane) {
  const int64_t n_rows = a.h.rows();
  if (n_rows == 0) return;
  const int64_t m = a.h.shape[1], width = a.h.row_elements(), n_outs = (2 + m) * m;
  TROUPE_CHECK(m <= max_copies && fn.out == n_outs && fn.in == width && a.pre.n_elements() == n_rows * m &&
                   a.post.n_elements() == n_rows * m && a.comb.n_elements() == n_rows * m * m,
               "mix has (2 + M) M outputs over M D");
  mix_pointers p{a.pre.f32(),  a.post.f32(), a.comb.f32(),        a.h.f32(),    nullptr, a.scale.f32(),
                 a.base.f32(), width,        static_cast<int>(m), a.iterations, a.eps,   a.hc_eps};
  if (lane.rows == row_class::prefill && mix_rows_serve(fn)) return mix_rows_cuda(p, fn, n_rows, lane);
  const int64_t row_bytes = n_outs * 4, slab = lane.scratch_bytes / 4 / row_bytes;
  TROUPE_CHECK(slab > 0, "the scratch of a lane holds the product of a row");
  for (int64_t first = 0; first < n_rows; first += slab) {
    const int64_t n = std::min(slab, n_rows - first), used = (n * row_bytes + 255) / 256 * 256;
    const tensor z(lane.scratch, dtype::f32, {n, n_outs});
    cuda_lane rest = lane;
    rest.scratch += used;
    rest.scratch_bytes -= used;
    linear_cuda(z, a.h.slice(first, n), fn, n, fn.in, fn.out, rest);
    p.z = z.f32();
    in_fours(width, {p.h}) ? launch_mix<true>(p, n, rest) : launch_mix<false>(p, n, rest);
    p.pre += n * m, p.post += n * m, p.comb += n * m * m, p.h += n * width;
  }
}

void fold_cuda(tensor x, tensor h, tensor pre, const cuda_lane& lane) {
  if (h.n_elements() == 0) return;
  const int64_t n_rows = h.shape[0], m = h.shape[1], dim = h.shape[2];
  TROUPE_CHECK(m <= max_copies && x.n_elements() == n_rows * dim && pre.n_elements() == n_rows * m,
               "at most eight residual copies are folded into one");
  const bool fours = in_fours(dim, {x.data, h.data});
  const auto kernel = m <= 4 ? (fours ? fold_kernel<4, true> : fold_kernel<4, false>)
                             : (fours ? fold_kernel<8, true> : fold_kernel<8, false>);
  const row_grid g = cover_rows(n_rows, (dim + 3) / 4);
  launch_early(kernel, g.grid, g.block, 0, lane.on, "fold", x.f32(), h.f32(), pre.f32(), n_rows, static_cast<int>(m),
               dim);
}

void fold_norm_cuda(tensor x, tensor h, tensor pre, tensor weight, float eps, const cuda_lane& lane) {
  if (h.n_elements() == 0) return;
  const int64_t n_rows = h.shape[0], m = h.shape[1], dim = h.shape[2], threads = threads_of_row(dim);
  if (m > 4 || 4 * threads * held_fours < dim) {
    fold_cuda(x, h, pre, lane);
    return rms_norm_cuda(x, x, weight, eps, lane);
  }
  TROUPE_CHECK(x.n_elements() == n_rows * dim && pre.n_elements() == n_rows * m && weight.n_elements() == dim,
               "residual copies are folded into rows as wide as the norm");
  const bool fours = in_fours(dim, {x.data, h.data, weight.data});
  launch_early(fours ? fold_norm_kernel<4, true> : fold_norm_kernel<4, false>, static_cast<unsigned>(n_rows),
               static_cast<unsigned>(threads), 0, lane.on, "fold_norm", x.f32(), h.f32(), pre.f32(), weight.f32(),
               static_cast<int>(m), dim, eps);
}

void expand_cuda(tensor h, tensor y, tensor also, tensor post, tensor comb, const cuda_lane& lane) {
  if (h.n_elements() == 0) return;
  const int64_t n_rows = h.shape[0], m = h.shape[1], dim = h.shape[2];
  TROUPE_CHECK(m <= max_copies && y.n_elements() == n_rows * dim && post.n_elements() == n_rows * m &&
                   (!also || also.n_elements() == y.n_elements()) && comb.n_elements() == n_rows * m * m,
               "a row is expanded into at most eight residual copies");
  const bool fours = in_fours(dim, {h.data, y.data}) && (!also || in_fours(dim, {also.data}));
  const auto kernel = m <= 4 ? (fours ? expand_kernel<4, true> : expand_kernel<4, false>)
                             : (fours ? expand_kernel<8, true> : expand_kernel<8, false>);
  const row_grid g = cover_rows(n_rows, (dim + 3) / 4);
  launch_early(kernel, g.grid, g.block, 0, lane.on, "expand", h.f32(), y.f32(), also ? also.f32() : nullptr, post.f32(),
               comb.f32(), n_rows, static_cast<int>(m), dim);
}

void expand_fold_norm_cuda(tensor h, tensor y, tensor also, tensor post, tensor comb, tensor x, tensor pre,
                           tensor weight, float eps, const cuda_lane& lane) {
  if (h.n_elements() == 0) return;
  // Rows, below which latency counts and not bytes: one block moves a row's streams in 3 us, the two kernels in as
  // much with their starts (a step of one row of four layers 0.974 ms for 0.963, H200).
  constexpr int64_t fewest = 256;
  const int64_t n_rows = h.shape[0], m = h.shape[1], dim = h.shape[2], threads = threads_of_row(dim);
  if (n_rows < fewest || m != expand_fold_copies || threads > expand_fold_threads || 4 * threads * held_fours < dim) {
    expand_cuda(h, y, also, post, comb, lane);
    return fold_norm_cuda(x, h, pre, weight, eps, lane);
  }
  TROUPE_CHECK(y.n_elements() == n_rows * dim && x.n_elements() == n_rows * dim && weight.n_elements() == dim &&
                   (!also || also.n_elements() == n_rows * dim) && post.n_elements() == n_rows * m &&
                   pre.n_elements() == n_rows * m && comb.n_elements() == n_rows * m * m,
               "residual copies are expanded from rows, and folded into rows, as wide as they are");
  const expand_fold a{h.f32(),    x.f32(),   y.f32(),      also ? also.f32() : nullptr, post.f32(),
                      comb.f32(), pre.f32(), weight.f32(), static_cast<int>(dim),       eps};
  const bool fours = in_fours(dim, {h.data, x.data, y.data, weight.data}) && (!also || in_fours(dim, {also.data}));
  launch_early(fours ? expand_fold_norm_kernel<true> : expand_fold_norm_kernel<false>, static_cast<unsigned>(n_rows),
               static_cast<unsigned>(threads), 0, lane.on, "expand_fold_norm", a);
}

void mean_copies_cuda(tensor y, tensor h, const cuda_lane& lane) {
  if (h.n_elements() == 0) return;
  const int64_t n_rows = h.shape[0], m = h.shape[1], dim = h.shape[2];
  TROUPE_CHECK(y.n_elements() == n_rows * dim, "a mean has the width of a copy");
  const auto kernel = in_fours(dim, {y.data, h.data}) ? mean_kernel<true> : mean_kernel<false>;
  const row_grid g = cover_rows(n_rows, (dim + 3) / 4);
  launch_early(kernel, g.grid, g.block, 0, lane.on, "mean_copies", y.f32(), h.f32(), n_rows, static_cast<int>(m), dim);
}

} // namespace troupe
