// The pool's threads as they share real actors, and a rank's as it carries a step on: who runs where, who is woken, and
// that nothing is left lying.
#include "actors/hand_over.h"
#include "actors/step_carrier.h"

#include <caf/all.hpp>
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>
#include <utility>
#include <vector>

using namespace troupe;

namespace {

constexpr auto long_enough = std::chrono::seconds(20); // for what comes at once or never

class thread_pool {
public:
  using handler = std::function<void(caf::event_based_actor*, int)>;
  explicit thread_pool(size_t n_threads) : config_(n_threads), system_(config_) {}
  // It runs when it gets mail and not before, so that one that has got none yet is not running elsewhere.
  caf::actor spawn(handler f) { return system_.spawn<caf::lazy_init>(behave, std::move(f)); }
  caf::actor spawn_detached(handler f) { return system_.spawn<caf::detached>(behave, std::move(f)); }

private:
  static caf::behavior behave(caf::event_based_actor* self, handler f) {
    return {[self, f = std::move(f)](int n) { f(self, n); }};
  }
  struct config : caf::actor_system_config {
    explicit config(size_t n_threads) {
      use_hand_over(*this);
      set("scheduler.max-threads", n_threads);
    }
  };
  config config_;
  caf::actor_system system_;
};

bool comes(const std::future<void>& f) { return f.wait_for(long_enough) == std::future_status::ready; }

} // namespace

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
