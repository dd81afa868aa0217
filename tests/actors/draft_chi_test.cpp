// Drafts and sampling over the shipped model: tokens have the distribution of no drafts (dspark.md section 5).
#include "tests/actors/draft_desks.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>

using namespace troupe;
using namespace troupe::drafting;

namespace {

// Two samples of the same size, by what was drawn: those seen fewer than ten times in both together count as one. Both
// come from one distribution when the sum of (x - y)^2 / (x + y) is that of chi-square (Press et al., 14.3).
struct two_samples {
  std::map<std::vector<int32_t>, std::pair<double, double>> seen;
  double chi = 0;
  int degrees = -1;

  void compare() {
    double rest_a = 0, rest_b = 0;
    for (const auto& [key, n] : seen)
      if (n.first + n.second >= 10)
        add(n.first, n.second);
      else
        rest_a += n.first, rest_b += n.second;
    add(rest_a, rest_b);
  }
  void add(double a, double b) {
    if (a + b == 0) return;
    chi += (a - b) * (a - b) / (a + b);
    ++degrees;
  }
};

std::vector<int32_t> chat_prompt(const std::string& question) {
  return tiny_text()->words()->encode("<\xEF\xBD\x9C"
                                      "begin\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C><\xEF\xBD\x9C"
                                      "User\xEF\xBD\x9C>" +
                                      question +
                                      "<\xEF\xBD\x9C"
                                      "Assistant\xEF\xBD\x9C></think>");
}

} // namespace

TEST_CASE("drafts: sampled tokens have the distribution of no drafts" * doctest::test_suite("slow")) {
  // Behind beginnings of answers from which the model goes on in many ways, some of them even and some with a draft
  // that is right about every second time; other seeds with drafts than without.
  constexpr int32_t n_choices = 32, n_turns = 16, n_tokens = 4;
  desks without(0, n_choices), with(block, n_choices);
  uint64_t seed = 0;
  for (const auto& [question, n_begun] :
       {std::pair{"Tell me a story.", 21}, {"Tell me a story about a dog.", 21}, {"Tell me a story about a dog.", 2}}) {
    CAPTURE(question);
    CAPTURE(n_begun);
    auto prompt = chat_prompt(question);
    sampling_params p;
    p.temperature = 0;
    const auto begun = without.admit(prompt, n_begun, p).front();
    without.run();
    prompt.insert(prompt.end(), without.of(begun).ids.begin(), without.of(begun).ids.end());
    two_samples s;
    int64_t n_drafts = 0, n_accepted = 0;
    const auto draw = [&](desks& d, bool is_first) {
      for (uint64_t t = 0; t < n_turns; ++t) {
        p = {};
        p.ignore_eos = true;
        p.temperature = 1.4F;
        p.seed = ++seed;
        const auto ids = d.admit(prompt, n_tokens, p, n_choices);
        d.run();
        for (const auto id : ids) {
          const auto& o = d.of(id);
          auto& n = s.seen[{o.ids.begin() + 1, o.ids.begin() + 3}]; // most first drafts are for the third
          (is_first ? n.first : n.second) += 1;
          n_drafts += o.n_drafts;
          n_accepted += o.n_accepted;
        }
      }
    };
    draw(without, true);
    draw(with, false);
    s.compare();
    MESSAGE("chi-square ", s.chi, " with ", s.degrees, " degrees of freedom; ", n_accepted, " of ", n_drafts,
            " drafts accepted");
    REQUIRE(s.degrees >= 15);
    CHECK(n_drafts >= n_choices * n_turns);
    CHECK(s.chi < s.degrees + 3.1 * std::sqrt(2.0 * s.degrees) + 6); // beyond the 99.9 % point for any number of them
  }
}
