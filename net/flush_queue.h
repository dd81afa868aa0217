// Streams with something to write, of the sockets of one loop: any thread adds, the loop takes all of them in one go,
// so that a step of the engine wakes the loop once and not once a stream.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace troupe {

class outbox;

class flush_queue {
public:
  // `post` runs a function on the loop, from any thread. The queue outlives what was posted.
  explicit flush_queue(std::function<void(std::function<void()>)> post) : post_(std::move(post)) {}
  void add(std::shared_ptr<outbox>); // any thread; the outbox is flushed on the loop

private:
  void flush();

  std::function<void(std::function<void()>)> post_;
  std::mutex mutex_; // guards the two below
  std::vector<std::shared_ptr<outbox>> ready_;
  bool is_posted_ = false;
  std::vector<std::shared_ptr<outbox>> taken_; // the loop's
};

} // namespace troupe
