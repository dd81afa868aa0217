// Where the next blocks of drafts begin, told by the tokens that were drawn: no word of it goes to the host.
//                                                                                            Spec: dspark.md section 4.
#include "gpu/cuda_check.cuh"
#include "gpu/cuda_ops.h"
#include "gpu/early_launch.cuh"

namespace troupe {
namespace {

constexpr int threads = 128;

struct anchors {
  int32_t *guesses, *ids;
  int64_t* positions;
  const int32_t *drawn, *step_ids, *requests;
  int64_t n, block, n_drawn, n_step;
};

// A thread a sequence. Bound by its launch.
__global__ void __launch_bounds__(threads) place_anchors_kernel(anchors a) {
  begin_in_turn();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= a.n) return;
  const int4 request = reinterpret_cast<const int4*>(a.requests)[i];
  const int32_t n_drafts = request.z;
  if (request.x < 0 || request.y < 0 || n_drafts < 0 || request.x + n_drafts >= a.n_drawn ||
      request.y + n_drafts >= a.n_step)
    __trap();
  const int32_t *drawn = a.drawn + request.x, *drafts = a.step_ids + request.y + 1;
  int32_t right = 0;
  while (right < n_drafts && drawn[right] == drafts[right]) ++right;
  const int32_t token = max(drawn[right], 0);
  a.guesses[i] = a.ids[i * a.block] = token;
  for (int64_t j = 0; j < a.block; ++j) a.positions[i * a.block + j] = request.w + right + j;
}

} // namespace

void place_anchors_cuda(const anchor_args& args, const cuda_lane& lane) {
  const int64_t n = args.guesses.n_elements();
  if (n == 0) return;
  anchors a{args.guesses.i32(),
            args.ids.i32(),
            args.positions.i64(),
            args.drawn.i32(),
            args.step_ids.i32(),
            args.requests.i32(),
            n,
            args.ids.n_elements() / n,
            args.drawn.n_elements(),
            args.step_ids.n_elements()};
  TROUPE_CHECK(a.block > 0 && args.ids.n_elements() == n * a.block && args.positions.n_elements() == n * a.block &&
                   args.requests.n_elements() == 4 * n,
               "every anchor has a request and a block of rows");
  launch_early(place_anchors_kernel, static_cast<unsigned>((n + threads - 1) / threads), threads, 0, lane.on,
               "place_anchors", a);
}

} // namespace troupe
