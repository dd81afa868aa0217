// The prefix cache through the real ring with the shipped model: with a hit every token and log-probability is what it
// is without one.
#include "tests/actors/tiny_ring.h"

#include <algorithm>
#include <filesystem>

using namespace troupe;

TEST_CASE("prefix: with a hit every token and log-probability is the same as without" * doctest::test_suite("slow")) {
  for (const int32_t chunk : {23, 512})
    for (const int64_t interval : {0, 64}) {
      CAPTURE(chunk);
      CAPTURE(interval);
      tiny_ring cached({.chunk = chunk, .interval = interval}), plain({.chunk = 512, .snapshot_bytes = 0});
      for (int kind = 0; kind < 3; ++kind) {
        CAPTURE(kind);
        const auto same = [&](const std::string& prompt, int64_t max_tokens) {
          const auto a = cached.ask(tiny_completion(prompt, max_tokens, static_cast<draw>(kind)));
          const auto b = plain.ask(tiny_completion(prompt, max_tokens, static_cast<draw>(kind)));
          CHECK(a->said == b->said);
          CHECK(a->choices.at(0).ids.size() == static_cast<size_t>(max_tokens));
          CHECK(b->usage.cached_tokens == 0);
          CHECK(a->usage.prompt_tokens == b->usage.prompt_tokens);
          return a;
        };
        const std::string prompt = tiny_words(150, 7 + kind);
        CHECK(same(prompt, 20)->usage.cached_tokens < 10);
        const auto second = same(prompt, 20);
        CHECK(second->usage.cached_tokens == second->usage.prompt_tokens - 1);
        const std::string longer = prompt + second->choices[0].content;
        CHECK(same(longer + tiny_words(5, 3), 8)->usage.cached_tokens >= second->usage.prompt_tokens - 1); // next turn
        const std::string fork = prompt.substr(0, prompt.size() / 2) + tiny_words(20, 5);
        const auto first_fork = same(fork, 5)->usage.cached_tokens;
        if (interval > 0) CHECK(first_fork >= 64);
        const std::string other = prompt.substr(0, prompt.size() / 2) + " ZZ" + tiny_words(20, 6);
        CHECK(same(other, 5)->usage.cached_tokens > first_fork);
      }
      CHECK(cached.r.numbers->cache_hits > 0);
      CHECK(cached.r.numbers->cache_queries == plain.r.numbers->cache_queries);
      CHECK(plain.r.numbers->cache_hits == 0);
    }
}

TEST_CASE("prefix: choices of one turn, beside others, are those of an empty cache" * doctest::test_suite("slow")) {
  tiny_ring cached({}), plain({.snapshot_bytes = 0});
  std::vector<std::shared_ptr<exact_sink>> a, b;
  for (auto* ring : {&cached, &plain}) {
    auto& sinks = ring == &cached ? a : b;
    for (const int n : {3, 1, 2}) {
      auto request = tiny_completion(tiny_words(120, n == 2 ? 1 : n), 12, draw::penalised);
      request.n = n;
      sinks.push_back(ring->start(request));
    }
    ring->w.run();
    CHECK(ring->r.is_idle());
  }
  for (size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i]->said.size() == (i == 0 ? 3 : i));
    CHECK(a[i]->said == b[i]->said);
    CHECK(a[i]->usage.cached_tokens < a[i]->usage.prompt_tokens); // a prompt counts once, however many choices
  }
  CHECK(cached.r.numbers->rows < plain.r.numbers->rows - 2 * 100);
}

TEST_CASE("prefix: images are part of it, and the rows after them are the same" * doctest::test_suite("slow")) {
  std::vector<std::string> images;
  for (const auto& e : std::filesystem::directory_iterator(TROUPE_SOURCE_DIR "/tests/golden/tiny/images"))
    images.push_back(e.path().string());
  std::sort(images.begin(), images.end());
  REQUIRE(images.size() >= 2);
  for (auto& i : images) i = file_bytes(i);
  tiny_ring cached({.chunk = 50, .interval = 32}), plain({.chunk = 512, .snapshot_bytes = 0});
  const auto same = [&](const std::vector<std::string>& files, const std::string& question) {
    const auto a = cached.ask(tiny_image_chat(files, question, 6));
    CHECK(a->said == plain.ask(tiny_image_chat(files, question, 6))->said);
    return a->usage;
  };
  same({images[0], images[1]}, "What is it?" + tiny_words(30, 2));
  const auto again = same({images[0], images[1]}, "What is it?" + tiny_words(30, 2));
  CHECK(again.cached_tokens == again.prompt_tokens - 1);
  const auto asked = same({images[0], images[1]}, "What is it?" + tiny_words(30, 2) + " And now?");
  CHECK(asked.cached_tokens > again.prompt_tokens / 2);
  const auto swapped = same({images[1], images[0]}, "What is it?" + tiny_words(30, 2));
  CHECK(swapped.cached_tokens < again.prompt_tokens / 2);
  const auto inside = same({images[0], images.back()}, "What is it?" + tiny_words(30, 2));
  CHECK(inside.cached_tokens < again.prompt_tokens - 1);
}

TEST_CASE("prefix: in tail mode an identical prompt gives the same" * doctest::test_suite("slow")) {
  tiny_ring cached({.mode = prefill_mode::tail, .tail_tokens = 50}),
      plain({.snapshot_bytes = 0, .mode = prefill_mode::tail, .tail_tokens = 50});
  for (int seed = 1; seed < 4; ++seed) {
    const auto request = tiny_completion(tiny_words(160, seed), 16, draw::penalised);
    const auto want = plain.ask(request);
    CHECK(cached.ask(request)->said == want->said);
    const auto second = cached.ask(request);
    CHECK(second->said == want->said);
    CHECK(second->usage.cached_tokens == second->usage.prompt_tokens - 1);
  }
}

TEST_CASE("prefix: a tiny budget evicts and stays exact; the console is told what is missing" *
          doctest::test_suite("slow")) {
  const auto one = plan_state(tiny_folder, host_caches).per_snapshot;
  tiny_ring cached({.snapshot_bytes = 3 * one, .interval = 64}), plain({.snapshot_bytes = 0});
  for (int i = 0; i < 8; ++i) {
    const auto request = tiny_completion(tiny_words(130, i % 4 + 1), 4);
    CHECK(cached.ask(request)->said == plain.ask(request)->said);
    CHECK(cached.r.numbers->snapshots <= 3);
  }
  miss_question q;
  q.prompt = cached.text->words()->encode(tiny_words(130, 1));
  auto answer = cached.w.ask<miss_answer>(cached.r.engine.kv_cache, q);
  REQUIRE(answer);
  CHECK(answer->n_tokens == static_cast<int64_t>(q.prompt.size()));
  CHECK(answer->missing != "nothing");
  CHECK(answer->n_cached <= answer->first_differing);
}

// There is no console yet: its lookup trace is the answer to a miss_question, which names the part that lacked.
TEST_CASE("prefix: features 6.4, each request says what it found, and which part of the cache kept it from more") {
  tiny_ring ring({.interval = 0});
  const auto prompt = ring.text->words()->encode(tiny_words(150, 3));
  const auto n = static_cast<int64_t>(prompt.size()), half = n / 2;
  const auto why = [&](const std::vector<int32_t>& ids, const std::string& salt = "") {
    return *ring.w.ask<miss_answer>(ring.r.engine.kv_cache, miss_question{ids, {}, salt});
  };
  const auto found = [&](const std::vector<int32_t>& ids, const std::string& salt = "") {
    auto q = tiny_completion("", 3);
    q.prompts.clear();
    q.prompt_ids = {ids};
    q.cache_salt = salt;
    const auto counted = ring.r.numbers->cache_hits.load();
    const auto said = why(ids, salt).n_cached;
    const auto cached = ring.ask(q)->usage.cached_tokens;
    CHECK(cached == said);
    CHECK(ring.r.numbers->cache_hits - counted == cached);
    return cached;
  };
  CHECK(why(prompt).missing == "block");
  CHECK(why(prompt).first_differing == 0);
  CHECK(found(prompt) == 0);
  CHECK(why(prompt).missing == "nothing");
  CHECK(why(prompt).first_differing == n);
  CHECK(found(prompt) == n - 1);
  CHECK(why(prompt, "other").missing == "salt");
  CHECK(found(prompt, "other") == 0);
  auto fork = std::vector<int32_t>(prompt.begin(), prompt.begin() + half);
  fork.insert(fork.end(), 30, prompt.back());
  CHECK(why(fork).missing == "snapshot"); // the blocks up to there are cached, the window's state is not
  CHECK(why(fork).first_differing >= half);
  CHECK(found(fork) == 0);
  fork.back() = prompt.front();
  CHECK(found(fork) >= half); // seen twice
}

TEST_CASE("prefix: a client that leaves in its prefill leaves a prefix behind" * doctest::test_suite("slow")) {
  tiny_ring cached({.chunk = 40, .interval = 0}), plain({.snapshot_bytes = 0});
  const auto request = tiny_completion(tiny_words(170, 9), 8, draw::seeded);
  auto sink = std::make_shared<exact_sink>();
  auto leaving = request;
  leaving.turn = turn_id{++cached.r.last_turn};
  const auto turn = leaving.turn;
  const auto actor = cached.r.start(leaving, sink);
  REQUIRE(cached.w.run_until([&] { return cached.w.count<step_ready>("rank") == 2; }));
  caf::anon_send(actor, client_gone{turn});
  cached.w.run();
  CHECK(cached.r.is_idle());
  const auto next = cached.ask(request);
  CHECK(next->usage.cached_tokens >= 80);
  CHECK(next->said == plain.ask(request)->said);
}

TEST_CASE("prefix: a request that leaves a stream in the middle of its reply hits it, with the tokens of no cache" *
          doctest::test_suite("slow")) {
  for (const int32_t n_drafts : {0, 5}) {
    CAPTURE(n_drafts);
    tiny_ring ring({.chunk = 100, .n_drafts = n_drafts, .interval = 64}), plain({.chunk = 512, .snapshot_bytes = 0});
    auto first = tiny_completion("", 400);
    first.prompts.clear();
    first.prompt_ids = {plain.text->words()->encode(tiny_words(200, 5))};
    const auto stream = ring.start(first);
    const auto fork_at = [&](size_t n_said) { // what the stream has been fed when it has said so much, and then others
      REQUIRE(ring.w.run_until([&] { return !stream->choices.empty() && stream->ids().size() >= n_said; }));
      auto fork = tiny_completion("", 12);
      fork.prompts.clear();
      auto ids = first.prompt_ids[0];
      ids.insert(ids.end(), stream->ids().begin(), stream->ids().end() - 1);
      const auto n_fed = static_cast<int64_t>(ids.size());
      ids.insert(ids.end(), {500, 501, 502});
      fork.prompt_ids = {std::move(ids)};
      const auto sink = ring.start(fork);
      REQUIRE(ring.w.run_until([&] { return sink->has_ended(); }));
      CHECK_FALSE(stream->has_ended());
      CHECK(sink->usage.cached_tokens >= n_fed / 64 * 64);
      CHECK(sink->usage.cached_tokens <= n_fed);
      CHECK(sink->said == plain.ask(fork)->said);
    };
    for (const size_t n_said : {20, 100, 170, 260}) fork_at(n_said);
    ring.w.run();
    CHECK(stream->said == plain.ask(first)->said);
  }
}
