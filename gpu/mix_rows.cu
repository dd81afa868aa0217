// Tensor cores make the 24 products of a row while its elements pass by once; a second kernel adds up the slices.
#include "gpu/mix_rows.h"

#include "gpu/async_copy.cuh"
#include "gpu/cuda_check.cuh"
#include "gpu/mix_coefficients.cuh"
#include "gpu/mma.cuh"
#include "gpu/plain_linear.h"
#include "gpu/row_grid.cuh"

#include <algorithm>

namespace troupe {
namespace {

constexpr int copies = 4, outs = (2 + copies) * copies, out_tiles = outs / 8;
constexpr int chunk = plain_slices::chunk, steps = chunk / 16, n_parts = 3;
constexpr int warp_rows = 16, stage_inputs = 32, stage_pieces = stage_inputs / 4, stages = 4;
constexpr int part_width = outs + 2; // of a row of a slice: the products, the sum of squares, and one for alignment

struct mix_product {
  const float *h, *fn;
  float* part; // (slices, rows, part_width)
  int64_t rows;
  int in;
  plain_slices slices;
};

// Four floats, k .. k + 3, as two pairs of bf16 each of three parts.
__device__ __forceinline__ void split_four(float4 v, uint32_t (&low)[n_parts], uint32_t (&high)[n_parts]) {
#pragma unroll
  for (int i = 0; i < n_parts; ++i) {
    low[i] = device::bits_of(__floats2bfloat162_rn(v.x, v.y));
    high[i] = device::bits_of(__floats2bfloat162_rn(v.z, v.w));
    if (i == n_parts - 1) break;
    v.x -= __uint_as_float(low[i] << 16), v.y -= __uint_as_float(low[i] & 0xFFFF0000U);
    v.z -= __uint_as_float(high[i] << 16), v.w -= __uint_as_float(high[i] & 0xFFFF0000U);
  }
}

// 16 bytes. Those around them will be wanted soon: memory gives 256 as one.
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Pending> __device__ __forceinline__ void await_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// h: of a warp, 32 inputs of 16 rows a stage; the piece of 16 bytes c of row r at place c ^ 4 (r & 1), so that eight
// lanes which read four pieces of two rows meet every bank once. fn: a chunk as the warps read it, one being multiplied
// while the next is made; and its floats before that.
template <int Warps> struct mix_memory {
  static constexpr int quads = outs * chunk / 4 / (32 * Warps); // of a thread
  float4 h[Warps][stages][warp_rows * stage_pieces];
  uint4 first[2][steps][out_tiles][32]; // of a lane: parts 0 and 1 of four inputs
  uint2 last[2][steps][out_tiles][32];
  float4 raw[quads][32 * Warps];
};

// Where a lane's copies of h come from and go to: four rows, 16 bytes each, so that eight lanes ask for a whole line of
// 128 bytes of a row. The L2 cache answers lines; at half a line a time it was what bounded this kernel.
struct stream_copies {
  const float* from[4];
  float4* to;
  int n_stages, next = 0;
  __device__ stream_copies(const mix_product& p, int64_t first_row, int begin, int count, float4* stage, int lane)
      : n_stages(count) {
    const int row = lane / stage_pieces, piece = lane % stage_pieces;
#pragma unroll
    for (int i = 0; i < 4; ++i) from[i] = p.h + min(first_row + row + 4 * i, p.rows - 1) * p.in + begin + 4 * piece;
    to = stage + row * stage_pieces + (piece ^ 4 * (row & 1));
  }
  __device__ __forceinline__ void copy(int slot) {
    if (next < n_stages) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        copy_async(to + (slot * warp_rows + 4 * i) * stage_pieces, from[i] + next * stage_inputs);
    }
    ++next;
    end_group();
  }
};

// What a thread copies of fn, and splits when it is wanted next: only floats that it has copied itself.
template <int Warps> struct weight_chunks {
  static constexpr int threads = 32 * Warps, row_quads = chunk / 4;
  mix_memory<Warps>& memory;
  const mix_product& p;
  int begin;
  __device__ __forceinline__ void copy(int c) const {
    const int tid = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int u = 0; u < memory.quads; ++u) {
      const int i = u * threads + tid;
      copy_async(&memory.raw[u][tid],
                 p.fn + static_cast<int64_t>(i / row_quads) * p.in + begin + c * chunk + i % row_quads * 4);
    }
  }
  __device__ __forceinline__ void place(int at) const {
    const int tid = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int u = 0; u < memory.quads; ++u) {
      const int i = u * threads + tid, n = i / row_quads, k = i % row_quads; // k: in fours
      uint32_t low[n_parts], high[n_parts];
      split_four(memory.raw[u][tid], low, high);
      const int to = n % 8 * 4 + k % 4;
      memory.first[at][k / 4][n / 8][to] = make_uint4(low[0], high[0], low[1], high[1]);
      memory.last[at][k / 4][n / 8][to] = make_uint2(low[2], high[2]);
    }
  }
};

// Sixteen inputs: x of rows g and g + 8. Of the products of parts those with numbers 0 + 0 go into `large`, those whose
// numbers add up to 1 or 2 into `small`, the smallest first; the rest is below 2^-24.
__device__ __forceinline__ void multiply_step(float (&large)[out_tiles][4], float (&small)[out_tiles][4],
                                              const float4 (&v)[2], const uint4 (*first)[32], const uint2 (*last)[32]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t x[n_parts][4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t low[n_parts], high[n_parts];
    split_four(v[i], low, high);
#pragma unroll
    for (int part = 0; part < n_parts; ++part) x[part][i] = low[part], x[part][2 + i] = high[part];
  }
#pragma unroll
  for (int n = 0; n < out_tiles; ++n) {
    const uint4 w = first[n][lane];
    const uint2 w2 = last[n][lane];
    const uint32_t w_of[n_parts][2] = {{w.x, w.y}, {w.z, w.w}, {w2.x, w2.y}};
    device::multiply_add(large[n], x[0], w_of[0]);
#pragma unroll
    for (int sum = n_parts - 1; sum > 0; --sum)
#pragma unroll
      for (int part = 0; part <= sum; ++part) device::multiply_add(small[n], x[part], w_of[sum - part]);
  }
}

// A warp owns 16 rows of a slice; the warps of a block share the weights. Bound by the bytes of h, of which a
// multiprocessor has up to 96 KB on their way. The order of inputs in a product is free, so a lane takes four that lie
// together: 16 (k / 16) + 4 (lane % 4) .. + 3 of rows lane / 4 and 8 below.
template <int Warps>
__global__ void __launch_bounds__(32 * Warps, Warps == 8 ? 2 : 3) mix_products_kernel(mix_product p) {
  extern __shared__ __align__(16) uint8_t bytes[];
  auto& memory = *reinterpret_cast<mix_memory<Warps>*>(bytes);
  constexpr int chunk_stages = chunk / stage_inputs, stage_steps = stage_inputs / 16;
  static_assert(chunk_stages == stages);
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, g = lane / 4, t = lane % 4;
  const int slice = static_cast<int>(blockIdx.x), begin = slice * p.slices.inputs;
  const int n_chunks = (min(p.in, begin + p.slices.inputs) - begin) / chunk;
  const int64_t first_row = (static_cast<int64_t>(blockIdx.y) * Warps + tid / 32) * warp_rows;

  const weight_chunks<Warps> weights{memory, p, begin};
  weights.copy(0);
  end_group();
  float4* const own = memory.h[tid / 32][0];
  stream_copies stream(p, first_row, begin, n_chunks * chunk_stages, own, lane);
#pragma unroll
  for (int s = 0; s < stages - 1; ++s) stream.copy(s);
  await_groups<stages - 1>();
  weights.place(0);
  if (n_chunks > 1) weights.copy(1);
  __syncthreads();

  float total[out_tiles][4] = {}, small[out_tiles][4] = {}, squares[2] = {};
  const float4* const from = own + g * stage_pieces + (t ^ 4 * (g & 1));
  const float4* const from_next = own + g * stage_pieces + ((4 + t) ^ 4 * (g & 1));
  for (int c = 0; c < n_chunks; ++c) {
    float large[out_tiles][4] = {}, sum[2] = {};
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      const int stage = s / stage_steps;
      if (s % stage_steps == 0) {
        await_groups<stages - 2>();
        __syncwarp(); // and all lanes have read the stage before this one
        stream.copy((stage + stages - 1) % stages);
      }
      const float4* const at = (s % stage_steps == 0 ? from : from_next) + stage * warp_rows * stage_pieces;
      const float4 v[2] = {at[0], at[8 * stage_pieces]};
#pragma unroll
      for (int i = 0; i < 2; ++i) sum[i] = device::fused_squares(v[i], sum[i]);
      multiply_step(large, small, v, memory.first[c % 2][s], memory.last[c % 2][s]);
    }
#pragma unroll
    for (int n = 0; n < out_tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) total[n][i] += large[n][i];
#pragma unroll
    for (int i = 0; i < 2; ++i) squares[i] += sum[i];
    // Those floats came with the first stage of this chunk at the latest.
    if (c + 1 < n_chunks) weights.place((c + 1) % 2);
    if (c + 2 < n_chunks) weights.copy(c + 2);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    squares[i] = device::lanes_sum(squares[i], 4);
    const int64_t row = first_row + g + 8 * i;
    if (row >= p.rows) continue;
    float* to = p.part + (slice * p.rows + row) * part_width;
#pragma unroll
    for (int n = 0; n < out_tiles; ++n)
      *reinterpret_cast<float2*>(to + n * 8 + 2 * t) =
          make_float2(total[n][2 * i] + small[n][2 * i], total[n][2 * i + 1] + small[n][2 * i + 1]);
    if (t == 0) to[outs] = squares[i];
  }
}

// Half a warp owns a row; bound by the steps of Sinkhorn, whose latency many warps hide for each other.
constexpr int tail_warps = 4;
__global__ void __launch_bounds__(32 * tail_warps)
    mix_rows_kernel(mix_pointers a, const float* part, int64_t n_rows, int n_slices) {
  __shared__ float sums[2 * tail_warps][outs + 1];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * tail_warps + warp) * 2;
  if (first >= n_rows) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (lane > outs || first + i >= n_rows) continue;
    const float* from = part + (first + i) * part_width + lane;
    float sum = from[0];
#pragma unroll 8
    for (int s = 1; s < n_slices; ++s) sum += from[s * n_rows * part_width];
    sums[2 * warp + i][lane] = sum;
  }
  __syncwarp();
  const int64_t r = min(first + lane / 16, n_rows - 1); // an odd last row has two halves, which write the same
  const float* z = sums[2 * warp + static_cast<int>(r - first)];
  const float by = 1.0F / sqrtf(z[outs] / static_cast<float>(a.width) + a.eps);
  make_comb<copies, 1, 16>(a, z, by, a.comb + r * copies * copies);
  if (lane % 16 < 2 * copies) make_gate(a, z, by, r, copies, lane % 16);
}

template <int Warps> void launch_products(const mix_product& p, const cuda_lane& lane) {
  constexpr int64_t rows = Warps * warp_rows;
  const auto kernel = mix_products_kernel<Warps>;
  constexpr int shared_bytes = sizeof(mix_memory<Warps>);
  static_assert(shared_bytes <= 113 << 10, "two blocks share a multiprocessor");
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes), "mix: products");
  const dim3 grid(static_cast<unsigned>(p.slices.n), static_cast<unsigned>((p.rows + rows - 1) / rows));
  kernel<<<grid, 32 * Warps, shared_bytes, lane.on>>>(p);
  cuda_check_launch("mix: products");
}

} // namespace

bool mix_rows_serve(const matrix_view& fn) {
  return !fn.is_trellis && fn.plain.how == plain_view::format::f32 && fn.bias == nullptr && fn.out == outs &&
         fn.in % chunk == 0;
}

void mix_rows_cuda(mix_pointers a, const matrix_view& fn, int64_t n_rows, const cuda_lane& lane) {
  const plain_slices slices(fn.in);
  const int64_t row_bytes = slices.n * part_width * 4;
  const int64_t slab = std::min<int64_t>(lane.scratch_bytes / row_bytes, 65535 * 2 * warp_rows);
  TROUPE_CHECK(slab > 0, "the scratch of a lane holds the slices of a row");
  TROUPE_CHECK(in_fours(fn.in, {a.h, fn.plain.weight}), "streams and weights lie at multiples of 16 bytes");
  for (int64_t first = 0; first < n_rows; first += slab) {
    const int64_t n = std::min(slab, n_rows - first);
    const mix_product p{
        a.h, static_cast<const float*>(fn.plain.weight), reinterpret_cast<float*>(lane.scratch), n, fn.in, slices};
    const bool fills = n * slices.n * 4 >= 3 * 8 * warp_rows * int64_t{lane.n_multiprocessors}; // as good as a turn
    const bool fits = lane.block_shared_bytes >= int64_t{sizeof(mix_memory<8>)}; // not on cards with 99 KB a block
    fills&& fits ? launch_products<8>(p, lane) : launch_products<2>(p, lane);
    mix_rows_kernel<<<static_cast<unsigned>((n + 2 * tail_warps - 1) / (2 * tail_warps)), 32 * tail_warps, 0,
                      lane.on>>>(a, p.part, n, slices.n);
    cuda_check_launch("mix: coefficients");
    a.pre += n * copies, a.post += n * copies, a.comb += n * copies * copies, a.h += n * fn.in;
  }
}

} // namespace troupe
