// Design section 6 over the shipped model through the ring: whatever stands beside a request, and whatever the caches,
// drafts, chunks and room are, its tokens and the bits of its log-probabilities are the same.
#include "gpu/philox.h"
#include "tests/actors/tiny_ring.h"

#include <caf/all.hpp>

#include <array>
#include <cmath>
#include <cstring>
#include <future>
#include <numeric>
#include <random>
#include <set>

using namespace troupe;

namespace {

std::vector<chat_request> mixed_requests() {
  std::vector<chat_request> all;
  for (int i = 0; i < 6; ++i) {
    auto r = tiny_completion(tiny_words(30 + 45 * i, 2 * i + 1), 40, static_cast<draw>(i % 3));
    r.sampling.seed = 7 + static_cast<uint64_t>(i);
    r.n = i % 3 == 1 ? 3 : 1;
    all.push_back(std::move(r));
  }
  return all;
}

using spoken = std::vector<std::map<int32_t, std::vector<int32_t>>>;

spoken one_by_one(tiny_ring& ring, const std::vector<chat_request>& requests) {
  spoken out;
  for (const auto& r : requests) out.push_back(ring.ask(r)->said);
  return out;
}

spoken together(tiny_ring& ring, const std::vector<chat_request>& requests) {
  spoken out;
  for (const auto& s : ring.ask_all(requests)) out.push_back(s->said);
  return out;
}

// Alone, in one chunk where it fits, no cache, no drafts, room for all.
const spoken& reference() {
  static const spoken all = [] {
    tiny_ring ring({.chunk = 512, .snapshot_bytes = 0});
    return one_by_one(ring, mixed_requests());
  }();
  return all;
}

// A sink for the real threads of a runtime.
class waiting_exact_sink : public exact_sink {
public:
  std::future<void> ended() { return done_.get_future(); }
  state push(std::span<const turn_delta> deltas) override {
    const auto s = exact_sink::push(deltas);
    if (has_ended()) done_.set_value();
    return s;
  }
  void fail(const api_error& e) override {
    exact_sink::fail(e);
    done_.set_value();
  }

private:
  std::promise<void> done_;
};

} // namespace

TEST_CASE("exactness: alone and among others" * doctest::test_suite("slow")) {
  tiny_ring ring({.max_running = 12, .chunk = 100, .snapshot_bytes = 0});
  CHECK(together(ring, mixed_requests()) == reference());
}

TEST_CASE("exactness: with drafts, always or where they pay, alone and among others" * doctest::test_suite("slow")) {
  for (const bool is_adaptive : {false, true}) {
    tiny_ring ring({.max_running = 12, .n_drafts = 5, .is_adaptive = is_adaptive, .snapshot_bytes = 0});
    CHECK(one_by_one(ring, mixed_requests()) == reference());
    CHECK(together(ring, mixed_requests()) == reference());
    CHECK(ring.r.numbers->draft_rounds > 0);
  }
}

TEST_CASE("exactness: steps that begin before their Engram rows are there, without and with drafts" *
          doctest::test_suite("slow")) {
  for (const int32_t n_drafts : {0, 5}) {
    tiny_ring ring({.max_running = 12, .n_drafts = n_drafts, .snapshot_bytes = 0, .runs_ahead = true});
    CHECK(one_by_one(ring, mixed_requests()) == reference());
    CHECK(together(ring, mixed_requests()) == reference());
    CHECK(ring.r.numbers->graph_replays > 200);
  }
}

TEST_CASE("exactness: a hit and a miss, without and with drafts" * doctest::test_suite("slow")) {
  for (const int32_t n_drafts : {0, 5}) {
    tiny_ring ring({.max_running = 12, .n_drafts = n_drafts});
    CHECK(one_by_one(ring, mixed_requests()) == reference());
    const auto before = ring.r.numbers->cache_hits.load();
    CHECK(one_by_one(ring, mixed_requests()) == reference());
    CHECK(together(ring, mixed_requests()) == reference());
    CHECK(ring.r.numbers->cache_hits > before + 1000);
  }
}

TEST_CASE("exactness: chunks of 16 to 4096 tokens, of several prompts at once" * doctest::test_suite("slow")) {
  for (const int32_t chunk : {16, 17, 63, 64, 65, 250, 1024, 4096}) {
    CAPTURE(chunk);
    tiny_ring ring({.max_running = 12, .chunk = chunk, .n_drafts = chunk % 2 == 1 ? 5 : 0, .snapshot_bytes = 0});
    CHECK(together(ring, mixed_requests()) == reference());
  }
}

TEST_CASE("exactness: n > 1 says what each choice says, and another seed says something else" *
          doctest::test_suite("slow")) {
  tiny_ring ring({.max_running = 8, .n_drafts = 5});
  auto r = tiny_completion(tiny_words(80, 3), 30, draw::seeded);
  r.n = 5;
  const auto five = ring.ask(r)->said;
  r.n = 2;
  const auto two = ring.ask(r)->said;
  REQUIRE(five.size() == 5);
  REQUIRE(two.size() == 2);
  for (const auto& [choice, said] : two) CHECK(said == five.at(choice));
  CHECK(five.at(0) != five.at(1));
  r.sampling.seed = 98;
  CHECK(ring.ask(r)->said != two);
}

// Parked or not: parking_ring_test.cpp.

namespace {

// What a sink kept of one token: its id and log-probability, then the best ones, the best first.
struct kept_token {
  int32_t id = 0;
  float logprob = 0;
  std::vector<token_logprob> best;
};

std::vector<kept_token> kept_tokens(const std::vector<int32_t>& said, int32_t n_best) {
  std::vector<kept_token> out;
  const auto record = 2 + 2 * static_cast<size_t>(n_best);
  REQUIRE(said.size() % record == 0);
  for (size_t at = 0; at < said.size(); at += record) {
    auto& t = out.emplace_back();
    t.id = said[at];
    t.logprob = std::bit_cast<float>(said[at + 1]);
    for (size_t k = at + 2; k < at + record; k += 2) t.best.push_back({said[k], std::bit_cast<float>(said[k + 1])});
  }
  return out;
}

constexpr size_t top_k_of_draws = 12;

// The candidates of a draw at temperature 1, the best first, each with its share.
std::vector<std::pair<int32_t, double>> shares_of(const kept_token& t, const std::set<int32_t>& suppressed) {
  std::vector<std::pair<int32_t, double>> out;
  double total = 0;
  for (const auto& b : t.best) {
    if (suppressed.contains(b.id) || out.size() == top_k_of_draws) continue;
    total += out.emplace_back(b.id, std::exp(static_cast<double>(b.logprob))).second;
  }
  REQUIRE(out.size() == top_k_of_draws);
  for (auto& [id, share] : out) share /= total;
  return out;
}

// Whether two rows must draw the same token by `unit`: as the first one cuts [0, 1), it lies further from both ends of
// its token's part than these can have moved, and no candidate changed places with that one. Checks that the first
// one's token is the one of `unit`.
bool is_decided(const kept_token& one, const kept_token& two, const std::set<int32_t>& suppressed, double unit) {
  const auto a = shares_of(one, suppressed), b = shares_of(two, suppressed);
  std::map<int32_t, double> change;
  for (const auto& [id, share] : a) change[id] += share;
  for (const auto& [id, share] : b) change[id] -= share;
  double moved = 0;
  for (const auto& [id, by] : change) moved += std::fabs(by) / 2;
  double low = 0;
  std::set<int32_t> before_a, before_b;
  for (size_t at = 0; at < a.size(); ++at) {
    const double high = low + a[at].second;
    if (a[at].first == one.id) {
      CHECK(unit > low - 1e-5);
      CHECK(unit < high + 1e-5);
      return before_a == before_b && b[at].first == one.id && (at == 0 || unit > low + moved) &&
             (at + 1 == a.size() || unit < high - moved);
    }
    before_a.insert(a[at].first);
    before_b.insert(b[at].first);
    low = high;
  }
  FAIL_CHECK("a token that is no candidate was drawn");
  return false;
}

// The same of a greedy row.
bool is_decided(const kept_token& one, const kept_token& two) {
  float moved = 0;
  for (size_t i = 0; i < 2; ++i) {
    const auto found =
        std::find_if(two.best.begin(), two.best.end(), [&](const auto& b) { return b.id == one.best[i].id; });
    if (found == two.best.end()) return false;
    moved += std::fabs(found->logprob - one.best[i].logprob);
  }
  return one.best[0].logprob - one.best[1].logprob > moved;
}

// Of the mixed ones, with draws whose candidates a sink sees all of.
std::vector<chat_request> requests_with_margins() {
  auto all = mixed_requests();
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].sampling.n_logprobs = i % 3 == 1 ? 20 : 3;
    if (i % 3 == 1) all[i].sampling.top_k = static_cast<int32_t>(top_k_of_draws);
  }
  return all;
}

} // namespace

TEST_CASE("exactness: one rank and two say the same tokens where the margin allows, drawn ones too" *
          doctest::test_suite("slow")) {
  spdlog::set_level(spdlog::level::warn);
  const auto requests = requests_with_margins();
  std::vector<std::vector<std::shared_ptr<waiting_exact_sink>>> said(2);
  for (const int32_t n_ranks : {1, 2}) {
    struct config : caf::actor_system_config {
      config() { configure(*this); }
    } values;
    caf::actor_system system{values};
    settings s;
    s.ranks = n_ranks;
    s.max_running = 8;
    runtime engine(system, s, std::make_shared<counters>());
    engine.load();
    uint64_t turn = 0;
    for (auto r : requests) {
      r.turn = turn_id{++turn};
      const auto sink = std::make_shared<waiting_exact_sink>();
      auto end = sink->ended();
      spawn_request(system, engine.parts(), r, sink);
      REQUIRE(end.wait_for(std::chrono::seconds(120)) == std::future_status::ready);
      CHECK(sink->error.message == "");
      said[static_cast<size_t>(n_ranks) - 1].push_back(sink);
    }
    engine.stop();
  }
  // Sums in another order move log-probabilities a little. A text may part only where its token was decided by less
  // than the move that this very row shows; behind that its contexts differ. A penalised draw may part anywhere: its
  // candidates are not seen.
  const auto hidden = tiny_text()->suppressed_ids();
  const std::set<int32_t> suppressed(hidden.begin(), hidden.end());
  std::array<int64_t, 3> n_same{}, n_all{}, n_decided{}; // greedy, drawn, penalised
  for (size_t i = 0; i < requests.size(); ++i)
    for (const auto& [choice, ids] : said[0][i]->said) {
      CAPTURE(i);
      CAPTURE(choice);
      const auto& sampling = requests[i].sampling;
      const auto one = kept_tokens(ids, sampling.n_logprobs);
      const auto two = kept_tokens(said[1][i]->said.at(choice), sampling.n_logprobs);
      REQUIRE(one.size() == two.size());
      n_all[i % 3] += static_cast<int64_t>(one.size());
      for (size_t at = 0; at < one.size(); ++at) {
        CAPTURE(at);
        const auto position = said[0][i]->usage.prompt_tokens + static_cast<int64_t>(at);
        const double unit = random_unit(sampling.seed, choice, position);
        const bool decided = i % 3 == 0   ? is_decided(one[at], two[at])
                             : i % 3 == 1 ? is_decided(one[at], two[at], suppressed, unit)
                                          : false;
        if (decided) CHECK(one[at].id == two[at].id);
        n_decided[i % 3] += decided;
        if (one[at].id != two[at].id) break;
        ++n_same[i % 3];
      }
    }
  MESSAGE("tokens that are the same: greedy ", n_same[0], " of ", n_all[0], ", drawn ", n_same[1], " of ", n_all[1],
          ", penalised ", n_same[2], " of ", n_all[2]);
  MESSAGE("that had to be: greedy ", n_decided[0], ", drawn ", n_decided[1]);
  for (const size_t kind : {0, 1}) CHECK(n_decided[kind] * 2 > n_all[kind]);
}

TEST_CASE("exactness: a prompt of 5,000 tokens in chunks of 16 to 4096 leaves the same logits" *
          doctest::test_suite("slow")) {
  constexpr int64_t n = 5000;
  constexpr int32_t n_rows = 32; // the last of the prompt, with all of their logits
  std::mt19937_64 random(5);
  std::vector<int32_t> prompt(n);
  for (auto& t : prompt) t = 300 + static_cast<int32_t>(random() % 1500);
  std::vector<float> want;
  for (const int64_t chunk : {4096, 16, 64, 256, 1024}) {
    CAPTURE(chunk);
    const auto device = make_host_backend({.n_threads = 2});
    model_options o;
    o.folder = tiny_folder;
    o.max_sequences = 1;
    o.n_blocks = (n + 63) / 64;
    o.max_rows = static_cast<int32_t>(chunk);
    o.load_draft = false;
    o.load_vision = false;
    const auto weights = load_model(*device, o, nullptr);
    const auto tables = open_tables(tiny_folder, 0, 1, 1);
    std::vector<int32_t> blocks(static_cast<size_t>(o.n_blocks));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::vector<float> got;
    std::vector<std::byte> records;
    for (int64_t start = 0; start < n; start += chunk) {
      sequence_rows rows;
      rows.start = start;
      rows.tokens =
          std::span(prompt).subspan(static_cast<size_t>(start), static_cast<size_t>(std::min(chunk, n - start)));
      rows.blocks = blocks;
      rows.n_prompt = n;
      const int64_t end = start + static_cast<int64_t>(rows.tokens.size());
      rows.n_logits = static_cast<int32_t>(std::clamp<int64_t>(end - (n - n_rows), 0, end - start));
      records.resize(rows.tokens.size() * static_cast<size_t>(tables->record_bytes_per_token()));
      tables->read({&rows, 1}, records);
      const auto logits = weights->forward({&rows, 1}, records);
      got.insert(got.end(), logits.begin(), logits.end());
    }
    REQUIRE(got.size() == static_cast<size_t>(n_rows * read_model_info(tiny_folder).vocabulary));
    if (want.empty()) want = got;
    CHECK(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("exactness: a prompt of 5,000 tokens through the ring says the same in any chunks" *
          doctest::test_suite("slow")) {
  auto request = tiny_completion(tiny_words(5000, 11), 24, draw::seeded);
  std::map<int32_t, std::vector<int32_t>> want;
  for (const int32_t chunk : {4096, 100, 1024}) {
    CAPTURE(chunk);
    tiny_ring ring({.chunk = chunk, .n_drafts = chunk == 100 ? 5 : 0, .interval = 4096});
    const auto sink = ring.ask(request);
    CHECK(sink->usage.prompt_tokens > 4096);
    if (want.empty()) want = sink->said;
    CHECK(sink->said == want);
  }
}
