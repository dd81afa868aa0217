// Clients that leave: the news overtakes results of steps, and an admission that it overtakes is not let in.
#include "actors/request.h"
#include "tests/actors/world.h"

#include <doctest/doctest.h>

using namespace troupe;

namespace {

struct left_client {
  left_client() { r.say(" one two three four five six seven eight nine ten"); }
  size_t n_steps() const { return r.rank().steps.size(); }
  void leave(const request_actor& request) {
    caf::anon_send(request, client_gone{turn_id{r.last_turn}});
    w.run();
  }
  // The scheduler works through what waits for it: nothing of the turn runs or stays, and another one is answered.
  void check_left(size_t n_steps_before) {
    w.held.clear();
    w.run();
    CHECK(n_steps() == n_steps_before);
    CHECK(r.is_idle());
    CHECK(r.numbers->ended_abort == 1);
    const auto next = std::make_shared<recording_sink>();
    r.start(r.completion("Next"), next);
    w.run();
    REQUIRE(next->choices.size() == 1);
    CHECK(next->choices[0].n_ends == 1);
    CHECK(r.is_idle());
  }

  world w;
  scripted_ring r{w};
  std::shared_ptr<recording_sink> sink = std::make_shared<recording_sink>();
};

} // namespace

TEST_CASE("O22: a client that leaves while a step runs has no row in the next one, though the step's result is there") {
  left_client c;
  const auto request = c.r.start(c.r.completion("Hello"), c.sink);
  REQUIRE(c.w.run_until([&] { return c.sink->n_pushes > 2; }));
  c.w.held = "scheduler";
  c.w.run(); // the result waits
  const auto n_steps = c.n_steps();
  c.leave(request); // behind it
  c.check_left(n_steps);
}

TEST_CASE("scheduler: an admission that its client's leave overtakes is not let in, and nothing of it stays") {
  left_client c;
  c.w.held = "scheduler";
  const auto request = c.r.start(c.r.completion("Hello"), c.sink);
  c.w.run(); // admitted, as far as the journal knows
  c.leave(request);
  c.check_left(0);
  CHECK(c.sink->n_pushes == 0);
}

TEST_CASE(
    "scheduler: a turn that is admitted again after a restart is not let in when its client's leave overtakes that") {
  left_client c;
  c.r.supervise();
  const auto first = c.r.who();
  const auto request = c.r.start(c.r.completion("Hello"), c.sink);
  REQUIRE(c.w.run_until([&] { return c.sink->n_pushes > 2; }));
  caf::anon_send_exit(first.fan_out, caf::exit_reason::kill);
  c.w.held = "scheduler";
  c.w.run(); // a wiring and the admission wait
  REQUIRE(c.w.count<turn_replayed>("fan_out") == 1);
  const auto n_steps = c.n_steps();
  c.leave(request);
  c.check_left(n_steps);
}
