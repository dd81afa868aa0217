// Start-up wiring: spawns, places and stops every actor. main.cpp makes one runtime; net sees it as a `front`.
#pragma once

#include "actors/counters.h"
#include "actors/journal.h"
#include "actors/prepare.h"
#include "actors/settings.h"
#include "model/model.h"

#include <caf/fwd.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

// What the network side needs of a loaded runtime. Copies are cheap; valid until the runtime stops.
struct front {
  settings config;
  model_info info;
  int64_t max_context = 0;
  std::string fingerprint; // system_fingerprint: build, weights and config
  std::shared_ptr<const text_side> text;
  std::shared_ptr<counters> numbers;
  journal_actor journal; // the door to the ring
  prepare_actor prepare;
};

// What every actor system of ours needs before it is made: message types and the pool, whose threads share actors as
// hand_over.h says and not by a policy of CAF's; else as in spec/caf.md section 0. `n_threads`: of the pool; detached
// actors have their own.
void configure(caf::actor_system_config&, int32_t n_threads = 2);

// The tiny model shipped in the tree, found from the binary's own place; throws std::runtime_error naming where it
// looked.
std::string shipped_model();

class runtime {
public:
  // Reads config.json only. Throws std::runtime_error naming file or setting. `failed`: called once, from an actor,
  // when the engine has died and restarts are of no use; open turns are being ended then.
  runtime(caf::actor_system&, settings, std::shared_ptr<counters>, std::function<void(const std::string&)> failed = {});
  ~runtime();
  // Blocks: weights, ranks, warm-up; reports through counters (phase, progress). Throws on what cannot heal.
  void load();
  const front& parts() const; // Precondition: load() returned
  wiring who() const;         // who is who in the ring now; the same precondition
  // No new turns; true when all in flight have ended before the deadline. What is left is then ended with an error
  // event.
  bool drain(std::chrono::seconds deadline);
  void stop();

private:
  void load_all();
  void flush();
  struct impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe
