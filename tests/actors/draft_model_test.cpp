// Drafts over the shipped model, from plan to accepted tokens: the tokens are those of no drafts, and acceptance is
// what the weights give in a plain loop of dspark.md section 4. Source: tests/golden/tiny/eval.jsonl
// (etc/models/tiny/README.md).
#include "actors/batch_policy.h"
#include "actors/kv_ledger.h"
#include "actors/rank_state.h"
#include "tests/actors/doubles.h"

#include <doctest/doctest.h>
#include <simdjson.h>

#include <cstring>
#include <map>

using namespace troupe;

namespace {

const std::string folder = TROUPE_SOURCE_DIR "/etc/models/tiny";
constexpr int32_t block = 5;

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

std::unique_ptr<model> load(backend& be, const batch_limits& l, bool with_drafts) {
  model_options o;
  o.folder = folder;
  o.max_sequences = l.max_running;
  o.n_blocks = l.n_blocks;
  o.max_rows = l.max_rows_and_drafts();
  o.load_draft = with_drafts;
  o.load_vision = false;
  return load_model(be, o, nullptr);
}

// The desks of the ring without their actors, over the shipped model: policy, ledger, tables, rank, one by one.
class desks {
public:
  struct outcome {
    std::vector<int32_t> ids;
    end_cause end = end_cause::none;
    std::string failure;
    int64_t n_rounds = 0, n_drafts = 0, n_accepted = 0; // rounds: steps that had drafts
  };

  explicit desks(int32_t n_drafts, int32_t max_running = 8, bool has_prefix_cache = true)
      : limits_(limits(n_drafts, max_running)), policy_(limits_), ledger_(prefix(limits_, has_prefix_cache)),
        device_(make_host_backend({.n_threads = 2})), model_(load(*device_, limits_, n_drafts > 0)),
        tables_(open_tables(folder, 0, 1, max_running)), rank_({suppressed(), 1}, true) {}
  static batch_limits limits(int32_t n_drafts, int32_t max_running) {
    batch_limits l;
    l.max_running = max_running;
    l.max_queue = 1024;
    l.chunk_tokens = 256;
    l.n_blocks = 512;
    l.block_tokens = 64;
    if (n_drafts > 0) l.drafts = {block, n_drafts, false};
    return l;
  }
  // One turn of n choices; the ids of its sequences.
  std::vector<sequence_id> admit(const std::vector<int32_t>& prompt, int64_t max_tokens, sampling_params sampling,
                                 int32_t n = 1) {
    turn_admit t{turn_id{++last_turn_}, {}};
    std::vector<sequence_id> ids;
    for (sampling.choice = 0; sampling.choice < n; ++sampling.choice) {
      auto& s = t.sequences.emplace_back();
      s.turn = t.turn;
      s.id = sequence_id{++last_sequence_};
      s.prompt = prompt;
      s.max_tokens = max_tokens;
      s.sampling = sampling;
      s.shares_prompt = sampling.choice > 0;
      ids.push_back(s.id);
    }
    REQUIRE(!policy_.admit(std::move(t), now_).has_value());
    return ids;
  }
  void run() {
    while (policy_.has_step(now_)) step();
    CHECK(policy_.is_idle());
    CHECK(ledger_.pool().n_held() == 0);
  }
  const outcome& of(sequence_id id) { return outcomes_[id]; }

private:
  static std::vector<int32_t> suppressed() {
    const auto ids = tiny_text()->suppressed_ids();
    return {ids.begin(), ids.end()};
  }
  static kv_cache_config prefix(const batch_limits& l, bool is_on) {
    kv_cache_config c;
    c.n_blocks = l.n_blocks;
    c.block_tokens = l.block_tokens;
    const auto bytes = plan_state(folder, host_caches);
    c.snapshot_bytes = bytes.per_snapshot;
    c.snapshot_memory_bytes = is_on ? 32 * bytes.per_snapshot : 0;
    c.snapshot_slack = l.drafts.block > 0 ? bytes.draft_slack : bytes.snapshot_slack;
    return c;
  }
  void step() {
    auto plan = policy_.plan(now_);
    plan.step = ++last_step_;
    const auto placed = ledger_.place(std::move(plan));
    std::vector<sequence_rows> rows;
    size_t n_rows = 0;
    for (const auto& r : placed.plan.rows) {
      auto& row = rows.emplace_back();
      row.slot = r.slot;
      row.start = r.start;
      row.tokens = r.tokens;
      for (const auto& c : placed.cached)
        if (c.id == r.id) row.before = c.before;
      n_rows += r.tokens.size();
    }
    records_.resize(n_rows * static_cast<size_t>(tables_->record_bytes_per_token()));
    if (n_rows > 0) tables_->read(rows, records_);
    REQUIRE(rank_.begin(placed, model_.get()).empty());
    step_result result{1, last_step_, {}, 0, 0};
    if (n_rows > 0) {
      ready_records ready(records_);
      rank_.run(placed.plan, {}, ready, *model_);
      result.results = rank_.answer(placed.plan, {}, *model_, result.draft_us);
    }
    rank_.end(placed, {}, *model_);
    std::vector<accepted_tokens> accepted;
    policy_.accept(std::move(result), now_, accepted);
    for (const auto& a : accepted) {
      auto& o = outcomes_[a.id];
      for (const auto& t : a.tokens) o.ids.push_back(t.id);
      o.end = a.end;
      o.failure = a.failure;
      o.n_rounds += a.n_drafts > 0;
      o.n_drafts += a.n_drafts;
      o.n_accepted += a.n_accepted;
    }
  }

  batch_limits limits_;
  batch_policy policy_;
  kv_ledger ledger_;
  std::unique_ptr<backend> device_;
  std::unique_ptr<model> model_;
  std::unique_ptr<table_reader> tables_;
  rank_state rank_;
  std::vector<std::byte> records_;
  std::map<sequence_id, outcome> outcomes_;
  batch_policy::time now_{};
  uint64_t last_turn_ = 0, last_sequence_ = 0, last_step_ = 0;
};

// dspark.md sections 4 and 5 without any of the serving code: one sequence, greedy.
class plain_loop {
public:
  plain_loop() : be_(make_host_backend({.n_threads = 2})) {
    const auto l = desks::limits(block, 2);
    model_ = load(*be_, l, true);
    tables_ = open_tables(folder, 0, 1, l.max_running);
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
