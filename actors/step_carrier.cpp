// The scheduler sends the plan after the tokens, so fan_out is left to the pool and the plan is carried on.
#include "actors/step_carrier.h"

#include <caf/actor_system.hpp>
#include <caf/resumable.hpp>
#include <caf/scheduler/abstract_coordinator.hpp>

namespace troupe {

namespace {

constexpr int n_carried = 3;          // scheduler, kv_cache, engram_fetch
constexpr size_t n_messages_each = 2; // what is above is the pool's: the plan waits behind it

} // namespace

void step_carrier::leave(caf::resumable* r) {
  if (r) system().scheduler().enqueue(r);
}

void step_carrier::exec_later(caf::resumable* r) { leave(std::exchange(next_, r)); }

void step_carrier::run() {
  for (int n = 0; next_ && n < n_carried; ++n) {
    auto* const r = std::exchange(next_, nullptr);
    if (r->resume(this, n_messages_each) == caf::resumable::resume_later)
      leave(r);
    else
      caf::intrusive_ptr_release(r);
  }
  leave(std::exchange(next_, nullptr));
}

} // namespace troupe
