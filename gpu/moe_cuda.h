// Routed experts on the device: (row, slot) pairs are sorted by expert into runs of up to eight rows, so that an expert
// hit by several rows is decoded once.                                                      Spec: exl3.md 10.3, 13.2.
#pragma once

#include "gpu/cuda_matrix.h"

namespace troupe {

constexpr int max_run_rows = 8;

// Some of the pairs of one expert. Pair p is slot p % k of row p / k.
struct expert_run {
  int32_t expert;             // of the set, from 0
  int32_t first;              // place of pair[0] among all sorted pairs
  int32_t n_pairs;            // 1 .. 8
  int32_t pair[max_run_rows]; // ascending
};

// Where a pair stands; run < 0: its expert is not in the set.
struct run_place {
  int32_t run, at;
};

// In device memory, made by plan_runs or few_runs.
struct run_list {
  int32_t* n_runs = nullptr;
  expert_run* runs = nullptr;  // room for one run a pair
  run_place* places = nullptr; // (pairs)
};

struct moe_args {
  const float* x = nullptr;       // (rows, dim)
  float* y = nullptr;             // (rows, dim)
  const int32_t* ids = nullptr;   // (rows, k) global
  const float* weights = nullptr; // (rows, k)
  int32_t rows = 0, k = 0, dim = 0, width = 0, first = 0, n_experts = 0;
  float limit = 0;
  const matrix_view* table = nullptr; // (n_experts, 3) in device memory
  run_list list;
  float* hidden = nullptr;      // (pairs, width) after the activation
  float* outputs = nullptr;     // (pairs, dim)
  float* partial = nullptr;     // (sorted pairs, chunks, parts, 128) of the larger of the two products
  uint32_t* counters = nullptr; // of the lane
  int64_t n_counters = 0;
  int32_t n_multiprocessors = 0, multiprocessor_shared_bytes = 0, most_cluster = 1; // of the lane
  int32_t run_rows = max_run_rows;                                                  // rows of a run at most: 4 or 8
};

// No more runs than pairs, nor than one an expert and one for each full one.
inline int most_runs(const moe_args& a) {
  const int pairs = a.rows * a.k, full = a.n_experts + pairs / a.run_rows;
  return pairs < full ? pairs : full;
}

inline int padded_chunks(int n) { return (n + 127) / 128; } // Hadamard blocks of a real width

// y = sum over slots of this rank, in slot order (prefill class: in order of experts). In slabs of rows that fit the
// lane's scratch.
void experts_cuda(tensor y, tensor x, const cuda_expert_set&, tensor ids, tensor weights, float limit,
                  const cuda_lane&);
// y = the gated product of three matrices of any formats.
void gated_mlp_cuda(tensor y, tensor x, const matrix_view& gate, const matrix_view& up, const matrix_view& down,
                    float limit, const cuda_lane&);

// The two products of all runs in the byte form, which serves codebook mul1 when the widths fit; their buffers lie at
// `partial`. moe_bytes.cu
bool moe_bytes_fit(int32_t dim, int32_t width);
int64_t moe_bytes_scratch(const moe_args&);
void moe_gate_up_bytes(const moe_args&, int32_t rate, cuda_stream on);
void moe_down_bytes(const moe_args&, int32_t rate, cuda_stream on);

// The two products of all runs in the f16 form, for a rate each. moe_trellis_*.cu
void moe_gate_up_mul1(const moe_args&, int32_t rate, cuda_stream on);
void moe_down_mul1(const moe_args&, int32_t rate, cuda_stream on);
void moe_gate_up_mcg(const moe_args&, int32_t rate, cuda_stream on);
void moe_down_mcg(const moe_args&, int32_t rate, cuda_stream on);
void moe_gate_up_inst3(const moe_args&, int32_t rate, cuda_stream on);
void moe_down_inst3(const moe_args&, int32_t rate, cuda_stream on);

} // namespace troupe
