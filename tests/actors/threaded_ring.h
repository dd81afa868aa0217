// A ring over scripted models as it is served: ranks and table readers on threads of their own, a supervisor above.
#pragma once

#include "actors/request.h"
#include "actors/ring.h"
#include "actors/supervisor.h"
#include "actors/system.h"
#include "gpu/collective.h"
#include "tests/actors/waiting_sink.h"

#include <caf/all.hpp>
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace troupe {

class threaded_ring {
public:
  using make_model = std::function<std::unique_ptr<model>(int32_t rank)>;
  using make_tables = std::function<std::unique_ptr<table_reader>(int32_t rank)>;

  threaded_ring(int32_t n_ranks, make_model weights, make_tables tables,
                std::chrono::milliseconds rows_deadline = troupe::rows_deadline) {
    config.limits.max_running = 4;
    config.limits.n_blocks = 64;
    config.limits.block_tokens = 8;
    config.n_ranks = n_ranks;
    config.rows_deadline = rows_deadline;
    config.begin_group = [this] {
      if (config.n_ranks > 1) group_ = make_host_collectives(config.n_ranks, std::chrono::seconds(20));
    };
    config.make_rank = [this, weights = std::move(weights)](int32_t rank) {
      rank_parts p;
      if (config.n_ranks > 1) p.group = std::move(group_[static_cast<size_t>(rank)]);
      p.weights = weights(rank);
      return p;
    };
    config.open_tables = std::move(tables);
    engine = spawn_ring(system, config, tiny_text(), numbers);
    caf::scoped_actor self{system};
    const auto load = [&](const auto& who) {
      self->request(who, caf::infinite, load_atom_v)
          .receive([](bool) {}, [](const caf::error&) { FAIL("not loaded"); });
    };
    for (const auto& r : engine.ranks) load(r);
    for (const auto& e : engine.engram_fetches) load(e);
    wire(engine);
    supervisor = spawn_supervisor(system, config, engine, tiny_text(), numbers, {});
    parts.info.vocabulary = tiny_text()->words()->size();
    parts.max_context = 256;
    parts.text = tiny_text();
    parts.numbers = numbers;
    parts.journal = engine.journal;
    parts.prepare = spawn_prepare(system, {parts.config, parts.info, parts.max_context}, tiny_text(), 0, false);
    numbers->now = phase::ready;
  }
  ~threaded_ring() {
    caf::anon_send_exit(supervisor, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(parts.prepare, caf::exit_reason::user_shutdown);
  }

  // Until so many actors were started again; false: not within 20 s.
  bool await_restarts(int64_t n) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (numbers->restarts < n && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    return numbers->restarts >= n;
  }

  std::shared_ptr<waiting_sink> ask(const std::string& prompt, int64_t max_tokens = 32) {
    chat_request r;
    r.turn = turn_id{++last_turn_};
    r.id = "t" + std::to_string(last_turn_);
    r.is_chat = false;
    r.prompts = {prompt};
    r.max_tokens = max_tokens;
    r.sampling.temperature = 0;
    auto sink = std::make_shared<waiting_sink>();
    spawn_request(system, parts, std::move(r), sink);
    return sink;
  }

private:
  struct actor_config : caf::actor_system_config {
    actor_config() { configure(*this); }
  };
  actor_config values_;
  std::vector<std::unique_ptr<collective>> group_;
  uint64_t last_turn_ = 0;

public:
  std::shared_ptr<counters> numbers = std::make_shared<counters>();
  ring_config config;
  front parts;
  caf::actor_system system{values_}; // ends before what its actors use
  ring engine;
  supervisor_actor supervisor;
};

} // namespace troupe
