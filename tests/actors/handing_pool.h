// Real threads under the pool's own policy, for tests of who runs where.
#pragma once

#include "actors/hand_over.h"

#include <caf/all.hpp>

#include <chrono>
#include <functional>
#include <future>
#include <utility>

namespace troupe {

inline constexpr auto long_enough = std::chrono::seconds(20); // for what comes at once or never

class thread_pool {
public:
  using handler = std::function<void(caf::event_based_actor*, int)>;
  explicit thread_pool(size_t n_threads) : config_(n_threads), system_(config_) {}
  // It runs when it gets mail and not before, so that one that has got none yet is not running elsewhere.
  caf::actor spawn(handler f) { return system_.spawn<caf::lazy_init>(behave, std::move(f)); }
  caf::actor spawn_detached(handler f) { return system_.spawn<caf::detached>(behave, std::move(f)); }

private:
  static caf::behavior behave(caf::event_based_actor* self, handler f) {
    return {[self, f = std::move(f)](int n) { f(self, n); }};
  }
  struct config : caf::actor_system_config {
    explicit config(size_t n_threads) {
      use_hand_over(*this);
      set("scheduler.max-threads", n_threads);
    }
  };
  config config_;
  caf::actor_system system_;
};

inline bool comes(const std::future<void>& f) { return f.wait_for(long_enough) == std::future_status::ready; }

} // namespace troupe
