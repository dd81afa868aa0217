// What a stream leaves in the prefix cache while it still runs: others hit it in the step after a block was filled, by
// prefill, by decode or by guesses that came true.                                         features 6.1; bugs/ops.md
// O35
#include "tests/actors/ledger_ring.h"

using namespace troupe;

namespace {

using namespace ledger_ring;

constexpr int64_t tokens_of_block = 8, n_prompt = 100;

// One stream of many tokens, alone for `n_steps` steps.
struct running_stream : bench_ring {
  running_stream(const kv_cache_config& c, int64_t n_steps, int32_t n_drafts, int32_t chunk = 24)
      : bench_ring(c, chunk, 4, n_drafts) {
    std::mt19937_64 random(11);
    prompt = random_tokens(random, n_prompt);
    admit(prompt, 300);
    for (int64_t i = 0; i < n_steps; ++i) step();
    has = prompt;
    const auto& spoken = said[stream];
    has.insert(has.end(), spoken.begin(), spoken.end());
    n_fed = spoken.empty() ? static_cast<int64_t>(device.n_rows) : static_cast<int64_t>(has.size()) - 1;
    has.resize(static_cast<size_t>(n_fed));
  }
  // The stream's first `n` tokens and then others: what it finds, while the stream goes on.
  int64_t fork(int64_t n, int32_t mark) {
    auto other = tokens(has.begin(), has.begin() + n);
    other.insert(other.end(), 3, mark);
    const auto id = sequence_id{(last_turn + 1) * 100};
    admit(other, 1);
    while (said[id].empty()) step();
    CHECK(said[stream].size() < 300);
    return device.n_cached.at(id);
  }

  const sequence_id stream{100};
  tokens prompt, has; // has: what was fed so far
  int64_t n_fed = 0;
};

kv_cache_config drafting(int64_t interval, int32_t n_drafts) {
  auto c = config(interval);
  c.snapshot_slack = 1 + n_drafts;
  return c;
}

} // namespace

TEST_CASE("kv_ledger: a request hits the block that a running stream filled in the step before (features 6.1)") {
  int64_t n_in_prefill = 0, n_in_decode = 0;
  for (const int32_t n_drafts : {0, 5})
    for (int64_t n_steps = 1; n_steps < 80; ++n_steps) {
      CAPTURE(n_drafts);
      CAPTURE(n_steps);
      running_stream r(drafting(tokens_of_block, n_drafts), n_steps, n_drafts);
      if (r.has.size() > 290 + n_prompt) break;
      const int64_t want =
          std::max(r.n_fed / tokens_of_block * tokens_of_block, r.n_fed >= n_prompt - 1 ? n_prompt - 1 : 0);
      ++(r.n_fed <= n_prompt ? n_in_prefill : n_in_decode);
      CHECK(r.fork(r.n_fed, 900) == want);
      r.run();
      r.check_replies();
    }
  CHECK(n_in_prefill >= 2 * 4);
  CHECK(n_in_decode > 100);
}

TEST_CASE("kv_ledger: where two forks leave a stream that still runs is a place to go on, without any interval") {
  std::mt19937_64 random(12);
  for (const int32_t n_drafts : {0, 5})
    for (const int64_t n_steps : {1, 2, 3, 4, 5, 9, 20, 30}) {
      CAPTURE(n_drafts);
      CAPTURE(n_steps);
      running_stream r(drafting(0, n_drafts), n_steps, n_drafts);
      const int64_t known = (r.n_fed - (r.n_fed > n_prompt ? n_drafts : 0)) / tokens_of_block * tokens_of_block;
      const int64_t at = n_steps % 2 == 0 ? known : pick(random, 1, known);
      const int64_t before = at >= n_prompt - 1 ? n_prompt - 1 : 0; // of the stream: the end of its prompt
      CAPTURE(at);
      CHECK(r.fork(at, 900) == before);
      CHECK(r.fork(at, 901) == at);
      r.run();
      r.check_replies();
    }
}

TEST_CASE("kv_ledger: with drafts too a reply leaves a snapshot at each interval (design 5)") {
  for (const int64_t interval : {1, 5, 8, 13, 64})
    for (const int32_t n_drafts : {1, 3, 5}) {
      CAPTURE(interval);
      CAPTURE(n_drafts);
      running_stream r(drafting(interval, n_drafts), 1, n_drafts);
      r.run();
      r.check_replies();
      auto all = r.prompt;
      const auto& spoken = r.said[r.stream];
      all.insert(all.end(), spoken.begin(), spoken.end());
      for (int64_t at = n_prompt; at < static_cast<int64_t>(all.size()) - 1; at += 7) {
        CAPTURE(at);
        auto fork = tokens(all.begin(), all.begin() + at);
        fork.insert(fork.end(), 2, 900);
        CHECK(r.ledger.explain({fork, {}, ""}).n_cached == std::max(at / interval * interval, n_prompt - 1));
      }
    }
}
