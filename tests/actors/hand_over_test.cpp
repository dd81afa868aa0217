// The pool's threads as they share real actors: who runs where, who is woken, and that nothing is left lying.
#include "tests/actors/handing_pool.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>
#include <utility>
#include <vector>

using namespace troupe;

TEST_CASE("hand_over: an actor that gets mail from another runs next on the same thread") {
  thread_pool threads(4);
  for (int round = 0; round < 100; ++round) {
    std::thread::id first, second;
    std::promise<void> done;
    const auto b = threads.spawn([&](caf::event_based_actor*, int) {
      second = std::this_thread::get_id();
      done.set_value();
    });
    const auto a = threads.spawn([&, b](caf::event_based_actor* self, int n) {
      first = std::this_thread::get_id();
      self->send(b, n);
    });
    caf::anon_send(a, round);
    REQUIRE(comes(done.get_future()));
    CHECK(first == second);
  }
}

TEST_CASE("hand_over: the newest mail runs first, so that a step goes on before its tokens are read") {
  thread_pool threads(1);
  std::vector<int> order;
  std::promise<void> done;
  const auto note = [&](caf::event_based_actor*, int n) {
    order.push_back(n);
    if (order.size() == 2) done.set_value();
  };
  const auto b = threads.spawn(note), c = threads.spawn(note);
  caf::anon_send(threads.spawn([&](caf::event_based_actor* self, int) {
    self->send(b, 2);
    self->send(c, 1);
  }),
                 0);
  REQUIRE(comes(done.get_future()));
  CHECK(order == std::vector{1, 2});
}

TEST_CASE("hand_over: mail from outside wakes a thread while another is busy") {
  thread_pool threads(2);
  std::promise<void> begun, ran, ended;
  auto was_run = ran.get_future();
  bool in_time = false;
  caf::anon_send(threads.spawn([&](caf::event_based_actor*, int) {
    begun.set_value();
    in_time = comes(was_run);
    ended.set_value();
  }),
                 0);
  REQUIRE(comes(begun.get_future()));
  caf::anon_send(threads.spawn([&](caf::event_based_actor*, int) { ran.set_value(); }), 0);
  REQUIRE(comes(ended.get_future()));
  CHECK(in_time);
}

TEST_CASE("hand_over: two that wait behind a busy actor wake another thread") {
  thread_pool threads(2);
  std::promise<void> ran, ended;
  auto was_run = ran.get_future();
  bool in_time = false;
  const auto b = threads.spawn([&](caf::event_based_actor*, int) { ran.set_value(); });
  const auto quiet = [](caf::event_based_actor*, int) {};
  const auto c = threads.spawn(quiet), d = threads.spawn(quiet);
  caf::anon_send(threads.spawn([&, b, c, d](caf::event_based_actor* self, int n) {
    self->send(b, n);
    self->send(c, n);
    self->send(d, n); // of this thread, when it is free
    in_time = comes(was_run);
    ended.set_value();
  }),
                 0);
  REQUIRE(comes(ended.get_future()));
  CHECK(in_time);
}

TEST_CASE("hand_over: two actors that write to each other without end leave room for others") {
  thread_pool threads(1);
  std::atomic<bool> is_over{false};
  std::promise<void> ran, stopped;
  caf::actor other;
  const auto one =
      threads.spawn([&](caf::event_based_actor* self, int n) { is_over ? stopped.set_value() : self->send(other, n); });
  other = threads.spawn([one](caf::event_based_actor* self, int n) { self->send(one, n); });
  caf::anon_send(one, 0);
  caf::anon_send(threads.spawn([&](caf::event_based_actor*, int) { ran.set_value(); }), 0);
  const bool came = comes(ran.get_future());
  is_over = true;
  REQUIRE(comes(stopped.get_future()));
  CHECK(came);
}

TEST_CASE("hand_over: nothing is lost among many actors, threads and senders from outside") {
  constexpr int n_actors = 40, n_senders = 3, n_each = 300, n_hops = 7;
  std::atomic<int> n_left{n_senders * n_each};
  std::promise<void> done;
  {
    thread_pool threads(4);
    std::vector<caf::actor> actors(n_actors);
    for (int i = 0; i < n_actors; ++i)
      actors[static_cast<size_t>(i)] = threads.spawn([&, i](caf::event_based_actor* self, int hops) {
        if (hops > 0)
          self->send(actors[static_cast<size_t>((i * 17 + hops) % n_actors)], hops - 1);
        else if (--n_left == 0)
          done.set_value();
      });
    std::vector<std::thread> senders;
    for (int s = 0; s < n_senders; ++s)
      senders.emplace_back([&, s] {
        for (int i = 0; i < n_each; ++i) caf::anon_send(actors[static_cast<size_t>((i + s) % n_actors)], n_hops);
      });
    for (auto& s : senders) s.join();
    CHECK(comes(done.get_future()));
  }
  CHECK(n_left == 0);
}
