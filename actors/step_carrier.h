// Brings a step that a rank has computed to the next one without waking a thread.
#pragma once

#include <caf/execution_unit.hpp>
#include <caf/fwd.hpp>

#include <utility>

namespace troupe {

// Of one actor with a thread of its own, which alone uses it. What a message sets off runs on that thread, three actors
// at most: each time the one that got mail last, which in the ring is the next of the step, and where no step follows
// the one that tells of the end. All else that gets mail on the way is the pool's.
class step_carrier final : public caf::execution_unit {
public:
  explicit step_carrier(caf::actor_system& system) : caf::execution_unit(&system) {}
  // Called in a handler of `self`; mail that comes to it meanwhile waits for the handler's end, as ever.
  template <class Self, class To, class Message> void send(Self self, const To& to, Message&& what) {
    auto* const own = self->context();
    self->context(this);
    self->send(to, std::forward<Message>(what));
    self->context(own);
    run();
  }
  void exec_later(caf::resumable*) override;

private:
  void run();
  void leave(caf::resumable*); // to the pool

  caf::resumable* next_ = nullptr; // the newest that got mail
};

} // namespace troupe
