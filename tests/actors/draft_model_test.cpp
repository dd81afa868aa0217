// Drafts over the shipped model, from plan to accepted tokens: the tokens are those of no drafts, and acceptance is
// what the weights give in a plain loop of dspark.md section 4. Source: tests/golden/tiny/eval.jsonl
// (etc/models/tiny/README.md).
#include "tests/actors/desks.h"

#include <doctest/doctest.h>
#include <simdjson.h>

#include <cstring>
#include <map>

using namespace troupe;

namespace {

constexpr int32_t block = desks::block;

struct item {
  std::string id, category;
  std::vector<int32_t> prompt, expected;
  int64_t max_tokens = 0;
};

// Stable items without pictures, at most `per_category` of each category.
std::vector<item> stable_items(size_t per_category) {
  simdjson::dom::parser parser;
  std::vector<item> items;
  std::map<std::string, size_t> n_of;
  for (auto line : parser.load_many(TROUPE_SOURCE_DIR "/tests/golden/tiny/eval.jsonl", size_t{1} << 24)) {
    simdjson::dom::array images;
    if (!bool(line["stable"].get_bool()) || line["images"].get(images) == simdjson::SUCCESS) continue;
    item i;
    i.category = std::string_view(line["category"].get_string());
    if (++n_of[i.category] > per_category) continue;
    i.id = std::string_view(line["id"].get_string());
    i.prompt = tiny_text()->words()->encode(std::string_view(line["prompt"].get_string()));
    for (auto t : line["expected_ids"].get_array()) i.expected.push_back(static_cast<int32_t>(int64_t(t.get_int64())));
    i.max_tokens = int64_t(line["max_tokens"].get_int64());
    if (i.prompt.size() < 1200) items.push_back(std::move(i));
  }
  return items;
}

// dspark.md sections 4 and 5 without any of the serving code: one sequence, greedy.
class plain_loop {
public:
  plain_loop() : be_(make_host_backend({.n_threads = 2})) {
    const auto l = desks::limits(block, 2);
    model_ = desks::load(*be_, l, true);
    tables_ = open_tables(desks::folder, 0, 1, l.max_running);
    for (int32_t i = 0; i < 64; ++i) blocks_.push_back(i);
  }
  struct result {
    std::vector<int32_t> tokens;
    std::vector<std::vector<float>> logits; // that gave each token
    int64_t n_rounds = 0;
  };
  result run(const item& i, int32_t n_drafts) {
    result out;
    const auto n_prompt = static_cast<int64_t>(i.prompt.size());
    for (int64_t at = 0; at < n_prompt; at += 128)
      forward(std::span(i.prompt).subspan(static_cast<size_t>(at),
                                          static_cast<size_t>(std::min<int64_t>(128, n_prompt - at))),
              at, 1);
    take(out, 0);
    while (out.tokens.back() != model_->info().eos && static_cast<int64_t>(out.tokens.size()) < i.max_tokens) {
      const int64_t newest = n_prompt + static_cast<int64_t>(out.tokens.size()) - 1;
      std::vector<int32_t> rows{out.tokens.back()};
      if (n_drafts > 0) {
        const draft_request a{1, newest, out.tokens.back()};
        const auto d = model_->draft_next({&a, 1});
        const auto left = i.max_tokens - static_cast<int64_t>(out.tokens.size()) - 1;
        rows.insert(rows.end(), d.ids.begin(), d.ids.begin() + std::min<int64_t>(n_drafts, left));
      }
      forward(rows, newest, static_cast<int32_t>(rows.size()));
      ++out.n_rounds;
      for (size_t j = 0; j < rows.size(); ++j) {
        take(out, j);
        if (out.tokens.back() == model_->info().eos) break;
        if (j + 1 < rows.size() && out.tokens.back() != rows[j + 1]) break;
      }
    }
    return out;
  }

private:
  void forward(std::span<const int32_t> ids, int64_t start, int32_t n_logits) {
    sequence_rows s;
    s.slot = 1;
    s.start = start;
    s.tokens = ids;
    s.blocks = blocks_;
    s.n_logits = n_logits;
    records_.resize(ids.size() * static_cast<size_t>(tables_->record_bytes_per_token()));
    tables_->read({&s, 1}, records_);
    logits_ = model_->forward({&s, 1}, records_);
  }
  void take(result& out, size_t row) const {
    const auto vocabulary = static_cast<size_t>(model_->info().vocabulary);
    const auto of = logits_.subspan(row * vocabulary, vocabulary);
    out.logits.emplace_back(of.begin(), of.end());
    out.tokens.push_back(static_cast<int32_t>(std::max_element(of.begin(), of.end()) - of.begin()));
  }

  std::unique_ptr<backend> be_;
  std::unique_ptr<model> model_;
  std::unique_ptr<table_reader> tables_;
  std::vector<int32_t> blocks_;
  std::vector<std::byte> records_;
  std::span<const float> logits_;
};

sampling_params greedy() {
  sampling_params p;
  p.temperature = 0;
  return p;
}

} // namespace

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

TEST_CASE("drafts: acceptance is that of a plain loop over the same weights, category by category" *
          doctest::test_suite("slow")) {
  plain_loop loop;
  desks ring(block, 1, false);
  struct score {
    double rounds = 0, tokens = 0, plain_rounds = 0, plain_tokens = 0, drafts = 0, accepted = 0;
  };
  std::map<std::string, score> scores;
  for (const auto& i : stable_items(4)) {
    CAPTURE(i.id);
    auto& s = scores[i.category];
    const auto plain = loop.run(i, block);
    CHECK(plain.tokens == i.expected);
    s.plain_rounds += static_cast<double>(plain.n_rounds);
    s.plain_tokens += static_cast<double>(plain.tokens.size() - 1); // the prompt's step gave the first
    const auto id = ring.admit(i.prompt, i.max_tokens, greedy()).front();
    ring.run();
    const auto& got = ring.of(id);
    CHECK(got.ids == i.expected);
    s.rounds += static_cast<double>(got.n_rounds);
    s.tokens += static_cast<double>(got.ids.size() - 1);
    s.drafts += static_cast<double>(got.n_drafts);
    s.accepted += static_cast<double>(got.n_accepted);
  }
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
