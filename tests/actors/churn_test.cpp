// Clients that come, leave, stall and finish at every possible message: each turn ends once and nothing is left.
#include "actors/request.h"
#include "tests/actors/world.h"

#include <doctest/doctest.h>

#include <random>

using namespace troupe;

namespace {

struct client {
  request_actor actor;
  std::shared_ptr<recording_sink> sink = std::make_shared<recording_sink>();
  turn_id turn{};
  bool has_left = false;
};

// `with_cache`: few snapshots and blocks, so that the prefix cache evicts all the time.
void churn(uint64_t seed, bool with_cache) {
  world w;
  scripted_ring r(w, scripted_ring::small_limits(), 1, [&](ring_config& c) {
    if (!with_cache) return;
    c.prefix.snapshot_bytes = 1;
    c.prefix.snapshot_memory_bytes = static_cast<int64_t>(seed % 7) + 1;
    c.prefix.snapshot_interval = static_cast<int64_t>(seed % 3) * 8;
    c.prefix.snapshot_slack = 1;
  });
  r.say(" some words that go on for a while STOP and on");
  std::mt19937_64 random(seed);
  const auto one_in = [&](uint64_t n) { return random() % n == 0; };
  std::vector<client> clients;
  const size_t n_clients = 60;
  const auto any = [&]() -> client& { return clients[random() % clients.size()]; };
  for (int i = 0; i < 200000 && (clients.size() < n_clients || i < 5000); ++i) {
    if (clients.size() < n_clients && one_in(20)) {
      auto& c = clients.emplace_back();
      std::string prompt = "p";
      for (auto k = random() % 40; k > 0; --k) prompt += " word";
      auto request =
          r.completion(prompt, 1 + static_cast<int64_t>(random() % 25), 1 + static_cast<int32_t>(random() % 3));
      if (one_in(3)) request.stop = {"STOP"};
      request.priority = one_in(3) ? 5 : 0;
      c.turn = request.turn;
      c.actor = r.start(std::move(request), c.sink);
    }
    if (!clients.empty() && one_in(30)) {
      auto& c = any();
      c.has_left = true;
      caf::anon_send(c.actor, client_gone{c.turn});
    }
    if (!clients.empty() && one_in(40)) {
      auto& state = any().sink->next_state;
      if (state == turn_sink::state::ok) state = turn_sink::state::full; // a closed one stays closed
    }
    if (!clients.empty() && one_in(60)) any().sink->next_state = turn_sink::state::closed;
    if (one_in(200)) r.tables->n_failures = 1;
    if (!clients.empty() && one_in(10)) {
      auto& c = any();
      if (c.sink->next_state == turn_sink::state::full) c.sink->next_state = turn_sink::state::ok;
      caf::anon_send(r.engine.journal, stream_resumed{c.turn});
    }
    w.run_once();
  }
  for (auto& c : clients) {
    if (c.sink->next_state == turn_sink::state::full) c.sink->next_state = turn_sink::state::ok;
    caf::anon_send(r.engine.journal, stream_resumed{c.turn});
  }
  w.run();
  int64_t n_refused = 0;
  for (const auto& c : clients) {
    CHECK(c.sink->n_opens <= 1);
    CHECK(c.sink->n_failures <= 1);
    for (const auto& choice : c.sink->choices) CHECK(choice.n_ends <= 1);
    const bool was_closed = c.sink->next_state == turn_sink::state::closed;
    CHECK((c.sink->has_ended() || c.has_left || was_closed));
    n_refused += c.sink->n_opens == 0 && c.sink->n_failures == 1 && c.sink->error.status == 429;
  }
  const auto& n = *r.numbers;
  CHECK(n.refused >= n_refused); // a client that left while the refusal was on its way counts as gone
  CHECK(n.ended_stop + n.ended_length + n.ended_abort + n.ended_error + n_refused ==
        static_cast<int64_t>(clients.size()));
  CHECK(r.is_idle());
  CHECK(n.running == 0);
  CHECK(n.paused == 0);
}

} // namespace

TEST_CASE("churn: every turn ends once, whatever its client does and whenever") {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    churn(seed, false);
  }
}

TEST_CASE("churn: the same with a prefix cache that is always full") {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    churn(seed, true);
  }
}
