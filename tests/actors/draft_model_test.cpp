// Drafts over the shipped model, from plan to accepted tokens: the tokens are those of no drafts. Source:
// tests/golden/tiny/eval.jsonl (etc/models/tiny/README.md).
#include "tests/actors/draft_desks.h"

#include <cstring>
#include <map>

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

TEST_CASE("drafts: sampled tokens have the distribution of no drafts" * doctest::test_suite("slow")) {
  // The same story at temperature 1, other seeds with drafts than without: tokens 2 to 4 by a two-sample chi-square.
  const auto prompt = tiny_text()->words()->encode("<\xEF\xBD\x9C"
                                                   "begin\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C><\xEF\xBD\x9C"
                                                   "User\xEF\xBD\x9C>Tell me a story.<\xEF\xBD\x9C"
                                                   "Assistant\xEF\xBD\x9C></think>");
  constexpr int32_t n_choices = 32, n_turns = 16, n_tokens = 4;
  int64_t n_drafts = 0;
  const auto counts = [&](desks& d, uint64_t first_seed) {
    std::map<std::vector<int32_t>, double> seen; // by the last two of four tokens
    for (uint64_t t = 0; t < n_turns; ++t) {
      sampling_params p;
      p.ignore_eos = true;
      p.seed = first_seed + t;
      const auto ids = d.admit(prompt, n_tokens, p, n_choices);
      d.run();
      for (const auto id : ids) {
        seen[{d.of(id).ids.at(2), d.of(id).ids.at(3)}] += 1;
        n_drafts += d.of(id).n_drafts;
      }
    }
    return seen;
  };
  desks without(0, n_choices), with(block, n_choices);
  const auto a = counts(without, 1), b = counts(with, 1'000);
  CHECK(n_drafts > n_choices * n_turns);
  std::map<std::vector<int32_t>, std::pair<double, double>> both;
  for (const auto& [key, n] : a) both[key].first = n;
  for (const auto& [key, n] : b) both[key].second = n;
  double chi = 0, rest_a = 0, rest_b = 0;
  int degrees = -1;
  const auto add = [&](double x, double y) { // equal sample sizes: sum (x - y)^2 / (x + y)
    if (x + y == 0) return;
    chi += (x - y) * (x - y) / (x + y);
    ++degrees;
  };
  for (const auto& [key, n] : both)
    if (n.first + n.second >= 10)
      add(n.first, n.second);
    else
      rest_a += n.first, rest_b += n.second;
  add(rest_a, rest_b);
  REQUIRE(degrees >= 1);
  MESSAGE("chi-square ", chi, " with ", degrees, " degrees of freedom");
  CHECK(chi < degrees + 3.1 * std::sqrt(2.0 * degrees) + 6); // beyond the 99.9 % point for any number of degrees
}
