// What is added while a round is being flushed makes the next round: the loop's other work gets its turn in between.
#include "net/flush_queue.h"

#include "net/outbox.h"

#include <algorithm>
#include <utility>

namespace troupe {

constexpr size_t n_ahead = 2; // streams whose memory is asked for while another is written, for each of two levels

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
  const size_t n = taken_.size();
  for (size_t i = 0; i < std::min(n, 2 * n_ahead); i++) taken_[i]->fetch();
  for (size_t i = 0; i < n; i++) {
    if (i + 2 * n_ahead < n) taken_[i + 2 * n_ahead]->fetch();
    if (i + n_ahead < n) taken_[i + n_ahead]->fetch_wire();
    taken_[i]->flush();
  }
  taken_.clear();
}

} // namespace troupe
