// The two products of EXL3 experts of codebook mul1: pack the rows of every run, multiply.       Spec:
// exl3.md 10.3, 13.2.
#include "gpu/gated.cuh"
#include "gpu/moe_cuda.h"
#include "gpu/product_launch.cuh"

namespace troupe {
namespace {

// Codes and packed rows of a run's matrix: `which` of n (gate and up, or down alone).
struct run_codes {
  uint8_t* codes;
  packed_row* packed;
  int32_t in, n;
  int32_t groups; // of four rows, of every run
  __device__ uint8_t* of(int run, int which) const {
    return codes + (static_cast<int64_t>(run) * n + which) * packed_bytes(in);
  }
  __device__ packed_row* row(int run, int which, int r) const { return packed + (run * n + which) * max_run_rows + r; }
};

// svh of stored columns, of which there are whole chunks.
__device__ __forceinline__ uint2 four_halves(const uint16_t* at) { return *reinterpret_cast<const uint2*>(at); }
__device__ __forceinline__ float half_of(uint2 four, int i) {
  return f16_bits(static_cast<uint16_t>((i < 2 ? four.x : four.y) >> (16 * (i % 2))));
}

// Grid (pairs, a cluster each; matrices): the row of a pair for each of its matrices.
template <int First, int Jobs>
__global__ void __launch_bounds__(pack_threads) pack_runs_kernel(moe_args a, run_codes to, int n_sharers) {
  const row_sharer me(blockIdx.x, n_sharers);
  const int which = blockIdx.y, pair = static_cast<int>(blockIdx.x) / n_sharers;
  // Ids are older than the kernel before this one, which made the runs or multiplied them; from the L2, since no cache
  // of a multiprocessor need know of a kernel that nothing here has waited for.
  const int expert = __ldcg(a.ids + pair) - a.first;
  if (expert < 0 || expert >= a.n_experts) return begin_in_turn();
  const matrix_view& m = a.table[expert * 3 + First + which];
  const float* x =
      First == 0 ? a.x + static_cast<int64_t>(pair / a.k) * a.dim : a.hidden + static_cast<int64_t>(pair) * a.width;
  packing_row<Jobs> row(m.trellis.suh, m.trellis.in, me);
  // So is x: rows of gate and up are transformed while the runs are made, by a kernel that waits for the one before it
  // first and writes no x. hidden is of the kernel before this one.
  if constexpr (First == 0) row.transform(x, m.in);
  begin_in_turn();
  if constexpr (First != 0) row.transform(x, m.in);
  const run_place place = a.list.places[pair];
  row.store(to.of(place.run, which), to.groups, place.at, to.row(place.run, which, place.at));
}

// Columns (run, chunk of the width, gate or up); a chunk's two are finished together.
struct gate_up_columns {
  static constexpr int parts = 2;
  moe_args a;
  run_codes from;
  int32_t chunks, rate;

  __device__ int32_t n_items() const { return __ldcg(a.list.n_runs) * chunks; } // early, like ids
  __device__ int32_t rows() const { return from.in / 16; }
  __device__ int run_of(int column) const { return column / (2 * chunks); }
  __device__ const trellis_view& matrix(int column) const {
    return a.table[__ldcg(&a.list.runs[run_of(column)].expert) * 3 + column % 2].trellis;
  }
  __device__ const uint32_t* words(int column) const {
    return matrix(column).words + static_cast<int64_t>(column / 2 % chunks) * rows() * (32 * rate);
  }
  __device__ int32_t n_rows(int column) const { return a.list.runs[run_of(column)].n_pairs; }
  __device__ const uint8_t* codes(int column) const { return from.of(run_of(column), column % 2); }

  __device__ void fetch_early(int column, int lane) const {
    fetch_lines(matrix(column).svh + column / 2 % chunks * chunk_columns, 2 * chunk_columns, lane, 32);
  }
  struct ready {
    row_scale gate, up;
    uint2 gate_svh, up_svh; // four f16 each
    int32_t pair;
    float weight;
  };
  __device__ ready prepare(int column, int r, int lane) const {
    const int run = run_of(column), first = column / 2 % chunks * chunk_columns + 4 * lane;
    const int32_t pair = a.list.runs[run].pair[r];
    return {from.row(run, 0, r)->load(),
            from.row(run, 1, r)->load(),
            four_halves(matrix(column).svh + first),
            four_halves(matrix(column + 1).svh + first),
            pair,
            a.weights[pair]};
  }
  template <class Sums> __device__ void finish(int column, const ready& with, const Sums& sums, int r, int lane) const {
    const int first = column / 2 % chunks * chunk_columns + 4 * lane;
    float g[4], u[4];
    sums.row(g, 0, r, with.gate);
    sums.row(u, 1, r, with.up);
    warp_hadamard(g, lane);
    warp_hadamard(u, lane);
    float* to = a.hidden + static_cast<int64_t>(with.pair) * a.width + first;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (first + i < a.width)
        to[i] = gated(g[i] * half_of(with.gate_svh, i), u[i] * half_of(with.up_svh, i), with.weight, a.limit);
  }
};

// Columns (run, chunk of the model's width).
struct down_columns {
  static constexpr int parts = 1;
  moe_args a;
  run_codes from;
  int32_t chunks, rate;

  __device__ int32_t n_items() const { return __ldcg(a.list.n_runs) * chunks; } // early, like ids
  __device__ int32_t rows() const { return from.in / 16; }
  __device__ const trellis_view& matrix(int column) const {
    return a.table[__ldcg(&a.list.runs[column / chunks].expert) * 3 + 2].trellis;
  }
  __device__ const uint32_t* words(int column) const {
    return matrix(column).words + static_cast<int64_t>(column % chunks) * rows() * (32 * rate);
  }
  __device__ int32_t n_rows(int column) const { return a.list.runs[column / chunks].n_pairs; }
  __device__ const uint8_t* codes(int column) const { return from.of(column / chunks, 0); }

  __device__ void fetch_early(int column, int lane) const {
    fetch_lines(matrix(column).svh + column % chunks * chunk_columns, 2 * chunk_columns, lane, 32);
  }
  struct ready {
    row_scale scale;
    uint2 svh; // four f16
    int32_t pair;
  };
  __device__ ready prepare(int column, int r, int lane) const {
    const int run = column / chunks, first = column % chunks * chunk_columns + 4 * lane;
    return {from.row(run, 0, r)->load(), four_halves(matrix(column).svh + first), a.list.runs[run].pair[r]};
  }
  template <class Sums> __device__ void finish(int column, const ready& with, const Sums& sums, int r, int lane) const {
    const int first = column % chunks * chunk_columns + 4 * lane;
    float v[4];
    sums.row(v, 0, r, with.scale);
    warp_hadamard(v, lane);
    float* to = a.outputs + static_cast<int64_t>(with.pair) * a.dim + first;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (first + i < a.dim) to[i] = v[i] * half_of(with.svh, i);
  }
};

int padded(int n) { return padded_chunks(n) * 128; }

// What a product takes of moe_args::partial, and how it is cut: `items` of each run, `parts` columns each.
struct run_buffers {
  run_codes codes;
  product_shape shape;
  int64_t size_bytes;
  run_buffers(const moe_args& a, int in, int items, int parts)
      : shape(int64_t{most_runs(a)} * items, in / 16 * parts, a.run_rows, a.n_multiprocessors) {
    const int64_t runs = most_runs(a), code_bytes = runs * parts * packed_bytes(in);
    auto* at = reinterpret_cast<std::byte*>(a.partial);
    codes = {reinterpret_cast<uint8_t*>(at), reinterpret_cast<packed_row*>(at + code_bytes), in, parts, shape.n_groups};
    size_bytes = code_bytes + runs * parts * max_run_rows * static_cast<int64_t>(sizeof(packed_row));
  }
};

run_buffers gate_up_buffers(const moe_args& a) { return {a, padded(a.dim), padded_chunks(a.width), 2}; }
run_buffers down_buffers(const moe_args& a) { return {a, padded(a.width), padded_chunks(a.dim), 1}; }

// A product of all runs: packs the rows of their matrices from `First` on, multiplies.
template <int First, class Columns>
void multiply_runs(const moe_args& a, const run_buffers& b, const Columns& columns, int32_t rate, cuda_stream on) {
  with_sharers(b.codes.in, a.most_cluster, [&]<int Jobs>(unsigned n_sharers) {
    launch_clusters(pack_runs_kernel<First, Jobs>, n_sharers, dim3(a.rows * a.k * n_sharers, b.codes.n), pack_threads,
                    0, on, "experts: pack", a, b.codes, static_cast<int>(n_sharers));
  });
  TROUPE_CHECK(b.shape.zeros_a_line(Columns::parts) <= a.n_counters, "a lane holds the sums of any line");
  with_rate<stored_matrix::codebook::mul1>(rate, [&]<int Rate>() {
    launch_byte_product<Rate>(columns, {b.shape, 1, a.multiprocessor_shared_bytes, a.counters, on});
  });
}

} // namespace

bool moe_bytes_fit(int32_t dim, int32_t width) {
  return padded(dim) <= most_packed_in && padded(width) <= most_packed_in;
}

int64_t moe_bytes_scratch(const moe_args& a) {
  return std::max(gate_up_buffers(a).size_bytes, down_buffers(a).size_bytes);
}

void moe_gate_up_bytes(const moe_args& a, int32_t rate, cuda_stream on) {
  const run_buffers b = gate_up_buffers(a);
  multiply_runs<0>(a, b, gate_up_columns{a, b.codes, padded_chunks(a.width), rate}, rate, on);
}

void moe_down_bytes(const moe_args& a, int32_t rate, cuda_stream on) {
  const run_buffers b = down_buffers(a);
  multiply_runs<2>(a, b, down_columns{a, b.codes, padded_chunks(a.dim), rate}, rate, on);
}

} // namespace troupe
