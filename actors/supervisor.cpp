// Watches the ring and replaces what dies: one actor where that is enough, all ranks together when one of them is lost.
#include "actors/supervisor.h"

#include "actors/guard.h"
#include "actors/restart_policy.h"
#include "storage/check.h"

#include <caf/all.hpp>

#include <set>
#include <unordered_map>

namespace troupe {

namespace {

constexpr auto end_deadline = std::chrono::seconds(30); // for ranks that were told to end

using timed_supervisor = supervisor_actor::extend<caf::reacts_to<due_atom>, caf::reacts_to<end_atom>>;

struct supervisor_state {
  static inline const char* name = "supervisor";
  enum class stage : uint8_t { running, pausing, ending, loading, failed, stopping };
  stage at = stage::running;
  ring_config config;
  ring engine;
  generations now;
  std::shared_ptr<const text_side> text; // immutable, shared by the front's actors
  std::shared_ptr<counters> numbers;
  std::function<void(const std::string&)> failed;
  restart_policy restarts;
  std::unordered_map<caf::actor_id, std::string> names; // of the monitored
  std::set<std::string> dead;                           // what the restart under way replaces
  std::set<caf::actor_id> leaving;                      // ranks and engram_fetches that were told to end
  caf::actor_clock::time_point ends_at{};               // by when they must
  uint64_t attempt = 0;                                 // answers to an older one do not count
  size_t n_loading = 0;
  std::string load_failure;
  struct drain {
    drain_begin what;
    caf::typed_response_promise<bool> answer;
  };
  std::vector<drain> drains;
};
using supervisor_pointer = timed_supervisor::stateful_pointer<supervisor_state>;
using stage = supervisor_state::stage;

template <class handle> void watch(supervisor_pointer self, const handle& who, std::string name) {
  self->monitor(who);
  self->state.names[who.id()] = std::move(name);
}

void watch_group(supervisor_pointer self) {
  const auto& e = self->state.engine;
  for (const auto& r : e.ranks) watch(self, r, "rank");
  for (const auto& f : e.engram_fetches) watch(self, f, "engram_fetch");
}

// A rank that is to end may wait for rows that nobody reads any more.
void stop_waiting(supervisor_state& s) {
  for (const auto& r : s.engine.records) r->close();
}

void fail(supervisor_pointer self, const std::string& why) {
  auto& s = self->state;
  s.at = stage::failed;
  s.numbers->now = phase::failed;
  spdlog::critical("engine: {}", why);
  const drain_begin end{true, "the engine failed"};
  caf::anon_send(s.engine.scheduler, end);
  caf::anon_send(s.engine.fan_out, end); // the scheduler may be the one that died
  for (auto& d : s.drains) d.answer.deliver(false);
  s.drains.clear();
  stop_waiting(s);
  if (s.failed) s.failed(why);
}

// The scheduler first, then fan_out, so that what it was sent has reached the sinks. One that dies meanwhile does not
// answer, and its successor is asked again.
void send_drain(supervisor_pointer self, const drain_begin& d) {
  const auto ignore = [](const caf::error&) {};
  self->request(self->state.engine.scheduler, caf::infinite, d)
      .then(
          [self, d, ignore](bool) {
            self->request(self->state.engine.fan_out, caf::infinite, d)
                .then(
                    [self](bool ok) {
                      for (auto& waiting : std::exchange(self->state.drains, {})) waiting.answer.deliver(ok);
                    },
                    ignore);
          },
          ignore);
}

void set_phase(supervisor_pointer self, phase from, phase to) {
  self->state.numbers->now.compare_exchange_strong(from, to);
}

void finish(supervisor_pointer self) {
  auto& s = self->state;
  const bool is_group = s.dead.count("rank") > 0;
  ++s.now.epoch;
  if (is_group) ++s.now.ranks;
  if (is_group || s.dead.count("kv_cache") || s.dead.count("tier_disk")) ++s.now.cache;
  s.dead.clear();
  s.at = stage::running;
  wire(s.engine, s.now);
  set_phase(self, phase::restarting, phase::ready);
  for (const auto& d : s.drains) send_drain(self, d.what);
  spdlog::warn("engine: restarted, epoch {}", s.now.epoch);
}

void begin_restart(supervisor_pointer self);

void loaded(supervisor_pointer self, uint64_t attempt, const std::string& failure) {
  auto& s = self->state;
  if (attempt != s.attempt || s.at != stage::loading) return;
  if (!failure.empty()) s.load_failure = failure;
  if (--s.n_loading > 0) return;
  if (s.load_failure.empty()) return finish(self);
  spdlog::error("engine: ranks could not be loaded again: {}", s.load_failure);
  s.dead.insert("rank");
  begin_restart(self);
}

template <class handle> void load(supervisor_pointer self, const handle& who) {
  auto& s = self->state;
  ++s.n_loading;
  self->request(who, caf::infinite, load_atom_v)
      .then([self, attempt = s.attempt](bool) { loaded(self, attempt, {}); },
            [self, attempt = s.attempt](const caf::error& e) { loaded(self, attempt, caf::to_string(e)); });
}

// All ranks are gone, or none was to go.
void spawn_dead(supervisor_pointer self) {
  auto& s = self->state;
  auto& e = s.engine;
  auto& system = self->system();
  if (s.dead.count("scheduler")) {
    e.scheduler = spawn_scheduler(system, s.config.limits, s.numbers);
    watch(self, e.scheduler, "scheduler");
  }
  if (s.dead.count("kv_cache")) {
    e.kv_cache = spawn_kv_cache(system, s.config, s.numbers);
    watch(self, e.kv_cache, "kv_cache");
  }
  if (s.dead.count("fan_out")) {
    e.fan_out = spawn_fan_out(system, s.text, s.numbers);
    watch(self, e.fan_out, "fan_out");
  }
  for (size_t r = 0; s.dead.count("tier_disk") && r < e.disks.size(); ++r) {
    if (s.names.count(e.disks[r].id())) continue; // it lives
    spawn_disk(system, s.config, s.numbers, r, e);
    watch(self, e.disks[r], "tier_disk");
  }
  if (!s.dead.count("rank")) return finish(self);
  s.at = stage::loading;
  ++s.attempt;
  s.n_loading = 0;
  s.load_failure.clear();
  try {
    spawn_group(system, s.config, s.numbers, e);
  } catch (const std::exception& thrown) { return fail(self, thrown.what()); }
  watch_group(self);
  for (const auto& r : e.ranks) load(self, r);
  for (const auto& f : e.engram_fetches) load(self, f);
}

void end_group(supervisor_pointer self) {
  auto& s = self->state;
  if (!s.dead.count("rank")) return spawn_dead(self);
  s.at = stage::ending;
  const auto end = [&](const auto& who) {
    if (!s.names.count(who.id())) return; // gone already
    s.leaving.insert(who.id());
    self->send_exit(who, caf::exit_reason::kill);
  };
  for (const auto& r : s.engine.ranks) end(r);
  for (const auto& f : s.engine.engram_fetches) end(f);
  stop_waiting(s);
  if (s.leaving.empty()) return spawn_dead(self);
  s.ends_at = self->clock().now() + end_deadline;
  self->delayed_send(self, end_deadline, end_atom_v);
}

void begin_restart(supervisor_pointer self) {
  auto& s = self->state;
  const auto pause = s.restarts.next(self->clock().now());
  if (!pause) {
    std::string what;
    for (const auto& d : s.dead) what += (what.empty() ? "" : ", ") + d;
    return fail(self, what + " died more than " + std::to_string(restart_policy::max_restarts) + " times in " +
                          std::to_string(restart_policy::window.count()) + " s");
  }
  ++s.numbers->restarts;
  if (s.dead.count("rank")) set_phase(self, phase::ready, phase::restarting);
  s.at = stage::pausing;
  if (*pause == restart_policy::clock::duration::zero()) return end_group(self);
  self->delayed_send(self, *pause, due_atom_v);
}

// One reader of tables: the ring goes on, and the step that it had is read again.
void replace_fetch(supervisor_pointer self, caf::actor_id id) {
  auto& s = self->state;
  auto& e = s.engine;
  for (size_t r = 0; r < e.engram_fetches.size(); ++r) {
    if (e.engram_fetches[r].id() != id) continue;
    spawn_fetch(self->system(), s.config, s.numbers, r, e);
    watch(self, e.engram_fetches[r], "engram_fetch");
    self->send(e.kv_cache, to_wiring(e, s.now)); // it opens its tables with the first step
  }
}

void take_down(supervisor_pointer self, const caf::down_msg& down) {
  auto& s = self->state;
  const auto found = s.names.find(down.source.id());
  if (found == s.names.end()) return;
  const std::string name = found->second;
  s.names.erase(found);
  if (s.at == stage::failed) return;
  if (s.at == stage::stopping) {
    if (s.names.empty()) self->quit(caf::exit_reason::user_shutdown);
    return;
  }
  if (s.leaving.erase(down.source.id()) > 0) {
    if (s.leaving.empty() && s.at == stage::ending) spawn_dead(self);
    return;
  }
  spdlog::error("engine: {} ended: {}", name, caf::to_string(down.reason));
  if (name == "journal") return fail(self, "the journal ended, and with it what turns in flight need to go on");
  if (name == "engram_fetch" && s.at == stage::running) {
    if (s.restarts.next(self->clock().now())) {
      ++s.numbers->restarts;
      return replace_fetch(self, down.source.id());
    }
    return fail(self, "engram_fetch died too often");
  }
  s.dead.insert(name == "engram_fetch" ? "rank" : name);
  if (s.at == stage::loading) s.dead.insert("rank"); // an answer of this attempt may never come
  if (s.at == stage::running || s.at == stage::loading) begin_restart(self);
}

void stop(supervisor_pointer self) {
  auto& s = self->state;
  s.at = stage::stopping;
  for (auto& d : s.drains) d.answer.deliver(false);
  s.drains.clear();
  for (const auto& a : s.engine.all()) self->send_exit(a, caf::exit_reason::user_shutdown);
  stop_waiting(s);
  if (s.names.empty()) self->quit(caf::exit_reason::user_shutdown);
}

timed_supervisor::behavior_type supervisor_behavior(supervisor_pointer self, ring_config config, ring engine,
                                                    std::shared_ptr<const text_side> text,
                                                    std::shared_ptr<counters> numbers,
                                                    std::function<void(const std::string&)> failed) {
  guard(self);
  auto& s = self->state;
  s.config = std::move(config);
  s.engine = std::move(engine);
  s.text = std::move(text);
  s.numbers = std::move(numbers);
  s.failed = std::move(failed);
  watch(self, s.engine.journal, "journal");
  watch(self, s.engine.scheduler, "scheduler");
  watch(self, s.engine.kv_cache, "kv_cache");
  watch(self, s.engine.fan_out, "fan_out");
  for (const auto& d : s.engine.disks) watch(self, d, "tier_disk");
  watch_group(self);
  self->set_down_handler([=](const caf::down_msg& down) { take_down(self, down); });
  self->set_exit_handler([=](const caf::exit_msg& e) {
    if (e.reason == caf::exit_reason::user_shutdown) return stop(self);
    if (e.reason) self->quit(e.reason);
  });
  return {
      [=](const drain_begin& d) -> caf::result<bool> {
        auto& state = self->state;
        if (state.at == stage::failed) return false;
        auto answer = self->make_response_promise<bool>();
        state.drains.push_back({d, answer});
        send_drain(self, d);
        return answer;
      },
      [=](wiring_atom) { return to_wiring(self->state.engine, self->state.now); },
      [=](due_atom) {
        if (self->state.at == stage::pausing) end_group(self);
      },
      [=](end_atom) {
        auto& state = self->state;
        if (state.at == stage::ending && !state.leaving.empty() && self->clock().now() >= state.ends_at)
          fail(self, std::to_string(state.leaving.size()) + " ranks did not end when they were told to");
      },
  };
}

} // namespace

supervisor_actor spawn_supervisor(caf::actor_system& system, ring_config config, ring engine,
                                  std::shared_ptr<const text_side> text, std::shared_ptr<counters> numbers,
                                  std::function<void(const std::string& why)> failed) {
  return system.spawn(supervisor_behavior, std::move(config), std::move(engine), std::move(text), std::move(numbers),
                      std::move(failed));
}

} // namespace troupe
