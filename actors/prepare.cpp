// Detached actors that turn requests into token ids, behind one handle. The work is prompt_builder's.
#include "actors/prepare.h"

#include "actors/guard.h"
#include "actors/prompt_builder.h"

#include <caf/all.hpp>

namespace troupe {

namespace {

struct prepare_state {
  static inline const char* name = "prepare";
};
struct desk_state {
  static inline const char* name = "prepare_desk";
  std::vector<prepare_actor> crew; // held here: a child lives as long as its parent holds it
  size_t next = 0;
};

prepare_actor::behavior_type prepare(prepare_actor::stateful_pointer<prepare_state> self,
                                     std::shared_ptr<const prompt_builder> builder) {
  guard(self);
  return {
      [=](const text_question& q) { return builder->answer(q); },
      [=](turn_prepare& p) { return builder->prepare(std::move(p.request)); },
  };
}

// Hands each question to the next of the crew; their answers go straight to who asked.
prepare_actor::behavior_type desk(prepare_actor::stateful_pointer<desk_state> self,
                                  std::shared_ptr<const prompt_builder> builder, int32_t n_threads) {
  guard(self);
  for (int32_t i = 0; i < n_threads; ++i)
    self->state.crew.push_back(self->spawn<caf::detached + caf::linked>(prepare, builder));
  const auto next = [=]() -> const prepare_actor& {
    return self->state.crew[self->state.next++ % self->state.crew.size()];
  };
  return {
      [=](text_question& q) { return self->delegate(next(), std::move(q)); },
      [=](turn_prepare& p) { return self->delegate(next(), std::move(p)); },
  };
}

} // namespace

prepare_actor spawn_prepare(caf::actor_system& system, const prepare_config& config,
                            std::shared_ptr<const text_side> text, int32_t n_threads) {
  // Shared by the crew: it is immutable.
  auto builder = std::make_shared<const prompt_builder>(config, std::move(text));
  if (n_threads <= 0) return system.spawn(prepare, std::move(builder));
  return system.spawn(desk, std::move(builder), n_threads);
}

} // namespace troupe
