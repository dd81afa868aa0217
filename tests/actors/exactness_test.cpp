// Design section 6 over the shipped model through the ring: whatever stands beside a request, and whatever the caches,
// drafts, chunks and room are, its tokens and the bits of its log-probabilities are the same.
#include "tests/actors/tiny_ring.h"

#include <caf/all.hpp>

#include <cmath>
#include <future>

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

TEST_CASE("exactness: chunks of 16 to 4096 tokens" * doctest::test_suite("slow")) {
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

TEST_CASE("exactness: one rank and two say the same tokens where the margin allows" * doctest::test_suite("slow")) {
  spdlog::set_level(spdlog::level::warn);
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
    for (auto r : mixed_requests()) {
      r.turn = turn_id{++turn};
      r.sampling.n_logprobs = 3;
      const auto sink = std::make_shared<waiting_exact_sink>();
      auto end = sink->ended();
      spawn_request(system, engine.parts(), r, sink);
      REQUIRE(end.wait_for(std::chrono::seconds(120)) == std::future_status::ready);
      CHECK(sink->error.message == "");
      said[static_cast<size_t>(n_ranks) - 1].push_back(sink);
    }
    engine.stop();
  }
  // Sums in another order move log-probabilities a little. A greedy text may part only where its two best are closer
  // than what both can have moved, by the largest move that this very run shows; a draw may part anywhere.
  int64_t n_same = 0, n_parted = 0;
  float drift = 0, widest = 0; // widest: gap of the two best where a greedy text parted
  for (size_t i = 0; i < said[0].size(); ++i)
    for (const auto& [choice, one] : said[0][i]->said) {
      const auto& two = said[1][i]->said.at(choice);
      constexpr size_t record = 8; // id, bits, then three pairs of them
      for (size_t at = 0; at + record <= std::min(one.size(), two.size()); at += record) {
        const auto number = [&](const std::vector<int32_t>& of, size_t k) { return std::bit_cast<float>(of[at + k]); };
        if (one[at] != two[at]) {
          ++n_parted;
          if (i % 3 == 0) widest = std::max(widest, number(one, 3) - number(one, 5));
          break;
        }
        drift = std::max(drift, std::fabs(number(one, 1) - number(two, 1)));
        ++n_same;
      }
    }
  CHECK(widest <= 2 * drift);
  MESSAGE("largest move of a log-probability: ", drift);
  MESSAGE(n_same, " tokens are the same; texts that part: ", n_parted);
  CHECK(n_same > 300);
}
