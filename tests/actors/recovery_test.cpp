// Restarts: whatever dies, and whenever, each client reads what it would have read. One test for each row of the table
// in design section 3 that is about actors of one process.
#include "actors/queue_limit.h"
#include "actors/request.h"
#include "actors/restart_policy.h"
#include "tests/actors/world.h"

#include <doctest/doctest.h>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

const std::vector<std::string> kinds{"scheduler", "kv_cache", "fan_out", "engram_fetch", "rank"};

caf::strong_actor_ptr find(const wiring& w, const std::string& kind) {
  if (kind == "journal") return w.journal;
  if (kind == "scheduler") return w.scheduler;
  if (kind == "kv_cache") return w.kv_cache;
  if (kind == "fan_out") return w.fan_out;
  if (kind == "engram_fetch") return w.engram_fetches.back();
  return w.rank_actors.back();
}

// Three streams: a plain one, two choices with log-probabilities, and one that ends by a stop string.
struct troubled {
  explicit troubled(int32_t n_ranks = 1) : r(w, scripted_ring::small_limits(), n_ranks) {
    r.say(" one two three four five six seven eight nine ten");
    r.supervise();
    first = r.who();
  }
  void start() {
    r.start(r.completion("Hello there, this prompt is longer than a chunk of sixteen tokens, by some words"), plain);
    auto two = r.completion("Hi", 6, 2);
    two.sampling.n_logprobs = 2;
    r.start(std::move(two), choices);
    auto cut = r.completion("Stop it");
    cut.stop = {"six se"};
    r.start(std::move(cut), stopped);
  }
  // Images from now on; `n_threads` of prepare's crew.
  void see(int32_t n_threads) {
    r.parts.info.has_vision = true;
    r.parts.prepare = w.own(spawn_prepare(w.system(), {r.parts.config, r.parts.info, r.parts.max_context, r.numbers},
                                          r.text, n_threads, false));
  }
  chat_request look() {
    auto q = r.completion("");
    q.prompts.clear();
    q.is_chat = true;
    q.chat.thinking = false;
    auto& m = q.chat.messages.emplace_back();
    m.parts.push_back({"look", -1});
    m.parts.push_back({"", 0});
    q.image_files = {"123"};
    return q;
  }
  void kill(const std::string& kind) { caf::anon_send_exit(find(first, kind), caf::exit_reason::kill); }
  void check() {
    CAPTURE(plain->error.message);
    CHECK(plain->n_failures == 0);
    CHECK(choices->n_failures == 0);
    CHECK(stopped->n_failures == 0);
    REQUIRE(plain->choices.size() == 1);
    CHECK(plain->choices[0].content == " one two three four five six seven eight nine ten");
    CHECK(plain->choices[0].ids.size() == r.rank().answer.size() + 1);
    CHECK(plain->choices[0].n_ends == 1);
    CHECK(plain->n_opens == 1);
    REQUIRE(choices->choices.size() == 2);
    for (const auto& c : choices->choices) {
      CHECK(c.ids.size() == 6);
      CHECK(c.n_ends == 1);
      CHECK(c.cause == finish_cause::length);
    }
    REQUIRE(stopped->choices.size() == 1);
    CHECK(stopped->choices[0].content == " one two three four five ");
    CHECK(stopped->choices[0].stop_string == "six se");
    CHECK(stopped->choices[0].n_ends == 1);
    for (const auto& s : {plain, choices, stopped}) {
      int64_t n = 0;
      for (const auto& c : s->choices) n += static_cast<int64_t>(c.ids.size());
      CHECK(s->usage.completion_tokens == n);
    }
    CHECK(r.is_idle());
    CHECK(r.numbers->now == phase::ready);
  }
  // Whatever was computed, replayed or admitted again: the counters have each turn once.
  void check_counts() {
    const auto& n = *r.numbers;
    turn_usage all;
    int64_t n_asked = 0;
    for (const auto& s : {plain, choices, stopped}) {
      all.prompt_tokens += s->usage.prompt_tokens;
      all.completion_tokens += s->usage.completion_tokens;
      all.cached_tokens += s->usage.cached_tokens;
      n_asked += s->usage.prompt_tokens * static_cast<int64_t>(s->choices.size());
    }
    CHECK(n.prompt_tokens == all.prompt_tokens);
    CHECK(n.generated_tokens == all.completion_tokens);
    CHECK(n.cached_tokens == all.cached_tokens);
    CHECK(n.cache_queries == n_asked);
    CHECK(n.cache_hits == all.cached_tokens);
    CHECK(n.turns == 3);
    CHECK(n.ended_stop + n.ended_length == 3);
    CHECK(n.parse_errors + n.stray_markers == 0);
    uint64_t n_prompts = 0;
    for (size_t i = 0; i <= n.prompt_size.bounds().size(); ++i) n_prompts += n.prompt_size.count(i);
    CHECK(n_prompts == 3);
  }

  world w;
  scripted_ring r;
  wiring first;
  std::shared_ptr<recording_sink> plain = sink(), choices = sink(), stopped = sink();
};

} // namespace

TEST_CASE("recovery: an undisturbed run is what the others are compared with") {
  troubled t;
  t.start();
  t.w.run();
  t.check();
  t.check_counts();
  CHECK(t.plain->notes.empty());
  CHECK(t.r.numbers->restarts == 0);
}

TEST_CASE("recovery: whichever ring actor dies after any message, the clients read the same") {
  for (const int32_t n_ranks : {1, 2})
    for (const auto& kind : kinds) {
      int n_kills = 0;
      for (int at = 0;; at += 3) {
        troubled t(n_ranks);
        t.start();
        int n = 0;
        while (n < at && t.w.run_once()) ++n;
        if (n < at) break; // it was over before
        CAPTURE(n_ranks);
        CAPTURE(kind);
        CAPTURE(at);
        t.kill(kind);
        t.w.run();
        t.check();
        t.check_counts();
        CHECK(t.r.numbers->restarts == 1);
        ++n_kills;
      }
      CHECK(n_kills > 40);
    }
}

TEST_CASE("recovery: a stream in flight is told by a comment, and nobody else is") {
  for (const auto& kind : {"scheduler", "kv_cache", "fan_out", "rank"}) {
    CAPTURE(kind);
    troubled t;
    t.start();
    REQUIRE(t.w.run_until([&] { return t.plain->n_pushes > 2; }));
    t.kill(kind);
    t.w.run();
    CHECK(t.plain->notes == std::vector<std::string>{"the engine was restarted, the answer goes on"});
    const auto late = sink();
    t.r.start(t.r.completion("Hi"), late);
    t.w.run();
    CHECK(late->notes.empty());
    CHECK(late->choices.at(0).n_ends == 1);
  }
}

// fan_out gives each step to the journal before any of it goes to a sink, and ends an epoch behind all of its steps. So
// what it has not come to has reached nobody: it is said late, or computed again.
TEST_CASE("recovery: a fan_out that is behind delays its own steps alone, and whoever dies then, no token is lost") {
  for (const auto& kind : kinds) {
    CAPTURE(kind);
    troubled t;
    t.start();
    REQUIRE(t.w.run_until([&] { return t.plain->n_pushes > 2; }));
    const auto n_steps = t.r.numbers->steps.load();
    const auto request = t.r.start(t.r.completion("Hello"), sink());
    t.w.held = "fan_out";
    t.w.run();
    CHECK(t.r.numbers->steps > n_steps);
    CHECK(t.r.numbers->steps <= n_steps + static_cast<int64_t>(most_steps_ahead + taken_each));
    caf::anon_send(request, client_gone{turn_id{4}}); // and who leaves does not wait for it
    t.w.run();
    CHECK(t.r.status().n_running + t.r.status().n_waiting <= 4);
    t.kill(kind);
    t.w.run();
    t.w.held.clear();
    t.w.run();
    t.check();
    CHECK(t.r.numbers->restarts == 1);
  }
}

TEST_CASE("recovery: an engram_fetch that dies costs one retry of its step and nothing else") {
  troubled t(2);
  t.start();
  REQUIRE(t.w.run_until([&] { return t.plain->n_pushes > 2; }));
  const auto n_steps = t.r.numbers->steps.load();
  t.kill("engram_fetch");
  t.w.run();
  t.check();
  CHECK(t.plain->notes.empty());
  CHECK(t.r.numbers->steps > n_steps); // the count of steps was not begun again
  CHECK(t.r.who().epoch == 1);
  CHECK(t.r.numbers->resumed_turns == 0);
}

TEST_CASE("recovery: a client that leaves while an actor is dead frees everything, and its request ends") {
  for (const auto& kind : kinds) {
    CAPTURE(kind);
    troubled t;
    const auto request = t.r.start(t.r.completion("Hello"), t.plain);
    REQUIRE(t.w.run_until([&] { return t.plain->n_pushes > 1; }));
    t.kill(kind);
    caf::anon_send(request, client_gone{turn_id{1}});
    t.w.run();
    CHECK(t.r.is_idle());
    CHECK(t.r.numbers->ended_abort == 1);
  }
}

TEST_CASE("recovery: a paused reader stays paused behind a restart, and is not forgotten") {
  for (const auto& kind : {"scheduler", "fan_out", "rank"}) {
    CAPTURE(kind);
    troubled t;
    t.plain->next_state = turn_sink::state::full;
    t.r.start(t.r.completion("Hello"), t.plain);
    t.w.run();
    const int n_pushes = t.plain->n_pushes;
    CHECK_FALSE(t.plain->has_ended());
    t.kill(kind);
    t.w.run();
    CHECK(t.plain->n_pushes <= n_pushes + 2); // a new fan_out learns it from the next push, one step late
    t.plain->next_state = turn_sink::state::ok;
    caf::anon_send(t.r.engine.journal, stream_resumed{turn_id{1}});
    t.w.run();
    CHECK(t.plain->choices.at(0).content == " one two three four five six seven eight nine ten");
    CHECK(t.r.is_idle());
  }
}

TEST_CASE("recovery: images reach new ranks again, and those of a turn that left are dropped") {
  for (const auto& kind : {"scheduler", "kv_cache", "rank"}) {
    CAPTURE(kind);
    troubled t;
    t.see(0);
    auto r = t.look(), other = r;
    other.turn = turn_id{77};
    t.r.start(std::move(r), t.plain);
    const auto leaves = t.r.start(std::move(other), t.stopped);
    REQUIRE(t.w.run_until([&] { return t.plain->n_pushes > 1 && t.stopped->n_pushes > 1; }));
    const auto n_before = t.r.rank().image_bytes.size();
    t.kill(kind);
    caf::anon_send(leaves, client_gone{turn_id{77}});
    t.w.run();
    CHECK(t.plain->n_failures == 0);
    REQUIRE(t.plain->choices.size() == 1);
    CHECK(t.plain->choices[0].n_ends == 1);
    CHECK(t.r.is_idle());
    if (std::string(kind) == "rank")
      CHECK(t.r.rank().image_bytes.size() > n_before);
    else
      CHECK(static_cast<size_t>(t.r.rank().n_dropped) == t.r.rank().image_bytes.size());
  }
}

TEST_CASE("recovery: images that are made again find the queue full, and are not refused for it") {
  troubled t;
  t.r.parts.config.max_running = 1;
  t.r.parts.config.max_queue = 0; // prepare's limits, which this one turn fills
  t.see(2);
  t.r.start(t.look(), t.plain);
  REQUIRE(t.w.run_until([&] { return t.plain->n_pushes > 1; }));
  REQUIRE(refuse_early(*t.r.numbers, 0, 0, 1));
  const auto n_before = t.r.rank().image_bytes.size();
  t.kill("rank");
  t.w.run();
  CHECK(t.r.rank().image_bytes.size() > n_before);
  CHECK(t.plain->n_failures == 0);
  REQUIRE(t.plain->choices.size() == 1);
  CHECK(t.plain->choices[0].n_ends == 1);
  CHECK(t.r.numbers->refused == 0);
  CHECK(t.r.is_idle());
}

TEST_CASE(
    "recovery: whoever dies before the first token, the client is told what its prompt found when it first came") {
  const std::string known = "This part of the prompt was there before and is found again, all of it, every time";
  const auto with_cache = [](ring_config& c) {
    c.prefix.snapshot_bytes = 1;
    c.prefix.snapshot_memory_bytes = 64;
    c.prefix.snapshot_interval = 16;
    c.prefix.snapshot_slack = 1;
  };
  int64_t want = 0;
  for (const auto& kind : kinds)
    for (int at = -1;; at += at < 0 ? 1 : 2) { // -1: nobody dies
      CAPTURE(kind);
      CAPTURE(at);
      world w;
      scripted_ring r(w, scripted_ring::small_limits(), 1, with_cache);
      r.say(" one two three");
      r.supervise();
      const auto first = r.who();
      r.start(r.completion(known), sink());
      w.run();
      const auto n_told = w.count<tokens_accepted>("journal");
      const auto late = sink();
      r.start(r.completion(known + ", but what follows is new and longer than a chunk or two, so that it takes steps"),
              late);
      int n = 0;
      while (n < at && late->n_pushes == 0 && w.run_once()) ++n;
      if (n < at) break;
      const bool is_known = w.count<tokens_accepted>("journal") > n_told;
      if (at >= 0) caf::anon_send_exit(find(first, kind), caf::exit_reason::kill);
      w.run();
      REQUIRE(late->has_ended());
      CHECK(late->n_failures == 0);
      if (at < 0) want = late->usage.cached_tokens;
      CHECK(want > 0);
      CHECK(late->usage.cached_tokens <= want);
      if (is_known || (kind != "kv_cache" && kind != "rank")) CHECK(late->usage.cached_tokens == want);
      CHECK(r.numbers->cached_tokens == late->usage.cached_tokens); // and the counters are told the same, once
      CHECK(r.numbers->cache_hits == late->usage.cached_tokens);
      CHECK(r.numbers->cache_queries == r.numbers->prompt_tokens);
    }
}

TEST_CASE("recovery: a drain waits for turns that are brought back") {
  for (const auto& kind : kinds) {
    CAPTURE(kind);
    troubled t;
    t.start();
    REQUIRE(t.w.run_until([&] { return t.plain->n_pushes > 2; }));
    auto drained = t.w.self->request(t.r.supervisor, caf::infinite, drain_begin{});
    t.kill(kind);
    t.w.run();
    bool ok = false;
    drained.receive([&](bool all) { ok = all; }, [](const caf::error&) {});
    CHECK(ok);
    CHECK(t.plain->choices.at(0).n_ends == 1);
    CHECK(t.stopped->choices.at(0).n_ends == 1);
    const auto late = sink();
    t.r.start(t.r.completion("Hi"), late);
    t.w.run();
    CHECK(late->error.status == 503);
  }
}

TEST_CASE("recovery: a request that breaks its ranks every time is ended, and the others are not") {
  troubled t;
  t.r.scripts[0]->fatal_token = t.r.text->words()->encode(" zebra").front();
  const auto bad = sink();
  t.start();
  t.r.start(t.r.completion("One zebra"), bad);
  for (int i = 0; i < 10; ++i) t.w.advance(1s);
  CHECK(bad->error.status == 500);
  CHECK(bad->error.message.find("3 times") != std::string::npos);
  CHECK(t.r.numbers->restarts == 3);
  t.check();
}

TEST_CASE("recovery: ranks that break again and again are given up, and every client is told") {
  troubled t;
  t.start();
  REQUIRE(t.w.run_until([&] { return t.plain->n_pushes > 2; }));
  for (int i = 0; i < 12 && t.r.failure.empty(); ++i) {
    caf::anon_send_exit(find(t.r.who(), "scheduler"), caf::exit_reason::kill);
    t.w.run();
    t.w.advance(5s);
  }
  CHECK(t.r.failure.find("scheduler died more than 5 times") != std::string::npos);
  CHECK(t.r.numbers->now == phase::failed);
  for (const auto& s : {t.plain, t.choices, t.stopped}) CHECK(s->has_ended());
}

TEST_CASE("recovery: without its journal the engine is given up") {
  troubled t;
  t.start();
  REQUIRE(t.w.run_until([&] { return t.plain->n_pushes > 2; }));
  t.kill("journal");
  t.w.run();
  CHECK(t.r.failure.find("journal") != std::string::npos);
  CHECK(t.plain->error.message == "the engine failed");
}

TEST_CASE("restart_policy: the first restart comes at once, later ones with growing pauses, too many not at all") {
  restart_policy p;
  const restart_policy::clock::time_point t0{};
  CHECK(*p.next(t0) == 0ms);
  CHECK(*p.next(t0 + 1s) == 100ms);
  CHECK(*p.next(t0 + 2s) == 200ms);
  CHECK(*p.next(t0 + 3s) == 400ms);
  CHECK(*p.next(t0 + 4s) == 800ms);
  CHECK_FALSE(p.next(t0 + 5s).has_value());
  CHECK(p.next(t0 + 61s).has_value()); // the first has been forgotten
}
