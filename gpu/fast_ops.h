// The operations of the backend as vector forms over threads: rows are shared between the threads, a row never is.
// Each gives the bits of its twin; see the twin's header for shapes.
#pragma once

#include "gpu/fast_attention.h"
#include "gpu/fast_moe.h"
#include "gpu/fast_rows.h"
#include "gpu/host_threads.h"

#include <vector>

namespace troupe {

// cos and sin of position * frequency for the rows of one step: several operations turn the same rows.
class rope_memo {
public:
  // Cosine and sine (2 n each) as attention_kernels::rotate wants them; valid until the next call with another row.
  struct row {
    int64_t position = -1;
    std::vector<float> frequencies, cosine, sine;
  };
  const row& at(int64_t position, const float* frequencies, int64_t n);

private:
  std::vector<row> rows_; // by hash of position and frequencies; a newer row takes the place of an older one
};

// What the vector operations of one backend share. One thread at a time.
struct fast_context {
  vector_level level;
  const row_kernels& rows;
  const attention_kernels& heads;
  host_threads& threads;
  moe_workspace moe = {};
  rope_memo rope = {};
  std::vector<float> scratch = {};

  fast_context(vector_level at, const row_kernels& r, const attention_kernels& h, host_threads& t)
      : level(at), rows(r), heads(h), threads(t) {}
};

void rms_norm_fast(fast_context&, tensor y, tensor x, tensor weight, float eps);
void rope_fast(fast_context&, tensor x, tensor positions, tensor frequencies, bool inverse);
void quantise_fast(fast_context&, tensor x, quantiser how);
void mix_fast(fast_context&, const mix_args& a);
void fold_fast(fast_context&, tensor x, tensor h, tensor pre);
void expand_fast(fast_context&, tensor h, tensor y, tensor post, tensor comb);
void mean_copies_fast(fast_context&, tensor y, tensor h);
void attention_fast(fast_context&, const attention_args& a, const step_rows& rows);
void select_entries_fast(fast_context&, const index_args& a, const step_rows& rows);
void route_fast(fast_context&, tensor ids, tensor weights, tensor x, const matrix& gate, tensor bias, tensor bias_vl,
                tensor vl, float scale);
void engram_gate_fast(fast_context&, tensor h, tensor kv, tensor q_weight, tensor k_weight, tensor dead, tensor gates,
                      float eps);
void attention_full_fast(fast_context&, tensor o, tensor q, tensor k, tensor v, float scale);
void silu_mul_fast(fast_context&, tensor y, tensor gate_up);

} // namespace troupe
