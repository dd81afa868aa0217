// What fills the caches: rotation, compressed pairs, entries of paged caches, window rings.
#include "gpu/attention.h"

#include "gpu/cache_rows.cuh"
#include "gpu/cuda_check.cuh"
#include "gpu/cuda_ops.h"
#include "gpu/device_math.cuh"
#include "gpu/early_launch.cuh"
#include "gpu/row_grid.cuh"

namespace troupe {
namespace {

constexpr int64_t max_dim = 1024;
// 64 heads of one decode row are eight blocks, of a prompt's row one: the sines of a row are made once.
constexpr int64_t heads_of_block = 8, heads_of_full_block = 64, fewest_full = 1024; // rows
constexpr int held_heads = 8;                                                       // of a thread at a time

// Bound by the bytes of the rotated parts, few rows by latency: positions are older than the kernel before this
// one, so the sines of a block's first row are made before that has ended. A block owns `n_heads` heads of a
// row: its first threads make the sines and cosines, with the argument reduced in full (position times frequency
// reaches a million), then thread (x, y) turns pairs x, x + blockDim.x, .. of heads y, y + blockDim.y, ..
template <bool Pairs>
__global__ void __launch_bounds__(256)
    rope_kernel(float* x, const int64_t* positions, const float* frequencies, int64_t n_rows, int64_t heads,
                int64_t n_heads, int64_t dim, int n, bool inverse) {
  __shared__ float2 turn[max_dim / 2];
  const int64_t first_head = static_cast<int64_t>(blockIdx.x) * n_heads;
  const int64_t end_head = first_head + n_heads < heads ? first_head + n_heads : heads;
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  for (int64_t r = blockIdx.y; r < n_rows; r += gridDim.y) {
    const int64_t t = positions[r];
    for (int p = thread; t >= 0 && p < n; p += static_cast<int>(blockDim.x * blockDim.y)) {
      float sine, cosine;
      sincosf(static_cast<float>(t) * frequencies[p], &sine, &cosine);
      turn[p] = make_float2(cosine, inverse ? -sine : sine);
    }
    if (r == blockIdx.y) begin_in_turn();
    if (t < 0) continue;
    __syncthreads();
    const int64_t step = blockDim.y * dim;
    for (int64_t head = first_head + threadIdx.y; head < end_head; head += held_heads * blockDim.y)
      for (int p = static_cast<int>(threadIdx.x); p < n; p += static_cast<int>(blockDim.x)) {
        float* at = x + (r * heads + head) * dim + dim - 2 * n + 2 * p;
        const int64_t left = (end_head - head + blockDim.y - 1) / blockDim.y;
        float2 v[held_heads];
#pragma unroll
        for (int i = 0; i < held_heads; ++i)
          if (i < left)
            v[i] =
                Pairs ? *reinterpret_cast<const float2*>(at + i * step) : make_float2(at[i * step], at[i * step + 1]);
#pragma unroll
        for (int i = 0; i < held_heads; ++i) {
          if (i >= left) break;
          const float re = v[i].x * turn[p].x - v[i].y * turn[p].y, im = v[i].x * turn[p].y + v[i].y * turn[p].x;
          if constexpr (Pairs) {
            *reinterpret_cast<float2*>(at + i * step) = make_float2(re, im);
          } else {
            at[i * step] = re;
            at[i * step + 1] = im;
          }
        }
      }
    __syncthreads(); // before the next row's turns
  }
}

// The rows of a step, as kernels take them.
struct row_pointers {
  const int32_t *slot, *first_row, *table, *tables;
  const int64_t* position;
  int64_t n_rows, max_blocks;
};
row_pointers to_pointers(const step_rows& rows, int64_t n_rows) {
  return {rows.slot.i32(), rows.first_row.i32(), rows.table.i32(), rows.tables.i32(), rows.position.i64(),
          n_rows,          rows.tables.shape[1]};
}

// True when row r + ahead is of the same sequence.
__device__ bool reaches(const row_pointers& rows, int64_t r, int64_t ahead) {
  return r + ahead < rows.n_rows && rows.first_row[r + ahead] == rows.first_row[r];
}

// Where rows of a cache go: as floats, or as records of a quantiser. A thread stores elements i .. i + 3 of a row.
template <bool Fours> struct float_rows {
  static constexpr bool fours = Fours;
  float* cache;
  int64_t dim;
  __device__ void store(int64_t row, int64_t i, float4 v) const {
    device::store_four<Fours>(cache + row * dim, i, dim, v);
  }
};
template <quantiser How> struct record_rows {
  static constexpr bool fours = true;
  uint8_t* cache;
  int64_t dim, row_bytes;
  __device__ void store(int64_t row, int64_t i, float4 v) const {
    device::store_four_of_record<How>(cache + row * row_bytes, static_cast<int>(row_bytes), static_cast<int>(i),
                                      static_cast<int>(dim), v);
  }
};

// Bound by bytes, as are those below. A thread owns four elements of a row. No two rows of a step name one entry.
template <class Rows>
__global__ void scatter_kernel(Rows cache, const float* x, const int32_t* entries, row_pointers rows,
                               int64_t per_block) {
  begin_in_turn();
  const int64_t i = 4 * device::piece_of_row();
  if (i >= cache.dim) return;
  for (int64_t r = device::first_of_rows(); r < rows.n_rows; r += device::step_of_rows()) {
    const int64_t e = entries[r];
    if (e < 0) continue;
    const int64_t block = rows.tables[rows.table[r] * rows.max_blocks + e / per_block];
    cache.store(block * per_block + e % per_block, i, device::load_four<Rows::fours>(x + r * cache.dim, i, cache.dim));
  }
}

// Positions of a sequence rise by one a row, so the row `ring` further on takes the same place: the newest of them has
// no such row, and it alone writes.
template <class Rows> __global__ void rings_kernel(Rows rings, const float* x, row_pointers rows, int64_t ring) {
  begin_in_turn();
  const int64_t i = 4 * device::piece_of_row();
  if (i >= rings.dim) return;
  for (int64_t r = device::first_of_rows(); r < rows.n_rows; r += device::step_of_rows()) {
    if (reaches(rows, r, ring)) continue;
    rings.store(rows.slot[r] * ring + rows.position[r] % ring, i,
                device::load_four<Rows::fours>(x + r * rings.dim, i, rings.dim));
  }
}

struct pair_pointers {
  float* c;
  const float *u, *g;
  float* pending; // (n_slots, pairs, 2, d)
  int64_t pairs, dim;
};

// Where u of an even position is held; g is `dim` further.
__device__ float* held(const pair_pointers& a, const row_pointers& rows, int64_t r, int64_t position) {
  return a.pending + (rows.slot[r] * a.pairs + position / 2 % a.pairs) * 2 * a.dim;
}

// The last row of r's sequence among r - 1 + period, r - 1 + 2 period, ..; -1: none. By halving, since a sequence's
// rows are neighbours.
__device__ int64_t newest_of_place(const row_pointers& rows, int64_t r, int64_t period) {
  int64_t low = 0, high = (rows.n_rows - r) / period + 1; // Invariant: low is reached (or 0), high is not.
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (reaches(rows, r, middle * period - 1) ? low : high) = middle;
  }
  return low == 0 ? -1 : r - 1 + low * period;
}

template <bool Fours> __device__ void hold(const pair_pointers& a, float* to, int64_t from_row, int64_t i) {
  const int64_t at = from_row * a.dim;
  device::store_four<Fours>(to, i, a.dim, device::load_four<Fours>(a.u + at, i, a.dim));
  device::store_four<Fours>(to + a.dim, i, a.dim, device::load_four<Fours>(a.g + at, i, a.dim));
}

__device__ float compress_pair(float u0, float g0, float u1, float g1) {
  const float top = g0 < g1 ? g1 : g0;
  const float e0 = device::exp_f32(g0 - top), e1 = device::exp_f32(g1 - top);
  return (e0 * u0 + e1 * u1) / (e0 + e1);
}

// Every place of `pending` has one writer. A place that the step begins by reading (its first position is odd) is
// written by the threads that read it, after they did; any other by the newest even row that belongs there.
template <bool Fours> __global__ void compress_kernel(pair_pointers a, row_pointers rows) {
  begin_in_turn();
  const int64_t i = 4 * device::piece_of_row();
  if (i >= a.dim) return;
  const int64_t period = 2 * a.pairs;
  for (int64_t r = device::first_of_rows(); r < rows.n_rows; r += device::step_of_rows()) {
    const int64_t t = rows.position[r], first = rows.first_row[r], t0 = rows.position[first];
    if (t % 2 == 0) {
      const bool is_read = t0 % 2 != 0 && t / 2 % a.pairs == (t0 - 1) / 2 % a.pairs;
      if (!is_read && !reaches(rows, r, period)) hold<Fours>(a, held(a, rows, r, t), r, i);
      continue;
    }
    float* place = r > first ? nullptr : held(a, rows, r, t - 1);
    const float* u0 = place == nullptr ? a.u + (r - 1) * a.dim : place;
    const float* g0 = place == nullptr ? a.g + (r - 1) * a.dim : place + a.dim;
    const float4 u_even = device::load_four<Fours>(u0, i, a.dim), g_even = device::load_four<Fours>(g0, i, a.dim);
    const float4 u = device::load_four<Fours>(a.u + r * a.dim, i, a.dim);
    const float4 g = device::load_four<Fours>(a.g + r * a.dim, i, a.dim);
    device::store_four<Fours>(
        a.c + r * a.dim, i, a.dim,
        make_float4(compress_pair(u_even.x, g_even.x, u.x, g.x), compress_pair(u_even.y, g_even.y, u.y, g.y),
                    compress_pair(u_even.z, g_even.z, u.z, g.z), compress_pair(u_even.w, g_even.w, u.w, g.w)));
    if (place == nullptr) continue;
    const int64_t newest = newest_of_place(rows, r, period);
    if (newest >= 0) hold<Fours>(a, place, newest, i);
  }
}

} // namespace

void rope_cuda(tensor x, tensor positions, tensor frequencies, bool inverse, const cuda_lane& lane) {
  const int64_t n_rows = x.rows(), n = frequencies.n_elements();
  if (n_rows == 0 || n == 0 || x.n_elements() == 0) return;
  const int64_t dim = x.shape[x.rank - 1], heads = x.row_elements() / dim;
  TROUPE_CHECK(2 * n <= dim && dim <= max_dim && positions.n_elements() >= n_rows, "the rope part fits into a head");
  unsigned wide = 1;
  while (wide < n && wide < 256) wide *= 2;
  unsigned high = 1;
  while (high < heads && high < heads_of_block && wide * high < 256) high *= 2;
  const int64_t n_heads = n_rows >= fewest_full ? heads_of_full_block : heads_of_block;
  const dim3 grid(static_cast<unsigned>((heads + n_heads - 1) / n_heads),
                  static_cast<unsigned>(std::min<int64_t>(n_rows, 65535)));
  const bool pairs = dim % 2 == 0 && reinterpret_cast<uintptr_t>(x.data) % 8 == 0;
  const auto kernel = pairs ? rope_kernel<true> : rope_kernel<false>;
  launch_early(kernel, grid, dim3(wide, high), 0, lane.on, "rope", x.f32(), positions.i64(), frequencies.f32(), n_rows,
               heads, n_heads, dim, static_cast<int>(n), inverse);
}

namespace {

// run(the rows of `cache` in their form).
template <class Run> void with_rows(const tensor& cache, const tensor& x, quantiser how, const Run& run) {
  const int64_t dim = x.row_elements();
  if (!holds_records(cache, how, dim)) {
    if (in_fours(dim, {cache.data, x.data})) return run(float_rows<true>{cache.f32(), dim});
    return run(float_rows<false>{cache.f32(), dim});
  }
  TROUPE_CHECK(reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && reinterpret_cast<uintptr_t>(cache.data) % 4 == 0,
               "rows of whole groups begin at 16 bytes, records at 4");
  auto* records = cache.as<uint8_t>();
  const int64_t row_bytes = cache.shape[2];
  switch (how) {
  case quantiser::fp8_32: return run(record_rows<quantiser::fp8_32>{records, dim, row_bytes});
  case quantiser::fp4_e8m0_32: return run(record_rows<quantiser::fp4_e8m0_32>{records, dim, row_bytes});
  case quantiser::fp4_e4m3_16: return run(record_rows<quantiser::fp4_e4m3_16>{records, dim, row_bytes});
  }
}

} // namespace

void scatter_entries_cuda(tensor cache, tensor x, tensor entries, quantiser how, const step_rows& rows,
                          const cuda_lane& lane) {
  const int64_t n_rows = x.rows();
  if (n_rows == 0) return;
  TROUPE_CHECK(entries.n_elements() >= n_rows, "every row has its entry, or none");
  const row_grid g = cover_rows(n_rows, (x.row_elements() + 3) / 4);
  with_rows(cache, x, how, [&](auto to) {
    launch_early(scatter_kernel<decltype(to)>, g.grid, g.block, 0, lane.on, "scatter_entries", to, x.f32(),
                 entries.i32(), to_pointers(rows, n_rows), cache.shape[1]);
  });
}

void write_rings_cuda(tensor rings, tensor x, const step_rows& rows, const cuda_lane& lane) {
  const int64_t n_rows = x.rows();
  if (n_rows == 0) return;
  TROUPE_CHECK(rings.shape[1] > 0, "a ring has rows");
  const row_grid g = cover_rows(n_rows, (x.row_elements() + 3) / 4);
  with_rows(rings, x, quantiser::fp8_32, [&](auto to) {
    launch_early(rings_kernel<decltype(to)>, g.grid, g.block, 0, lane.on, "write_rings", to, x.f32(),
                 to_pointers(rows, n_rows), rings.shape[1]);
  });
}

void compress_pairs_cuda(tensor c, tensor u, tensor g, tensor pending, const step_rows& rows, const cuda_lane& lane) {
  const int64_t n_rows = u.rows();
  if (n_rows == 0) return;
  const pair_pointers a{c.f32(), u.f32(), g.f32(), pending.f32(), pending.shape[1], u.shape[1]};
  TROUPE_CHECK(a.pairs > 0 && pending.shape[3] == a.dim && c.n_elements() == u.n_elements() &&
                   g.n_elements() == u.n_elements(),
               "the halves of a pair have one width");
  const row_grid grid = cover_rows(n_rows, (a.dim + 3) / 4);
  const auto kernel =
      in_fours(a.dim, {c.data, u.data, g.data, pending.data}) ? compress_kernel<true> : compress_kernel<false>;
  launch_early(kernel, grid.grid, grid.block, 0, lane.on, "compress_pairs", a, to_pointers(rows, n_rows));
}

} // namespace troupe
