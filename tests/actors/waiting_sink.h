// A sink for turns that run on real threads.
#pragma once

#include "tests/actors/doubles.h"

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace troupe {

// A recording sink that another thread can wait for.
class waiting_sink : public recording_sink {
public:
  state push(std::span<const turn_delta> deltas) override {
    const std::lock_guard hold(mutex_);
    const auto s = recording_sink::push(deltas);
    changed_.notify_all();
    return s;
  }
  void fail(const api_error& e) override {
    const std::lock_guard hold(mutex_);
    recording_sink::fail(e);
    changed_.notify_all();
  }
  bool wait_end() {
    std::unique_lock hold(mutex_);
    return changed_.wait_for(hold, std::chrono::seconds(60), [&] { return has_ended(); });
  }
  bool wait_push() {
    std::unique_lock hold(mutex_);
    return changed_.wait_for(hold, std::chrono::seconds(60), [&] { return n_pushes > 0 || n_failures > 0; });
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

} // namespace troupe
