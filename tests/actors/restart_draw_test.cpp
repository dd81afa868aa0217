// Seeds and penalties across a restart, over the shipped model: what was drawn before it and what is drawn after it are
// one sequence, token for token and log-probability for log-probability.
#include "tests/actors/tiny_ring.h"

using namespace troupe;

namespace {

std::vector<chat_request> drawn_turns() {
  std::vector<chat_request> all;
  for (const auto how : {draw::seeded, draw::penalised}) {
    auto r = tiny_completion(tiny_words(40, 3 + static_cast<int>(all.size())), 48, how);
    r.sampling.seed = 7 + all.size();
    all.push_back(r);
  }
  all.back().n = 2; // its choices draw numbers of their own
  all.push_back(all.front());
  all.back().sampling.min_tokens = 40;
  all.back().sampling.ignore_eos = false;
  all.back().sampling.repetition_penalty = 1.2F;
  all.back().sampling.top_p = 0.9F;
  all.back().sampling.top_k = 40;
  return all;
}

void check_drawn(const tiny_options& o) {
  const auto turns = drawn_turns();
  std::vector<std::map<int32_t, std::vector<int32_t>>> wanted;
  for (const std::string kind : {"nobody", "scheduler", "kv_cache", "fan_out", "engram_fetch", "rank"})
    for (const size_t at : {size_t{3}, size_t{20}}) {
      CAPTURE(kind);
      CAPTURE(at);
      tiny_ring t(o);
      t.r.supervise();
      const auto w = t.r.who();
      std::vector<std::shared_ptr<exact_sink>> sinks;
      for (const auto& turn : turns) sinks.push_back(t.start(turn));
      const auto n_said = [&](const auto& s) { return s->choices.empty() ? 0 : s->choices[0].ids.size(); };
      REQUIRE(t.w.run_until([&] { return n_said(sinks[0]) >= at && n_said(sinks[1]) >= at; }));
      CHECK(n_said(sinks[1]) < 48);
      const std::map<std::string, caf::strong_actor_ptr> victims{{"scheduler", w.scheduler},
                                                                 {"kv_cache", w.kv_cache},
                                                                 {"fan_out", w.fan_out},
                                                                 {"engram_fetch", w.engram_fetches.back()},
                                                                 {"rank", w.rank_actors.back()}};
      if (victims.count(kind)) caf::anon_send_exit(victims.at(kind), caf::exit_reason::kill);
      t.w.run();
      CHECK(t.r.numbers->restarts == (victims.count(kind) ? 1 : 0));
      for (size_t i = 0; i < sinks.size(); ++i) {
        CAPTURE(i);
        CHECK(sinks[i]->error.message == "");
        CHECK(sinks[i]->has_ended());
        if (wanted.size() == i) wanted.push_back(sinks[i]->said);
        CHECK(sinks[i]->said == wanted[i]);
      }
      CHECK(t.r.is_idle());
    }
  CHECK(wanted[1].at(0) != wanted[1].at(1));
  CHECK(wanted[0].at(0) != wanted[2].at(0));
}

} // namespace

TEST_CASE("restart: seeded and penalised turns draw on as if nothing had died" * doctest::test_suite("slow")) {
  SUBCASE("without drafts") { check_drawn({}); }
  SUBCASE("with drafts") { check_drawn({.n_drafts = 5}); }
  SUBCASE("without the prefix cache") { check_drawn({.snapshot_bytes = 0}); }
}
