// Attention and the grouped product of its outputs. Of prompts over EXL3 matrices the outputs are never written: what
// attention stores are the rows that the product wants, half of the bytes once for all of them three times over.
#include "gpu/attention_prompt.h"
#include "gpu/cuda_ops.h"
#include "gpu/scratch_cut.h"
#include "gpu/trellis_gemv.h"

#include <algorithm>

namespace troupe {
namespace {

constexpr int64_t n_groups = prompt_products::n_groups, group_in = prompt_products::in;
constexpr int64_t product_row_bytes = n_groups * (group_in * 2 + 4); // of a row for all groups

bool products_serve(const attention_args& a, const head_turns& turns, std::span<const linear_call> w,
                    const cuda_lane& lane) {
  return lane.rows == row_class::prefill && lane.has_wgmma && attention_prompt_serves(a, lane) &&
         turns.frequencies.n_elements() == prompt_turned && w.size() == n_groups &&
         std::all_of(w.begin(), w.end(), [](const linear_call& c) {
           return c.w->is_trellis && c.w->in == group_in && c.w->trellis.in == group_in;
         });
}

// Rows [first, first + n) of the step, whose outputs are those of the calls.
void project_slab(std::span<const linear_call> calls, const attention_args& a, const step_rows& rows,
                  prompt_products& to, int64_t first, int64_t n, const cuda_lane& lane) {
  scratch_cut cut(lane);
  gemv_args list[n_groups];
  for (int64_t g = 0; g < n_groups; ++g) {
    to.rows[g].groups = (n + 7) / 8;
    to.rows[g].at = cut.take<uint8_t>(gemm_rows::size_bytes(to.rows[g].groups, group_in));
    to.rows[g].scale = cut.take<float>(to.rows[g].groups * 8);
    const linear_call& c = calls[static_cast<size_t>(g)];
    to.suh[g] = c.w->trellis.suh;
    list[g].w = c.w->trellis;
    list[g].bias = c.w->bias;
    list[g].y = c.y;
    list[g].y_stride = c.y_stride;
    list[g].n_rows = static_cast<int32_t>(n);
    list[g].in = c.w->in;
    list[g].out = c.w->out;
  }
  cuda_lane rest = lane;
  rest.scratch += cut.used();
  rest.scratch_bytes -= cut.used();
  attention_prompt_cuda(a, rows, first, n, rest, to);
  multiply_rows_cuda(list, to.rows, lane);
}

} // namespace

void attention_project_cuda(tensor z, const attention_args& a, const step_rows& rows, const head_turns& turns,
                            std::span<const matrix* const> w, int64_t first, int64_t n, const cuda_lane& lane) {
  if (n == 0) return;
  const tensor o = a.o.slice(first, n), position = rows.position.slice(first, n);
  std::vector<linear_call> calls = grouped_calls(z.slice(first, n), o, w);
  if (!products_serve(a, turns, calls, lane)) {
    if (turns.of_queries) rope_cuda(a.q.slice(first, n), position, turns.frequencies, false, lane);
    attention_cuda(a, rows, first, n, lane);
    rope_cuda(o, position, turns.frequencies, true, lane);
    return linears_cuda(calls, n, lane);
  }
  prompt_products to;
  to.frequencies = turns.frequencies.f32();
  to.turns_queries = turns.of_queries;
  // Beside a KB for each row of the step.
  const int64_t room = lane.scratch_bytes - a.q.rows() * (prompt_dim * 2) - (2 * n_groups + 1) * 256;
  const int64_t most = std::min(room / product_row_bytes / 8 * 8, int64_t{1} << 30);
  TROUPE_CHECK(most > 0, "the scratch of a lane holds the rows of a step and what attention makes of eight of them");
  for (int64_t done = 0, slab = std::min(most, n); done < n; done += slab) {
    const int64_t rows_now = std::min(slab, n - done);
    project_slab(calls, a, rows, to, first + done, rows_now, lane);
    for (linear_call& c : calls) c.y += rows_now * c.y_stride;
  }
}

} // namespace troupe
