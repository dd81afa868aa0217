// What is added while a round is being flushed makes the next round: the loop's other work gets its turn in between.
#include "net/flush_queue.h"

#include "net/outbox.h"

#include <utility>

namespace troupe {

void flush_queue::add(std::shared_ptr<outbox> box) {
  {
    std::lock_guard lock(mutex_);
    ready_.push_back(std::move(box));
    if (std::exchange(is_posted_, true)) return;
  }
  post_([this] { flush(); });
}

void flush_queue::flush() {
  {
    std::lock_guard lock(mutex_);
    taken_.swap(ready_);
    is_posted_ = false;
  }
  for (const auto& box : taken_) box->flush();
  taken_.clear();
}

} // namespace troupe
