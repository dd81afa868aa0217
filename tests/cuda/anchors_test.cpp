// place_anchors against its host twin.
#include "tests/cuda/twins.h"

using namespace troupe;
using namespace troupe::test;

TEST_CASE("cuda place_anchors: the twin's tokens and positions, of one sequence and of more than a block of threads") {
  twins t;
  for (const int32_t n : {1, 3, 300}) {
    constexpr int32_t block = 5;
    std::vector<int32_t> step_ids, drawn, requests;
    for (int32_t i = 0; i < n; ++i) {
      const int32_t n_drafts = i % (block + 1), right = n_drafts == 0 ? 0 : i / 7 % (n_drafts + 1);
      requests.insert(requests.end(), {static_cast<int32_t>(drawn.size()), static_cast<int32_t>(step_ids.size()),
                                       n_drafts, 1000 * i + 17});
      step_ids.push_back(i);
      for (int32_t j = 0; j <= n_drafts; ++j) drawn.push_back(i % 11 == 3 && j == right ? sample_unsound : 100 + i + j);
      for (int32_t j = 0; j < n_drafts; ++j) step_ids.push_back(j < right ? drawn[drawn.size() - n_drafts - 1 + j] : 7);
    }
    const auto list = [&](const std::vector<int32_t>& v, int32_t width = 1) {
      return t.ints({static_cast<int64_t>(v.size()) / width, width}, v);
    };
    const auto step = list(step_ids), got = list(drawn), asked = list(requests, 4);
    const auto guesses = t.output({n}, dtype::i32), ids = t.output({n * block}, dtype::i32),
               positions = t.output({n * block}, dtype::i64);
    t.run([&](backend& be) {
      be.place_anchors(
          {t.of(be, guesses), t.of(be, ids), t.of(be, positions), t.of(be, got), t.of(be, step), t.of(be, asked)});
    });
    t.equal("place_anchors tokens", guesses);
    t.equal("place_anchors ids", ids);
    t.equal("place_anchors positions", positions);
  }
}
