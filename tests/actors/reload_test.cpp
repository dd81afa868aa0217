// bugs/ops.md O44 asks that a reload of the model waits for running work. There is no verb that loads another model:
// what loads weights beside streams here is a restart of the ranks, and another model is another start, behind a drain.
#include "tests/actors/world.h"

#include <doctest/doctest.h>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

struct reloading {
  reloading()
      : r(w, scripted_ring::small_limits(), 1, [this](ring_config& c) {
          c.make_rank = [this, make = c.make_rank](int32_t rank) {
            ++n_loads;
            return make(rank);
          };
        }) {
    r.say(" one two three four five six seven eight nine ten");
    r.supervise();
    for (auto& s : streams) r.start(r.completion("Hello"), s);
    REQUIRE(w.run_until(
        [&] { return std::all_of(streams.begin(), streams.end(), [](const auto& s) { return s->n_pushes > 1; }); }));
  }
  static void check_whole(const recording_sink& s) {
    CHECK(s.n_failures == 0);
    REQUIRE(s.choices.size() == 1);
    CHECK(s.choices[0].content == " one two three four five six seven eight nine ten");
    CHECK(s.choices[0].n_ends == 1);
  }

  int n_loads = 0;
  world w;
  scripted_ring r;
  std::array<std::shared_ptr<recording_sink>, 3> streams{sink(), sink(), sink()};
};

} // namespace

TEST_CASE("recovery: O44, ranks that load again cost no stream, new requests wait, and there is one load at a time") {
  for (const bool dies_again : {false, true}) {
    CAPTURE(dies_again);
    reloading t;
    const auto who = t.r.who();
    caf::anon_send_exit(who.rank_actors.front(), caf::exit_reason::kill);
    REQUIRE(t.w.run_until([&] { return t.r.numbers->now == phase::restarting; }));
    t.w.held = "rank"; // the new one, which is told to load
    t.w.run();
    const auto late = sink();
    t.r.start(t.r.completion("Hello"), late);
    t.w.run();
    CHECK(late->n_pushes == 0);
    CHECK(late->n_failures == 0);
    if (dies_again) caf::anon_send_exit(who.kv_cache, caf::exit_reason::kill);
    t.w.run();
    CHECK(t.n_loads == 1);
    t.w.held.clear();
    t.w.advance(1s);
    CHECK(t.n_loads == (dies_again ? 3 : 2)); // one after the other: a group is gone before the next is made
    for (const auto& s : t.streams) reloading::check_whole(*s);
    reloading::check_whole(*late);
    CHECK(t.r.is_idle());
  }
}

TEST_CASE(
    "recovery: O44, streams end on the old state of a server that stops, and what comes then is told to go away") {
  reloading t;
  auto drained = t.w.self->request(t.r.supervisor, caf::infinite, drain_begin{});
  const auto late = sink();
  t.r.start(t.r.completion("Hello"), late);
  t.w.run();
  drained.receive([](bool ok) { CHECK(ok); }, [](const caf::error&) { FAIL("expected an answer"); });
  for (const auto& s : t.streams) reloading::check_whole(*s);
  CHECK(late->error.status == 503);
  CHECK(late->error.retry_after_s > 0);
  CHECK(t.n_loads == 1);
}
