// The runtime as main uses it: the shipped model on one and two ranks, the null backend, drain and stop. Real threads.
#include "actors/request.h"
#include "actors/supervisor.h"
#include "actors/system.h"
#include "actors/warm_up.h"
#include "gpu/collective.h"
#include "tests/actors/waiting_sink.h"
#include "tests/safetensors_writer.h"

#include <caf/all.hpp>
#include <doctest/doctest.h>

#include <map>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

struct live {
  explicit live(settings s) : engine(system, std::move(s), numbers) { engine.load(); }
  struct config : caf::actor_system_config {
    config() { configure(*this); }
  };
  config values;
  caf::actor_system system{values};
  std::shared_ptr<counters> numbers = std::make_shared<counters>();
  runtime engine;
  uint64_t last_turn = 0;

  std::shared_ptr<waiting_sink> ask(const std::string& text, int64_t max_tokens) {
    chat_request r;
    r.turn = turn_id{++last_turn};
    r.id = "live" + std::to_string(last_turn);
    r.chat.thinking = false;
    r.chat.messages.emplace_back().parts.push_back({text, -1});
    r.sampling.temperature = 0;
    r.max_tokens = max_tokens;
    auto sink = std::make_shared<waiting_sink>();
    spawn_request(system, engine.parts(), std::move(r), sink);
    return sink;
  }
  // Drained and stopped, nobody is left.
  void end() {
    CHECK(engine.drain(10s));
    CHECK(numbers->now == phase::draining);
    engine.stop();
    CHECK(system.registry().running() == 0);
  }
};

settings quiet() {
  settings s;
  s.model = TROUPE_SOURCE_DIR "/etc/models/tiny";
  s.threads = 2;
  s.max_running = 8;
  s.chunk_tokens = 64;
  s.kv_memory_bytes = int64_t{64} << 20;
  return s;
}

} // namespace

TEST_CASE("runtime: the shipped model answers, on one rank and on two" * doctest::test_suite("slow")) {
  for (const int32_t n_ranks : {1, 2}) {
    CAPTURE(n_ranks);
    auto s = quiet();
    s.ranks = n_ranks;
    live l(s);
    CHECK(l.numbers->now == phase::ready);
    CHECK(l.numbers->prompt_tokens == 0); // the warm-up is not traffic
    const auto one = l.ask("What is 17*19? Reply with the integer only.", 20);
    const auto two = l.ask("What is 17*19? Reply with the integer only.", 20);
    REQUIRE(one->wait_end());
    REQUIRE(two->wait_end());
    CHECK(one->error.message == "");
    CHECK(one->choices.at(0).content == "323");
    CHECK(two->choices.at(0).content == "323");
    l.end();
  }
}

TEST_CASE("runtime: the second identical request hits all but its last token, on one rank and on two" *
          doctest::test_suite("slow")) {
  for (const int32_t n_ranks : {1, 2}) {
    CAPTURE(n_ranks);
    auto s = quiet();
    s.ranks = n_ranks;
    live l(s);
    CHECK(l.numbers->cache_queries == 0); // the warm-up is not traffic
    const std::string question = "Repeat these words: one, two, three, four, five, six, seven, eight, nine, ten.";
    std::vector<int32_t> first;
    for (int time = 0; time < 3; ++time) {
      CAPTURE(time);
      const auto out = l.ask(question, 24);
      REQUIRE(out->wait_end());
      CHECK(out->error.message == "");
      if (time == 0) first = out->choices.at(0).ids;
      CHECK(out->choices.at(0).ids == first);
      CHECK(out->usage.cached_tokens == (time == 0 ? out->usage.cached_tokens : out->usage.prompt_tokens - 1));
      CHECK((time > 0 || out->usage.cached_tokens == 0)); // the warm-up's prefix is nobody's
    }
    CHECK(l.numbers->cache_hits == l.numbers->cached_tokens);
    CHECK(l.numbers->snapshots > 0);
    CHECK(l.numbers->blocks_cached > 0);
    CHECK(l.engine.drain(10s));
  }
}

TEST_CASE("runtime: whatever dies under load, clients read what they would have read, on one rank and on two" *
          doctest::test_suite("slow")) {
  for (const int32_t n_ranks : {1, 2}) {
    CAPTURE(n_ranks);
    auto s = quiet();
    s.ranks = n_ranks;
    live l(s);
    const std::vector<std::string> questions{"Tell me a story about a fox.", "Count from one to forty.",
                                             "What is 17*19?", "Write a list of animals."};
    const auto run = [&](const std::string& victim) {
      std::vector<std::shared_ptr<waiting_sink>> sinks;
      for (const auto& q : questions) sinks.push_back(l.ask(q, 150));
      REQUIRE(sinks.front()->wait_push());
      const auto who = l.engine.who();
      for (const auto& [name, handle] :
           std::map<std::string, caf::strong_actor_ptr>{{"scheduler", who.scheduler},
                                                        {"kv_cache", who.kv_cache},
                                                        {"fan_out", who.fan_out},
                                                        {"engram_fetch", who.engram_fetches.back()},
                                                        {"rank", who.rank_actors.back()}})
        if (name == victim) caf::anon_send_exit(handle, caf::exit_reason::kill);
      std::vector<std::string> out;
      for (const auto& sink : sinks) {
        REQUIRE(sink->wait_end());
        CHECK(sink->error.message == "");
        REQUIRE(sink->choices.size() == 1);
        out.push_back(sink->choices[0].content + sink->choices[0].reasoning);
        CHECK(sink->choices[0].ids.size() == static_cast<size_t>(sink->usage.completion_tokens));
      }
      return out;
    };
    const auto undisturbed = run("nobody");
    CHECK(l.numbers->restarts == 0);
    int n_restarts = 0;
    for (const std::string victim : {"scheduler", "kv_cache", "fan_out", "engram_fetch", "rank"}) {
      CAPTURE(victim);
      CHECK(run(victim) == undisturbed);
      CHECK(l.numbers->restarts == ++n_restarts);
    }
    CHECK(l.numbers->now == phase::ready);
    l.end();
  }
}

TEST_CASE("O40: what was on disk hits after a restart of the process, and a dead tier_disk costs nothing visible" *
          doctest::test_suite("slow")) {
  for (const int32_t n_ranks : {1, 2}) {
    CAPTURE(n_ranks);
    const test::temp_folder folder;
    auto s = quiet();
    s.ranks = n_ranks;
    s.disk_cache_dir = folder.path().string();
    s.disk_cache_min_tokens = 20;
    const std::string question = "Repeat these words: one, two, three, four, five, six, seven, eight, nine, ten.";
    std::vector<int32_t> first;
    for (int life = 0; life < 3; ++life) {
      CAPTURE(life);
      live l(s);
      for (int time = 0; time < 2; ++time) {
        const auto out = l.ask(question, 24);
        REQUIRE(out->wait_end());
        CHECK(out->error.message == "");
        if (life == 0 && time == 0) first = out->choices.at(0).ids;
        CHECK(out->choices.at(0).ids == first);
        if (life + time > 0 && life + time < 3) CHECK(out->usage.cached_tokens == out->usage.prompt_tokens - 1);
        if (life == 2 && time == 0) // the second request waits for a disk that is new
          caf::anon_send_exit(l.engine.who().disks.back(), caf::exit_reason::kill);
        else
          CHECK((l.numbers->disk_reads > 0) == (life > 0));
      }
      l.end();
      if (life == 0) CHECK(l.numbers->disk_writes >= 2 * n_ranks);
    }
  }
}

TEST_CASE("runtime: what was cached with a drafter is a miss without one, and the other way round") {
  for (const bool drafts_first : {true, false}) {
    CAPTURE(drafts_first);
    const test::temp_folder folder;
    auto s = quiet();
    s.disk_cache_dir = folder.path().string();
    s.disk_cache_min_tokens = 20;
    std::vector<int32_t> first;
    for (int life = 0; life < 3; ++life) { // the third is as the first
      CAPTURE(life);
      s.spec = (life == 1) != drafts_first ? "dspark" : "none";
      live l(s);
      const auto out = l.ask("Repeat these words: one, two, three, four, five, six, seven, eight, nine, ten.", 24);
      REQUIRE(out->wait_end());
      CHECK(out->error.message == "");
      if (life == 0) first = out->choices.at(0).ids;
      CHECK(out->choices.at(0).ids == first);
      CHECK(out->usage.cached_tokens == (life == 2 ? out->usage.prompt_tokens - 1 : 0));
      l.end();
    }
  }
}

TEST_CASE("runtime: the null backend streams without weights, and a drain past its deadline ends the stream") {
  auto s = quiet();
  s.backend = "null";
  s.null_tokens_per_s = 1000;
  live l(s);
  const auto out = l.ask("Hello", 20);
  REQUIRE(out->wait_end());
  CHECK(out->usage.completion_tokens == 20);
  const auto endless = l.ask("Hello", 10000);
  REQUIRE(endless->wait_push());
  CHECK_FALSE(l.engine.drain(0s));
  REQUIRE(endless->wait_end());
  CHECK(endless->error.message == "server stopping");
  const auto late = l.ask("Hello", 5);
  REQUIRE(late->wait_end());
  CHECK(late->error.status == 503);
}

TEST_CASE("ring: a rank that lacks its rows stops the others before they meet, and the next step runs") {
  struct config : caf::actor_system_config {
    config() { configure(*this); }
  };
  config values;
  caf::actor_system system{values};
  const auto numbers = std::make_shared<counters>();
  const auto said = std::make_shared<script>();
  said->answer = tiny_text()->words()->encode(" fine");
  const std::shared_ptr<table_script> tables[] = {std::make_shared<table_script>(), std::make_shared<table_script>()};
  tables[1]->n_failures = 2; // and the second try
  auto group = make_host_collectives(2, 20s);
  ring_config c;
  c.limits.n_blocks = 64;
  c.limits.block_tokens = 8;
  c.n_ranks = 2;
  c.make_rank = [&](int32_t rank) {
    rank_parts p;
    p.group = std::move(group[static_cast<size_t>(rank)]);
    p.weights = std::make_unique<scripted_model>(rank == 0 ? said : std::make_shared<script>(*said),
                                                 tiny_text()->words()->size());
    return p;
  };
  c.open_tables = [&](int32_t rank) { return std::make_unique<scripted_tables>(tables[rank]); };
  const ring engine = spawn_ring(system, c, tiny_text(), numbers);
  {
    caf::scoped_actor self{system};
    const auto load = [&](const auto& who) {
      self->request(who, 20s, load_atom_v).receive([](bool) {}, [](const caf::error&) { FAIL("not loaded"); });
    };
    for (const auto& r : engine.ranks) load(r);
    for (const auto& e : engine.engram_fetches) load(e);
  }
  wire(engine);
  CHECK_THROWS_WITH_AS(run_warm_up(engine, {{5, 6}}, 20s), doctest::Contains("rank 1 lacks"), std::runtime_error);
  run_warm_up(engine, {{5, 6}}, 20s);
  for (const auto& a : engine.all()) caf::anon_send_exit(a, caf::exit_reason::user_shutdown);
}

TEST_CASE("runtime: what cannot work is refused by name") {
  struct config : caf::actor_system_config {
    config() { configure(*this); }
  };
  config values;
  caf::actor_system system{values};
  const auto numbers = std::make_shared<counters>();
  auto s = quiet();
  s.model = "/nowhere";
  CHECK_THROWS_AS(runtime(system, s, numbers), std::runtime_error);
  s = quiet();
  s.kv_memory_bytes = 1;
  runtime r(system, s, numbers);
  CHECK_THROWS_WITH_AS(r.load(), doctest::Contains("kv_memory_bytes"), std::runtime_error);
  s = quiet();
  CHECK(shipped_model().find("etc/models/tiny") != std::string::npos);
}
