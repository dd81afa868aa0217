// Start-up wiring: spawns, places and stops every actor. main.cpp makes one runtime; net sees it as a `front`.
#pragma once

#include "actors/counters.h"
#include "actors/fan_out.h"
#include "actors/prepare.h"
#include "actors/rank.h"
#include "actors/scheduler.h"
#include "actors/settings.h"
#include "model/model.h"

#include <caf/fwd.hpp>

#include <chrono>
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
  scheduler_actor scheduler;
  fan_out_actor fan_out;
  prepare_actor prepare;
  std::vector<rank_actor> ranks; // image_piece goes to each
};

// What every actor system of ours needs before it is made: message types and the scheduler of spec/caf.md section 0.
// `n_threads`: of the pool; detached actors have their own.
void configure(caf::actor_system_config&, int32_t n_threads = 2);

// The tiny model shipped in the tree, found from the binary's own place; throws std::runtime_error naming where it
// looked.
std::string shipped_model();

class runtime {
public:
  // Reads config.json only. Throws std::runtime_error naming file or setting.
  runtime(caf::actor_system&, settings, std::shared_ptr<counters>);
  ~runtime();
  // Blocks: weights, ranks, warm-up; reports through counters (phase, progress). Throws on what cannot heal.
  void load();
  const front& parts() const; // Precondition: load() returned
  // No new turns; true when all in flight have ended before the deadline. What is left is then ended with an error
  // event.
  bool drain(std::chrono::seconds deadline);
  void stop();

private:
  void load_all();
  struct impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe
