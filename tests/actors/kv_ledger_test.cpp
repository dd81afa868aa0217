// The prefix cache as a whole, against a brute-force idea of what must hit, on a device that knows what it holds.
#include "tests/actors/ledger_ring.h"

#include <set>

using namespace troupe;

namespace {

using namespace ledger_ring;

int64_t common(const tokens& a, const tokens& b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return static_cast<int64_t>(n);
}

// What must be there when nothing is evicted: design section 5, by trying everything.
struct brute_force {
  int64_t interval, block;
  std::set<tokens> snapshots, known;

  int64_t expect(const tokens& prompt, int64_t& fork) const {
    int64_t best = 0;
    fork = 0;
    for (const auto& s : snapshots) {
      const auto n = static_cast<int64_t>(s.size());
      if (n < static_cast<int64_t>(prompt.size()) && common(s, prompt) == n) best = std::max(best, n);
    }
    for (const auto& k : known) fork = std::max(fork, common(k, prompt));
    return best;
  }
  // A sequence that began at `hit` and ran all of `ran`.
  void add(const tokens& ran, int64_t n_prompt, int64_t hit, int64_t fork) {
    const auto end = static_cast<int64_t>(ran.size());
    const auto keep = [&](int64_t n) {
      if (n > 0) snapshots.insert(tokens(ran.begin(), ran.begin() + n));
      if (n > 0) known.insert(tokens(ran.begin(), ran.begin() + n));
    };
    for (int64_t n = hit + 1; n <= end; ++n)
      if (n == n_prompt - 1 || n == end || n == fork || (interval > 0 && n % interval == 0)) keep(n);
    known.insert(tokens(ran.begin(), ran.begin() + end / block * block));
  }
};

} // namespace

TEST_CASE("kv_ledger: any interval gives the longest snapshot at or below the common prefix") {
  for (const int64_t interval : {0, 1, 5, 8, 13, 64, 100, 4096})
    for (const int32_t chunk : {3, 32}) {
      CAPTURE(interval);
      CAPTURE(chunk);
      bench_ring r(config(interval), chunk);
      brute_force model{interval, 8, {}, {}};
      std::mt19937_64 random(static_cast<uint64_t>(interval) * 7 + static_cast<uint64_t>(chunk));
      std::vector<tokens> past;
      for (int i = 0; i < 60; ++i) {
        tokens prompt = random_tokens(random, 1 + static_cast<int64_t>(random() % 40));
        if (!past.empty() && random() % 4 != 0) { // the beginning of an earlier one, and perhaps more
          const auto& old = past[random() % past.size()];
          const size_t n = random() % (old.size() + 1);
          prompt.insert(prompt.begin(), old.begin(), old.begin() + static_cast<std::ptrdiff_t>(n));
        }
        int64_t fork = 0;
        const int64_t want = model.expect(prompt, fork);
        const int64_t got = r.ask(prompt, 1 + static_cast<int64_t>(random() % 20));
        CHECK(got == want);
        tokens ran = prompt;
        const auto reply = r.reply_of_last();
        ran.insert(ran.end(), reply.begin(), reply.end() - 1); // the last token never went through
        r.run();
        model.add(ran, static_cast<int64_t>(prompt.size()), got, fork > got ? fork : 0);
        past.push_back(ran);
      }
    }
}

TEST_CASE("kv_ledger: the second identical request hits all but its last token (O35, features 6.1, 6.2)") {
  for (const int64_t slack : {0, 1, 5}) {
    auto c = config(64);
    c.snapshot_slack = slack;
    bench_ring r(c);
    std::mt19937_64 random(3);
    for (int64_t n = 1; n < 300; n += 7) {
      tokens prompt = random_tokens(random, n);
      prompt[0] = 1000 + static_cast<int32_t>(n);
      CHECK(r.ask(prompt, 3) == 0);
      CHECK(r.ask(prompt, 3) == n - 1);
      CHECK(r.ask(prompt, 3) == n - 1);
    }
  }
}

TEST_CASE(
    "kv_ledger: a conversation hits up to the end of the last reply, or of the last prompt if its reasoning is gone "
    "(O36, O37)") {
  bench_ring r(config(4096));
  std::mt19937_64 random(4);
  tokens kept = random_tokens(random, 90), stripped = kept;
  stripped[0] = kept[0] + 50;
  int64_t n_kept = 0, n_stripped = 0;
  for (int turn = 0; turn < 6; ++turn) {
    CHECK(r.ask(kept, 12) == n_kept);
    const auto reply = r.reply_of_last();
    n_kept = static_cast<int64_t>(kept.size() + reply.size()) - 1;
    kept.insert(kept.end(), reply.begin(), reply.end());
    const auto question = random_tokens(random, 20);
    kept.insert(kept.end(), question.begin(), question.end());
    CHECK(r.ask(stripped, 12) == n_stripped);
    n_stripped = static_cast<int64_t>(stripped.size()) - 1;
    stripped.insert(stripped.end(), 20, 999); // an answer that never ran in this form
    stripped.insert(stripped.end(), question.begin(), question.end());
  }
}

TEST_CASE("kv_ledger: a fork resumes below it at first and exactly there from the second time on (features 6.5)") {
  std::mt19937_64 random(5);
  const auto prompt = random_tokens(random, 1000);
  for (int64_t at = 1; at < 999; ++at) {
    CAPTURE(at);
    bench_ring r(config(64), 512);
    r.ask(prompt);
    for (int time = 0; time < 3; ++time) {
      auto other = tokens(prompt.begin(), prompt.begin() + at);
      other.insert(other.end(), 30, 500 + time);
      CHECK(r.ask(other) == (time == 0 ? at / 64 * 64 : at));
    }
  }
}

TEST_CASE(
    "kv_ledger: a fork of a prompt of 11,431 tokens finds 8,192, and all of it from the second on (features 6.10)") {
  std::mt19937_64 random(16);
  const auto prompt = random_tokens(random, 11431);
  for (const int64_t at : {8192, 8193, 11300, 11399, 11429}) {
    CAPTURE(at);
    auto c = config(4096, 1000, 400);
    c.block_tokens = 64;
    bench_ring r(c, 512);
    CHECK(r.ask(prompt) == 0);
    for (int time = 0; time < 3; ++time) {
      auto other = tokens(prompt.begin(), prompt.begin() + at);
      other.insert(other.end(), 30, 500 + time);
      CHECK(r.ask(other) == (time == 0 ? 8192 : at));
    }
    CHECK(r.ask(prompt) == 11430);
  }
}

TEST_CASE("kv_ledger: another salt and another image are another prefix") {
  bench_ring r(config(8));
  std::mt19937_64 random(6);
  const auto prompt = random_tokens(random, 60);
  CHECK(r.ask(prompt, 1, "a") == 0);
  CHECK(r.ask(prompt, 1, "b") == 0);
  CHECK(r.ask(prompt, 1, "a") == 59);
  const image_place cat{20, 2, 3, 0, 77}, dog{20, 2, 3, 0, 78}; // positions 20 .. 29
  CHECK(r.ask(prompt, 1, "", {cat}) == 0);
  CHECK(r.ask(prompt, 1, "", {cat}) == 59);
  CHECK(r.ask(prompt, 1, "", {dog}) == 16); // the last interval before they differ
  CHECK(r.ask(prompt, 1, "", {dog}) == 59);
  miss_question q{prompt, {dog}, ""};
  CHECK(r.ledger.explain(q).missing == "nothing");
  q.cache_salt = "c";
  CHECK(r.ledger.explain(q).missing == "salt");
  q.images = {{20, 2, 3, 0, 79}};
  q.cache_salt = "";
  CHECK(r.ledger.explain(q).first_differing == 20);
}

TEST_CASE("kv_ledger: choices of a turn compute their prompt once, and the next takes over when the first goes") {
  std::mt19937_64 random(7);
  const auto prompt = random_tokens(random, 100);
  bench_ring r(config(0), 32, 4);
  const auto turn = r.admit(prompt, 5, 4);
  SUBCASE("all stay") {
    r.run();
    CHECK(r.device.n_rows == 100 + 3 + 4 * 4);
    for (uint64_t i = 1; i < 4; ++i) {
      CHECK(r.device.n_cached.at(sequence_id{100 + i}) == 99);
      CHECK(r.said[sequence_id{100 + i}] == r.said[sequence_id{100}]);
    }
  }
  SUBCASE("the first leaves in its prefill") {
    r.step();
    r.step();
    r.policy.stop(sequence_id{100});
    r.run();
    CHECK(r.device.n_rows == 100 + 2 + 3 * 4); // what it had done is not done again
    CHECK(r.said[sequence_id{101}].size() == 5);
  }
  (void)turn;
}

TEST_CASE("kv_ledger: a prefill that was cut short is where the same prompt goes on") {
  bench_ring r(config(0), 32);
  std::mt19937_64 random(8);
  const auto prompt = random_tokens(random, 150);
  const auto turn = r.admit(prompt, 5);
  r.step();
  r.step();
  r.policy.cancel(turn);
  r.run();
  CHECK(r.ask(prompt) == 64);
}

TEST_CASE("kv_ledger: nothing that a failed step made is used again") {
  std::mt19937_64 random(9);
  const auto prompt = random_tokens(random, 100);
  for (const int32_t status : {500, 503}) {
    CAPTURE(status);
    bench_ring r(config(32), 32);
    r.admit(prompt, 5);
    r.step();
    r.step(status);
    r.run();
    CHECK(r.ask(prompt, 5) == (status == 503 ? 32 : 0)); // an engine's failure puts all of it in doubt
    CHECK(r.ask(prompt, 5) == 99);
  }
}

TEST_CASE("kv_ledger: within the budget every context stays, beyond it the cheapest goes (features 6.6, 6.9)") {
  const auto c = config(0, 24, 400);
  bench_ring r(c);
  std::mt19937_64 random(10);
  std::vector<tokens> contexts;
  REQUIRE(c.n_contexts(202) == 12); // as the start says; by snapshots, by blocks it would be 15
  REQUIRE(c.n_contexts(300) == 10);
  for (int i = 0; i < 12; ++i) {
    contexts.push_back(random_tokens(random, 200));
    contexts.back()[0] = 2000 + i;
    r.ask(contexts.back(), 2);
  }
  for (const auto& c : contexts) CHECK(r.ask(c, 2) == 199);
  for (int i = 0; i < 30; ++i) { // short ones come and go, the long ones are worth more
    auto small = random_tokens(random, 10);
    small[0] = 3000 + i;
    r.ask(small, 1);
  }
  for (const auto& c : contexts) CHECK(r.ask(c, 2) == 199);
  CHECK(r.ledger.index().n_snapshots() <= 24);
  auto gone = random_tokens(random, 10);
  gone[0] = 3000;
  const auto why = r.ledger.explain({gone, {}, ""});
  CHECK(why.n_cached < 9);
}

TEST_CASE("kv_ledger: snapshots inside of prompts count among those of a context") {
  const auto c = config(50, 24, 400);
  bench_ring r(c);
  std::mt19937_64 random(11);
  std::vector<tokens> contexts;
  REQUIRE(c.n_contexts(202) == 4); // four inside of each prompt, its end and the reply's
  for (int i = 0; i < 4; ++i) {
    contexts.push_back(random_tokens(random, 200));
    contexts.back()[0] = 2000 + i;
    r.ask(contexts.back(), 2);
  }
  for (const auto& asked : contexts) CHECK(r.ask(asked, 2) == 199);
  CHECK(r.ledger.index().n_snapshots() <= 24);
}

TEST_CASE("kv_ledger: of a step whose result nobody has, no row is kept, though the step before planned as far") {
  bench_ring r(config(0), 128);
  std::mt19937_64 random(15);
  auto told = random_tokens(random, 100);
  r.admit(told, 8);
  r.step(); // the prompt
  const auto place = [&](const tokens& rows, int32_t n_drafts) {
    step_plan plan = r.policy.plan(r.now);
    REQUIRE(plan.rows.size() == 1);
    plan.step = ++r.n_steps;
    plan.rows[0].start = static_cast<int64_t>(told.size());
    plan.rows[0].tokens = rows;
    plan.rows[0].n_drafts = n_drafts;
    r.ledger.place(std::move(plan), r.now);
    told.push_back(rows[0]);
  };
  place({1, 2, 3, 4, 5, 6}, 5); // the guesses are wrong
  place({7}, 0);                // and this is never answered
  r.ledger.end_all();
  const auto before = static_cast<int64_t>(told.size()) - 1;
  told.insert(told.end(), {8, 9});
  CHECK(r.ledger.explain({told, {}, ""}).n_cached <= before);
}

TEST_CASE("kv_ledger: a restart in the first step of a sequence keeps the prefix that it found") {
  bench_ring r(config(0));
  std::mt19937_64 random(14);
  auto prompt = random_tokens(random, 100);
  r.ask(prompt, 1);
  const auto more = random_tokens(random, 100);
  prompt.insert(prompt.end(), more.begin(), more.end());
  const auto n_cached = r.ledger.explain({prompt, {}, ""}).n_cached;
  CHECK(n_cached >= 99);
  r.admit(prompt, 1);
  r.step();
  r.ledger.end_all();
  CHECK(r.ledger.explain({prompt, {}, ""}).n_cached == n_cached);
}

TEST_CASE("kv_ledger: random turns, ends and failures under tiny budgets never show wrong content") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto pick = [&](int64_t low, int64_t high) { return ledger_ring::pick(random, low, high); };
    auto c = config(std::vector<int64_t>{0, 1, 8, 13, 64}[random() % 5], pick(0, 12), pick(20, 40));
    c.snapshot_slack = pick(0, 5);
    if (pick(0, 2) == 0) c.tail_tokens = pick(1, 40);
    bench_ring r(c, static_cast<int32_t>(pick(1, 40)));
    std::vector<tokens> past{random_tokens(random, 50)};
    for (int i = 0; i < 300; ++i) {
      if (pick(0, 3) == 0) {
        r.admit(grow(random, past), pick(1, 12), static_cast<int>(pick(1, 3)), pick(0, 5) == 0 ? "salt" : "");
      }
      if (pick(0, 19) == 0)
        r.policy.cancel(turn_id{static_cast<uint64_t>(pick(1, 1 + static_cast<int64_t>(r.last_turn)))});
      if (r.policy.has_step(r.now)) r.step(pick(0, 29) == 0 ? (pick(0, 1) == 0 ? 500 : 503) : 0);
      for (const auto& [id, reply] : r.said)
        if (pick(0, 40) == 0) {
          past.push_back(r.prompts.at(id));
          past.back().insert(past.back().end(), reply.begin(), reply.end());
        }
    }
    r.run();
    r.check_replies();
  }
}
