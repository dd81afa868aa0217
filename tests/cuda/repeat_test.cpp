// The same work again and again: a race shows as bits that differ, and the first of them says where.
#include "tests/model/golden_case.h"

namespace troupe::test {
namespace {

using namespace golden;

struct seen_values {
  std::string what;
  std::vector<float> values;
};

constexpr size_t n_steps = 6;

enum class watched : uint8_t { results, all, graphs }; // graphs: steps are replayed, which nobody can watch inside

// A prompt, decode steps with drafts between them; logits and drafts, or all that an observer sees.
std::vector<seen_values> run(backend& be, runner& r, std::span<const int32_t> ids, size_t chunk, bool look) {
  std::vector<seen_values> all;
  std::string stage = "prompt";
  const observer watch = [&](std::string_view name, int32_t layer, tensor t) {
    if (name == "latent" || name == "comp" || name == "index_k") return; // rows of even positions have none
    std::vector<float> v(static_cast<size_t>(t.n_elements()));
    be.download(v.data(), t, t.size_bytes());
    all.push_back({stage + ", layer " + std::to_string(layer) + ", " + std::string(name), std::move(v)});
  };
  r.of().observe(look ? watch : observer(), static_cast<int64_t>(ids.size()));
  const size_t n_prompt = ids.size() - n_steps;
  all.push_back({"prompt logits", r.prefill(ids.first(n_prompt), chunk)});
  for (size_t i = 0; i < n_steps; ++i) {
    const auto at = static_cast<int64_t>(n_prompt + i);
    stage = "step " + std::to_string(i);
    all.push_back({stage + " logits", r.step(ids.subspan(n_prompt + i, 1), at, 1)});
    stage = "draft " + std::to_string(i);
    const draft_anchor anchor{.slot = runner::slot, .position = at + 1, .token = ids[n_prompt + i]};
    const draft_result d = r.of().draft({&anchor, 1});
    all.push_back({stage + " logits", d.logits});
    all.push_back({stage + " confidence", d.confidence});
  }
  r.of().observe(nullptr, 0);
  return all;
}

bool same(const std::vector<seen_values>& got, const std::vector<seen_values>& want, const std::string& run) {
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const std::vector<float>&a = got[i].values, &b = want[i].values;
    REQUIRE(a.size() == b.size());
    for (size_t e = 0; e < a.size(); ++e) {
      if (std::bit_cast<uint32_t>(a[e]) == std::bit_cast<uint32_t>(b[e])) continue;
      CHECK_MESSAGE(false, run << ": " << want[i].what << ", element " << e << " of " << a.size() << ": found " << a[e]
                               << ", before " << b[e]);
      return false;
    }
  }
  return true;
}

} // namespace

TEST_CASE("cuda repeat: a prompt, its steps and drafts have the same bits every time") {
  const std::vector<int32_t> ids = random_ids(60 + n_steps, 5);
  for (const int n_ranks : {1, 2})
    on_ranks(n_ranks, [&](backend& be, int rank) {
      for (const watched how : {watched::results, watched::all, watched::graphs})
        for (const size_t chunk : {size_t{60}, size_t{7}, size_t{1}}) {
          if (how == watched::graphs && !be.can_capture()) continue;
          std::vector<seen_values> first;
          int n_wrong = 0;
          for (int model = 0; model < 3; ++model) {
            runner r(be, tiny_b(), static_cast<int64_t>(ids.size()) + 16);
            if (how == watched::graphs) r.of().capture_steps(4);
            for (int i = 0; i < 8; ++i) {
              std::vector<seen_values> got = run(be, r, ids, chunk, how == watched::all);
              const std::string name = "rank " + std::to_string(rank) + " of " + std::to_string(n_ranks) + ", model " +
                                       std::to_string(model) + ", run " + std::to_string(i) + ", chunk " +
                                       std::to_string(chunk) +
                                       (how == watched::all      ? ", observed"
                                        : how == watched::graphs ? ", replayed"
                                                                 : "");
              if (first.empty())
                first = std::move(got);
              else if (!same(got, first, name))
                ++n_wrong;
            }
          }
          CHECK(n_wrong == 0);
        }
    });
}

} // namespace troupe::test
