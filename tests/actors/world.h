// Actors under CAF's testing scheduler: nothing runs until told, time moves by advance() only; every message is traced.
#pragma once

#include "actors/request.h"
#include "actors/ring.h"
#include "actors/supervisor.h"
#include "actors/system.h"
#include "storage/log.h"
#include "tests/actors/doubles.h"

#include <caf/all.hpp>
#include <caf/scheduler/test_coordinator.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace troupe {

struct test_config : caf::actor_system_config {
  test_config() {
    configure(*this, 1);
    module_factories.clear(); // in place of the pool:
    set("scheduler.policy", caf::atom("testing"));
  }
};

class world {
public:
  // Name of the actor and type of the message, counted.
  using trace = std::map<std::pair<std::string, const std::type_info*>, int>;

  world() { spdlog::set_level(spdlog::level::warn); }
  caf::actor_system& system() { return system_; }
  ~world() {
    held.clear();
    for (auto& a : owned_) caf::anon_send_exit(a, caf::exit_reason::user_shutdown);
    run();
  }

  template <class handle> handle own(handle h) {
    owned_.push_back(caf::actor_cast<caf::actor>(h));
    return h;
  }
  // It ends before all that were owned until now.
  template <class handle> handle own_first(handle h) {
    owned_.insert(owned_.begin(), caf::actor_cast<caf::actor>(h));
    return h;
  }
  // One message of one actor. False: nothing is left to run.
  bool run_once() {
    auto& jobs = sched_.jobs;
    const auto next = std::find_if(jobs.begin(), jobs.end(), [this](caf::resumable* j) {
      const auto* actor = dynamic_cast<caf::scheduled_actor*>(j);
      return held.empty() || !actor || held != actor->name();
    });
    if (next == jobs.end()) return false;
    std::rotate(jobs.begin(), next, std::next(next));
    auto& job = sched_.next_job<caf::scheduled_actor>();
    if (auto* element = job.mailbox().peek(); element && element->content().size() > 0) {
      const auto* type = element->content().type(0).second;
      ++seen[{job.name(), type}];
      hash(job.name());
      hash(type ? type->name() : "");
      if (hashes_content) hash(element->content().stringify());
    }
    sched_.run_once();
    return true;
  }
  void run() {
    while (run_once()) {}
  }
  // Runs until `done`; false: everything came to rest before.
  bool run_until(const std::function<bool()>& done) {
    while (!done())
      if (!run_once()) return done();
    return true;
  }
  void advance(std::chrono::microseconds d) {
    sched_.advance_time(d);
    run();
  }
  void advance_only(std::chrono::microseconds d) { sched_.advance_time(d); }
  template <class message> int count(const std::string& actor) const {
    for (const auto& [key, n] : seen)
      if (key.first == actor && key.second && *key.second == typeid(message)) return n;
    return 0;
  }
  template <class answer, class handle, class... parts> caf::expected<answer> ask(const handle& who, parts&&... xs) {
    caf::expected<answer> out{caf::error{caf::sec::runtime_error}};
    auto pending = self->request(who, caf::infinite, std::forward<parts>(xs)...);
    run();
    pending.receive([&](answer& a) { out = std::move(a); }, [&](caf::error& e) { out = std::move(e); });
    return out;
  }

  std::string held; // actors of this name take no message; empty: none
  trace seen;
  bool hashes_content = false;
  uint64_t trace_hash = 0xcbf29ce484222325; // of actor and type of every message, in order; of its fields if wanted

private:
  void hash(std::string_view part) {
    for (const char c : part) trace_hash = (trace_hash ^ static_cast<uint8_t>(c)) * 0x100000001b3; // FNV-1a
  }
  test_config config_;
  caf::actor_system system_{config_};
  caf::scheduler::test_coordinator& sched_ = dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler());
  std::vector<caf::actor> owned_;

public:
  caf::scoped_actor self{system_};
};

// A ring over scripted models, with a prepare actor and all that request needs.
struct scripted_ring {
  explicit scripted_ring(world& w, batch_limits limits = small_limits(), int32_t n_ranks = 1,
                         std::function<void(ring_config&)> change = {})
      : w(w), text(tiny_text()), numbers(std::make_shared<counters>()) {
    limits.eos = 1;
    config.limits = limits;
    config.n_ranks = n_ranks;
    config.detached = false;
    scripts.resize(static_cast<size_t>(n_ranks));
    for (auto& s : scripts) s = std::make_shared<script>();
    config.make_rank = [this](int32_t rank) {
      rank_parts p;
      p.weights = std::make_unique<scripted_model>(scripts[static_cast<size_t>(rank)], text->words()->size());
      return p;
    };
    config.open_tables = [this](int32_t) { return std::make_unique<scripted_tables>(tables); };
    if (change) change(config);
    engine = spawn_ring(w.system(), config, text, numbers);
    for (const auto& a : engine.all()) w.own(a);
    for (const auto& r : engine.ranks) w.ask<bool>(r, load_atom_v);
    for (const auto& e : engine.engram_fetches) w.ask<bool>(e, load_atom_v);
    wire(engine);
    parts.info.vocabulary = text->words()->size();
    parts.info.image_token = 2046;
    parts.max_context = 4096;
    parts.text = text;
    parts.numbers = numbers;
    numbers->now = phase::ready;
    parts.journal = engine.journal;
    parts.prepare = w.own(spawn_prepare(w.system(), {parts.config, parts.info, parts.max_context}, text, 0));
    w.run();
    w.seen.clear();
  }

  static batch_limits small_limits() {
    batch_limits l;
    l.max_running = 4;
    l.max_queue = 4;
    l.chunk_tokens = 16;
    l.n_blocks = 64;
    l.block_tokens = 8;
    return l;
  }
  void say(const std::string& answer) {
    for (auto& s : scripts) s->answer = text->words()->encode(answer);
  }
  // A completions request (no template): `prompt` as text.
  chat_request completion(std::string prompt, int64_t max_tokens = 32, int32_t n = 1) {
    chat_request r;
    r.turn = turn_id{++last_turn};
    r.id = "t" + std::to_string(last_turn);
    r.is_chat = false;
    r.prompts = {std::move(prompt)};
    r.max_tokens = max_tokens;
    r.n = n;
    r.sampling.temperature = 0;
    return r;
  }
  request_actor start(chat_request r, const std::shared_ptr<recording_sink>& sink) {
    return spawn_request(w.system(), parts, std::move(r), sink);
  }
  void supervise() {
    supervisor = w.own_first(
        spawn_supervisor(w.system(), config, engine, text, numbers, [this](const std::string& why) { failure = why; }));
    w.run();
  }
  wiring who() { return *w.ask<wiring>(supervisor, wiring_atom_v); }
  scheduler_status status() {
    return *w.ask<scheduler_status>(supervisor ? caf::actor_cast<scheduler_actor>(who().scheduler) : engine.scheduler,
                                    status_atom_v);
  }
  bool is_idle() {
    const auto s = status();
    return s.n_running == 0 && s.n_waiting == 0 && s.n_blocks_used == 0;
  }
  const script& rank(size_t r = 0) const { return *scripts[r]; }

  world& w;
  std::shared_ptr<const text_side> text;
  std::shared_ptr<counters> numbers;
  std::vector<std::shared_ptr<script>> scripts; // of each rank
  std::shared_ptr<table_script> tables = std::make_shared<table_script>();
  ring_config config; // as the ring was spawned
  ring engine;
  front parts;
  supervisor_actor supervisor; // none unless supervise() was called
  std::string failure;         // what the supervisor gave up with
  uint64_t last_turn = 0;
};

} // namespace troupe
