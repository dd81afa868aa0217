// A limit on waiting, and ends that cross: cancelling at the last step, and a cancel that may not overtake its turn.
#include "actors/request.h"
#include "tests/actors/world.h"

#include <doctest/doctest.h>

#include <random>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

batch_limits waiting_limits(int32_t max_wait_s) {
  auto l = scripted_ring::small_limits();
  l.max_running = 1;
  l.max_wait_s = max_wait_s;
  return l;
}

} // namespace

TEST_CASE("scheduler: a turn that waits longer than max_queue_wait gets 429 with its position, and its stream never "
          "opens") {
  world w;
  scripted_ring r(w, waiting_limits(30));
  r.say(" some words");
  const auto first = sink(), second = sink(), third = sink();
  first->next_state = turn_sink::state::full; // holds its slot
  r.start(r.completion("a"), first);
  w.run();
  CHECK(first->n_opens == 1); // it runs, so it is open
  r.start(r.completion("b"), second);
  r.start(r.completion("c"), third);
  w.run();
  w.advance(29s);
  CHECK(second->n_failures == 0);
  w.advance(2s);
  CHECK(second->n_opens == 0);
  CHECK(second->error.status == 429);
  CHECK(second->error.queue_position == 1);
  CHECK(third->error.queue_position == 2);
  CHECK(second->error.retry_after_s >= 30); // the one that runs has run so long
  CHECK(second->error.message.find("has waited 30 s") != std::string::npos);
  CHECK(r.numbers->refused == 2);
  CHECK(r.numbers->ended_refused == 2);
  first->next_state = turn_sink::state::ok;
  caf::anon_send(r.engine.journal, stream_resumed{turn_id{1}});
  w.run();
  CHECK(first->has_ended());
  CHECK(r.is_idle());
}

TEST_CASE("scheduler: with a limit on waiting a turn that starts in time opens once and runs as ever") {
  world w;
  scripted_ring r(w, waiting_limits(30));
  r.say(" some words");
  std::vector<std::shared_ptr<recording_sink>> all;
  for (int i = 0; i < 3; ++i) r.start(r.completion("a"), all.emplace_back(sink()));
  w.run();
  for (const auto& s : all) {
    CHECK(s->n_opens == 1);
    CHECK(s->choices.at(0).content == " some words");
  }
  w.advance(60s); // the last look finds nobody, and none follows it
  const auto n_looks = [&] { return w.seen[{"scheduler", nullptr}]; }; // an atom has no type of its own
  const int n = n_looks();
  CHECK(n == 1);
  w.advance(600s);
  CHECK(n_looks() == n);
  CHECK(r.is_idle());
}

TEST_CASE("scheduler: a cancel that is sent at once never overtakes the turn it ends") {
  for (int n_before = 0; n_before < 60; ++n_before) {
    CAPTURE(n_before);
    world w;
    scripted_ring r(w);
    r.say(" some words that go on");
    const auto out = sink();
    const auto request = r.completion("a");
    const auto turn = request.turn;
    const auto actor = r.start(request, out);
    for (int i = 0; i < n_before; ++i) w.run_once();
    caf::anon_send<caf::message_priority::high>(actor, client_gone{turn});
    w.run();
    CHECK(r.is_idle());
    CHECK(r.numbers->turns == 1);
    CHECK(r.numbers->ended_abort + r.numbers->ended_stop == 1);
  }
}

TEST_CASE("request: O23, a client that leaves at the step in which its turn ends, 10,000 times: one end each") {
  world w;
  scripted_ring r(w);
  r.say(" a b c");
  const int n_messages = [&] { // of one whole turn
    int n = 0;
    r.start(r.completion("p"), sink());
    while (w.run_once()) ++n;
    return n;
  }();
  std::mt19937_64 random(23);
  for (int i = 0; i < 10000; ++i) {
    auto request = r.completion("p");
    const auto turn = request.turn;
    const auto actor = r.start(std::move(request), sink());
    const int n = n_messages - 12 + static_cast<int>(random() % 14);
    for (int k = 0; k < n; ++k) w.run_once();
    caf::anon_send<caf::message_priority::high>(actor, client_gone{turn});
    w.run();
  }
  const auto& n = *r.numbers;
  CHECK(n.turns == 10001);
  CHECK(n.ended_stop + n.ended_abort == 10001);
  CHECK(n.ended_abort > 1000);
  CHECK(n.ended_stop > 1000);
  CHECK(r.is_idle());
}
