// Acceptance of drafts over all stable items of eval.jsonl: what the weights give in a plain loop of dspark.md
// section 4. Source: tests/golden/tiny/eval.jsonl (etc/models/tiny/README.md).
#include "tests/actors/draft_desks.h"

#include <map>

using namespace troupe;
using namespace troupe::drafting;

TEST_CASE("drafts: acceptance is that of a plain loop over the same weights, category by category" *
          doctest::test_suite("slow")) {
  plain_loop loop;
  desks ring(block, 1, false);
  struct score {
    double rounds = 0, tokens = 0, plain_rounds = 0, plain_tokens = 0, drafts = 0, accepted = 0;
  };
  std::map<std::string, score> scores;
  size_t n_items = 0;
  for (const auto& i : stable_items(SIZE_MAX, true)) {
    ++n_items;
    CAPTURE(i.id);
    auto& s = scores[i.category];
    const auto plain = loop.run(i, block);
    CHECK(plain.tokens == i.expected);
    s.plain_rounds += static_cast<double>(plain.n_rounds);
    s.plain_tokens += static_cast<double>(plain.tokens.size() - 1); // the prompt's step gave the first
    const auto id = ring.admit(i);
    ring.run();
    const auto& got = ring.of(id);
    CHECK(got.ids == i.expected);
    s.rounds += static_cast<double>(got.n_rounds);
    s.tokens += static_cast<double>(got.ids.size() - 1);
    s.drafts += static_cast<double>(got.n_drafts);
    s.accepted += static_cast<double>(got.n_accepted);
  }
  CHECK(n_items > 250);
  CHECK(scores.size() == 27); // all categories but the stories, none of which is stable
  for (const auto& [category, s] : scores) {
    CAPTURE(category);
    if (s.plain_rounds == 0) continue;
    const double got = s.tokens / std::max(s.rounds, 1.0), want = s.plain_tokens / s.plain_rounds;
    MESSAGE(category, ": ", got, " tokens a round, ", want, " in the plain loop; ",
            100 * s.accepted / std::max(s.drafts, 1.0), " % of ", s.drafts, " drafts accepted");
    CHECK(got == doctest::Approx(want).epsilon(0.1));
  }
  // README's figures at depth 5; its stories have no stable items.
  const auto rate = [&](const std::vector<std::string>& categories) {
    double tokens = 0, rounds = 0;
    for (const auto& c : categories) tokens += scores[c].tokens, rounds += scores[c].rounds;
    return tokens / rounds;
  };
  CHECK(rate({"counting"}) == doctest::Approx(5.8).epsilon(0.1));
  CHECK(rate({"questions"}) == doctest::Approx(5.9).epsilon(0.1));
  CHECK(rate({"tools, single", "tools, parallel", "tools, none", "tools, result"}) ==
        doctest::Approx(5.0).epsilon(0.1));
}
