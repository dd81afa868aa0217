// Invariant of outbox: busy_ is true exactly while a flush is posted or a write is running.
#include "net/outbox.h"

#include "net/sse.h"

#include <utility>

namespace troupe {

outbox::outbox(openai_stream stream, outbox_wire wire, size_t limit_bytes, bool openai_errors)
    : stream_(std::move(stream)), wire_(std::move(wire)), limit_(limit_bytes), openai_errors_(openai_errors) {}

bool outbox::take_kick() { return !std::exchange(busy_, true); }

void outbox::kick(bool needed) {
  if (needed) wire_.post([self = shared_from_this()] { self->flush(); });
}

void outbox::open(std::span<const int32_t> prompt_ids) {
  bool needed;
  {
    std::lock_guard lock(mutex_);
    if (closed_ || stage_ != stage::waiting) return;
    stage_ = stage::open;
    stream_.append_open(next_, prompt_ids);
    needed = take_kick();
  }
  kick(needed);
}

turn_sink::state outbox::push(std::span<const turn_delta> deltas) {
  bool needed, full;
  {
    std::lock_guard lock(mutex_);
    if (closed_ || stage_ == stage::ended) return state::closed;
    stage_ = stage::open;
    for (const auto& d : deltas) stream_.append(next_, d);
    if (stream_.finished()) stage_ = stage::ended;
    full = next_.size() > limit_ && stage_ == stage::open;
    was_full_ = was_full_ || full;
    needed = !next_.empty() && take_kick();
  }
  kick(needed);
  return full ? state::full : state::ok;
}

void outbox::fail(const api_error& e) {
  bool needed = false, unseen;
  {
    std::lock_guard lock(mutex_);
    if (closed_ || stage_ == stage::ended) return;
    unseen = stage_ == stage::waiting;
    stage_ = stage::ended;
    closed_ = unseen;
    if (!unseen) {
      openai_stream::append_error(next_, e, openai_errors_);
      needed = take_kick();
    }
  }
  if (unseen)
    wire_.post([self = shared_from_this(), e] { self->wire_.refused(e); });
  else
    kick(needed);
}

void outbox::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  next_.clear();
}

void outbox::ping() {
  bool needed;
  {
    std::lock_guard lock(mutex_);
    if (closed_ || stage_ != stage::open || busy_) return;
    next_ += sse::ping;
    needed = take_kick();
  }
  kick(needed);
}

bool outbox::is_idle() {
  std::lock_guard lock(mutex_);
  return !busy_;
}

void outbox::flush() {
  bool last, resumes, gone;
  {
    std::lock_guard lock(mutex_);
    gone = closed_;
    if (closed_ || next_.empty()) {
      busy_ = false;
      if (!closed_) return; // a quiet stream, or the last write is done and was reported below
    } else {
      cur_.clear();
      cur_.swap(next_);
    }
    last = stage_ == stage::ended;
    resumes = std::exchange(was_full_, false);
  }
  if (gone) return wire_.finished(false);
  if (resumes) wire_.resumed();
  wire_.write(cur_, last, [self = shared_from_this(), last](bool ok) {
    if (!ok) self->close();
    if (ok && last) return self->wire_.finished(true);
    self->flush();
  });
}

collector::collector(openai_answer answer, std::function<void(result)> done)
    : answer_(std::move(answer)), done_(std::move(done)) {}

void collector::open(std::span<const int32_t> prompt_ids) {
  std::lock_guard lock(mutex_);
  answer_.open(prompt_ids);
}

turn_sink::state collector::push(std::span<const turn_delta> deltas) {
  std::function<void(result)> done;
  result r;
  r.failure.status = 0;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return state::closed;
    for (const auto& d : deltas) answer_.add(d);
    if (!answer_.finished()) return state::ok;
    closed_ = true;
    r.body = answer_.body();
    done = std::move(done_);
  }
  done(std::move(r));
  return state::ok;
}

void collector::fail(const api_error& e) {
  std::function<void(result)> done;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
    done = std::move(done_);
  }
  done({{}, e});
}

void collector::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  done_ = nullptr;
}

} // namespace troupe
