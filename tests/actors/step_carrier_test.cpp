// A rank's thread as it carries a step on: who runs on it and who does not.
#include "actors/step_carrier.h"
#include "tests/actors/handing_pool.h"

#include <doctest/doctest.h>

#include <thread>
#include <vector>

using namespace troupe;

TEST_CASE("step_carrier: a step goes on along its thread, and what else got mail runs in the pool") {
  thread_pool threads(2);
  std::thread::id rank, scheduler, tokens, places, rows, beyond;
  std::promise<void> has_tokens, is_beyond;
  const auto note = [](std::thread::id& where) { where = std::this_thread::get_id(); };
  const auto e = threads.spawn([&](caf::event_based_actor*, int) { note(beyond), is_beyond.set_value(); });
  const auto d = threads.spawn([&](caf::event_based_actor* self, int n) { note(rows), self->send(e, n); });
  const auto c = threads.spawn([&](caf::event_based_actor* self, int n) { note(places), self->send(d, n); });
  const auto b = threads.spawn([&](caf::event_based_actor*, int) { note(tokens), has_tokens.set_value(); });
  const auto a = threads.spawn([&](caf::event_based_actor* self, int n) {
    note(scheduler);
    self->send(b, n);
    self->send(c, n);
  });
  caf::anon_send(threads.spawn_detached([&](caf::event_based_actor* self, int n) {
    note(rank);
    step_carrier carrier(self->system());
    carrier.send(self, a, n);
  }),
                 0);
  REQUIRE(comes(has_tokens.get_future()));
  REQUIRE(comes(is_beyond.get_future()));
  CHECK(scheduler == rank);
  CHECK(places == rank);
  CHECK(rows == rank);
  CHECK(tokens != rank);
  CHECK(beyond != rank); // a ring has three that do not block
}

TEST_CASE("step_carrier: an actor that runs elsewhere takes the message there") {
  thread_pool threads(2);
  std::promise<void> is_busy, is_sent, ended;
  auto was_sent = is_sent.get_future();
  std::vector<std::thread::id> ran;
  const auto a = threads.spawn([&](caf::event_based_actor*, int n) {
    ran.push_back(std::this_thread::get_id());
    if (n == 1) return ended.set_value();
    is_busy.set_value();
    was_sent.wait_for(long_enough);
  });
  caf::anon_send(a, 0);
  REQUIRE(comes(is_busy.get_future()));
  caf::anon_send(threads.spawn_detached([&](caf::event_based_actor* self, int) {
    step_carrier(self->system()).send(self, a, 1);
    is_sent.set_value();
  }),
                 0);
  REQUIRE(comes(ended.get_future()));
  CHECK(ran == std::vector(2, ran[0]));
}
