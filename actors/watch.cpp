// The death of a ring actor, made known.
#include "actors/watch.h"

#include "actors/guard.h"

#include <caf/all.hpp>

namespace troupe {

namespace {

struct watch_state {
  static inline const char* name = "watch";
};

caf::behavior behave(caf::stateful_actor<watch_state>* self, ring watched, std::shared_ptr<counters> numbers) {
  guard(self);
  for (const auto& a : watched.all()) self->monitor(a);
  self->set_down_handler([=](const caf::down_msg& down) {
    if (down.reason == caf::exit_reason::user_shutdown) return;
    spdlog::error("engine: actor {} ended: {}", down.source.id(), caf::to_string(down.reason));
    numbers->now = phase::failed;
    const drain_begin end{true, "the engine failed"};
    self->send(watched.scheduler, end);
    self->send(watched.fan_out, end); // the scheduler may be the one that died
  });
  return {[](bool) {}}; // the answers
}

} // namespace

caf::actor spawn_watch(caf::actor_system& system, const ring& watched, std::shared_ptr<counters> numbers) {
  return system.spawn(behave, watched, std::move(numbers));
}

} // namespace troupe
