// Drafts over the shipped model, from plan to accepted tokens: the tokens are those of no drafts. Source:
// tests/golden/tiny/eval.jsonl (etc/models/tiny/README.md).
#include "tests/actors/draft_desks.h"

#include <cstring>

using namespace troupe;
using namespace troupe::drafting;

TEST_CASE("drafts: logits of a verifying step are those of single rows, bit for bit" * doctest::test_suite("slow")) {
  plain_loop loop;
  size_t n_tokens = 0;
  for (const auto& i : stable_items(1)) {
    CAPTURE(i.id);
    const auto with = loop.run(i, block), without = loop.run(i, 0);
    REQUIRE(with.tokens == without.tokens);
    for (size_t k = 0; k < with.logits.size(); ++k)
      CHECK(std::memcmp(with.logits[k].data(), without.logits[k].data(), with.logits[k].size() * sizeof(float)) == 0);
    n_tokens += with.tokens.size();
  }
  MESSAGE(n_tokens, " tokens compared");
}

TEST_CASE("drafts: greedy and seeded tokens are those of no drafts, alone and together, with penalties, choices and "
          "prefix hits" *
          doctest::test_suite("slow")) {
  desks without(0, 8, false), with(block);
  const auto items = stable_items(1);
  const auto admit = [&](desks& d, size_t k) {
    sampling_params p = greedy();
    p.seed = 100 + k;
    p.ignore_eos = k % 4 == 2;
    if (k % 2 == 1) p.temperature = 1;
    if (k % 4 == 3) p.frequency_penalty = 0.5F, p.repetition_penalty = 1.1F, p.top_p = 0.9F;
    if (k % 5 == 4) p.min_tokens = 20;
    return d.admit(items[k].prompt, 24, p, k % 3 == 1 ? 3 : 1);
  };
  const size_t n = std::min<size_t>(items.size(), 12);
  std::vector<std::vector<sequence_id>> want(n), alone(n), together(n);
  for (size_t k = 0; k < n; ++k) {
    want[k] = admit(without, k);
    without.run();
    alone[k] = admit(with, k);
    with.run();
  }
  for (size_t k = 0; k < n; ++k) together[k] = admit(with, k); // their prompts are cached now
  with.run();
  int64_t n_drafts = 0, n_accepted = 0;
  for (size_t k = 0; k < n; ++k)
    for (size_t c = 0; c < want[k].size(); ++c)
      for (const auto id : {alone[k][c], together[k][c]}) {
        CAPTURE(items[k].id);
        CAPTURE(c);
        const auto &a = without.of(want[k][c]), &b = with.of(id);
        CHECK(a.ids == b.ids);
        CHECK(a.end == b.end);
        n_drafts += b.n_drafts;
        n_accepted += b.n_accepted;
      }
  CHECK(n_accepted > 0);
  CHECK(n_accepted < n_drafts);
}
