// The operations of backend.h on a CUDA device, one file of kernels for each group. Arguments are as there, with device
// tensors and f32 activations; the twin of each is the _host form, which says the order of its sums and its limits.
//
// All of them: no allocation, no synchronisation, no host read of device memory; capturable; rows == 0 is a no-op; the
// bits of a row do not depend on the number or the content of other rows. What needs scratch takes it from the lane and
// works in slabs of rows if it is small. Launch errors throw std::system_error naming the operation.
#pragma once

#include "gpu/backend.h"
#include "gpu/cuda_lane.h"

namespace troupe {

struct matrix_view; // cuda_matrix.h

// rows.cu: tables and rows.
void embed_cuda(tensor y, tensor table, int64_t first_id, tensor ids, const cuda_lane&); // table f32, bf16 or f16
void copy_rows_cuda(tensor y, tensor y_rows, tensor x, tensor x_rows, const cuda_lane&); // rows of any type
void add_cuda(tensor y, tensor x, const cuda_lane&);
void scale_cuda(tensor x, float by, const cuda_lane&);
void spread_cuda(tensor h, tensor x, const cuda_lane&);

// anchors.cu
void place_anchors_cuda(const anchor_args&, const cuda_lane&);
// arg_max.cu
void arg_max_cuda(tensor ids, tensor x, tensor x_rows, tensor y, const cuda_lane&);

// mailbox.cu
std::unique_ptr<mailbox> make_cuda_mailbox(int64_t n_bytes, const std::string& what, const cuda_lane&); // allocates
void receive_cuda(std::span<const tensor> to, const mailbox& from, const cuda_lane&);

// norm.cu, mix.cu, formats.cu
void rms_norm_cuda(tensor y, tensor x, tensor weight, float eps, const cuda_lane&);
void mix_cuda(const mix_args&, const matrix_view& fn, const cuda_lane&); // rows of the class of the lane
void fold_cuda(tensor x, tensor h, tensor pre, const cuda_lane&);
void fold_norm_cuda(tensor x, tensor h, tensor pre, tensor weight, float eps, const cuda_lane&);
void expand_cuda(tensor h, tensor y, tensor also, tensor post, tensor comb, const cuda_lane&); // also: or empty
void expand_fold_norm_cuda(tensor h, tensor y, tensor also, tensor post, tensor comb, tensor x, tensor pre,
                           tensor weight, float eps, const cuda_lane&);
void mean_copies_cuda(tensor y, tensor h, const cuda_lane&);
void quantise_cuda(tensor x, quantiser, const cuda_lane&);

// cache.cu: what fills the caches.
void rope_cuda(tensor x, tensor positions, tensor frequencies, bool inverse, const cuda_lane&);
void scatter_entries_cuda(tensor cache, tensor x, tensor entries, quantiser how, const step_rows&, const cuda_lane&);
void write_rings_cuda(tensor rings, tensor x, const step_rows&, const cuda_lane&);
void compress_pairs_cuda(tensor c, tensor u, tensor g, tensor pending, const step_rows&, const cuda_lane&);

// attention.cu, topk.cu
// Rows [first, first + n) of the step, which are of the class of the lane; all tensors are of the whole step.
void attention_cuda(const attention_args&, const step_rows&, int64_t first, int64_t n, const cuda_lane&);
// attention_project.cu
void attention_project_cuda(tensor z, const attention_args&, const step_rows&, const head_turns&,
                            std::span<const matrix* const> w, int64_t first, int64_t n, const cuda_lane&);
void select_entries_cuda(const index_args&, const step_rows&, const cuda_lane&);

// route.cu: from the gate's outputs, score (R, experts) f32; at most 1024 experts.
void route_cuda(tensor ids, tensor weights, tensor score, tensor bias, tensor bias_vl, tensor vl, float scale,
                const cuda_lane&);

// engram_rows.cu
void dequant_rows_cuda(tensor y, tensor records, engram_format, int64_t width, const cuda_lane&);
void engram_gate_cuda(tensor h, tensor kv, tensor q_weight, tensor k_weight, tensor dead, tensor gates, float eps,
                      const cuda_lane&);

// vision_ops.cu
void rope_half_cuda(tensor x, tensor angles, int64_t heads, const cuda_lane&);
void attention_full_cuda(tensor o, tensor q, tensor k, tensor v, float scale, const cuda_lane&);
void gelu_cuda(tensor x, const cuda_lane&);
void silu_mul_cuda(tensor y, tensor gate_up, const cuda_lane&);

} // namespace troupe
