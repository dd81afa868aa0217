// Where a rank meets the rows of its step.
#include "actors/staging.h"

namespace troupe {

void staging_buffer::resize(int64_t record_bytes, int64_t max_rows) {
  const std::lock_guard hold(mutex_); // the rank may still look at what an older epoch left
  record_bytes_ = record_bytes;
  for (auto& s : slots_) s.resize(static_cast<size_t>(record_bytes * max_rows));
}

int32_t staging_buffer::take_slot() {
  const int32_t taken = std::exchange(next_, (next_ + 1) % n_slots);
  const std::lock_guard hold(mutex_);
  steps_[taken] = {};
  return taken;
}

void staging_buffer::finish(uint64_t epoch, uint64_t step, int32_t slot, std::vector<sequence_failure> failures) {
  {
    const std::lock_guard hold(mutex_);
    steps_[slot] = {epoch, step, std::move(failures)};
  }
  changed_.notify_all();
}

void staging_buffer::begin_epoch(uint64_t epoch) {
  {
    const std::lock_guard hold(mutex_);
    epoch_ = epoch;
  }
  changed_.notify_all();
}

void staging_buffer::close() {
  {
    const std::lock_guard hold(mutex_);
    is_closed_ = true;
  }
  changed_.notify_all();
}

const staging_buffer::read_step* staging_buffer::find(uint64_t epoch, uint64_t step) const {
  for (const auto& s : steps_)
    if (s.epoch == epoch && s.step == step) return &s;
  return nullptr;
}

staged_rows staging_buffer::wait(uint64_t epoch, uint64_t step, int64_t n_rows,
                                 std::chrono::milliseconds deadline) const {
  std::unique_lock hold(mutex_);
  const read_step* found = nullptr;
  changed_.wait_for(hold, deadline, [&] {
    found = find(epoch, step);
    return found != nullptr || epoch_ > epoch || is_closed_;
  });
  const std::string what = "the Engram rows of step " + std::to_string(step);
  if (found != nullptr) {
    const auto& bytes = slots_[found - steps_];
    return {std::span(bytes).first(static_cast<size_t>(n_rows * record_bytes_)), found->failures, {}, false};
  }
  staged_rows none;
  none.is_over = epoch_ > epoch || is_closed_;
  none.missing = what + (is_closed_       ? ": its rank is to end"
                         : epoch_ > epoch ? ": its epoch is over"
                                          : " were not read within " + std::to_string(deadline.count()) + " ms");
  return none;
}

} // namespace troupe
