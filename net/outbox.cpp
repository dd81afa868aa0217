// Invariant of outbox: busy_ is true exactly while a flush is on its way or a write is running.
#include "net/outbox.h"

#include "actors/fetch_ahead.h"
#include "net/sse.h"

#include <utility>

namespace troupe {

outbox::outbox(openai_stream stream, outbox_wire wire, size_t limit_bytes, bool openai_errors)
    : wire_(std::make_shared<const outbox_wire>(std::move(wire))), touched_(wire_->touched), limit_(limit_bytes),
      openai_errors_(openai_errors), stream_(std::move(stream)) {}

outbox::shared_wire outbox::wire_to_kick() { return wire_ && !std::exchange(busy_, true) ? wire_ : nullptr; }

void outbox::kick(const shared_wire& wire) {
  if (wire) wire->kick(shared_from_this());
}

void outbox::show_prompt(std::string_view text) {
  std::lock_guard lock(mutex_);
  if (!closed_ && stage_ == stage::waiting) stream_.show_prompt(text);
}

void outbox::open(std::span<const int32_t> prompt_ids) {
  shared_wire wire;
  {
    std::lock_guard lock(mutex_);
    if (closed_ || stage_ != stage::waiting) return;
    stage_ = stage::open;
    stream_.append_open(next_, prompt_ids);
    wire = wire_to_kick();
  }
  kick(wire);
}

turn_sink::state outbox::push(std::span<const turn_delta> deltas) {
  shared_wire wire;
  bool full;
  {
    std::lock_guard lock(mutex_);
    if (closed_ || stage_ == stage::ended) return state::closed;
    stage_ = stage::open;
    for (const auto& d : deltas) stream_.append(next_, d);
    if (stream_.finished()) stage_ = stage::ended;
    full = next_.size() > limit_ && stage_ == stage::open;
    was_full_ = was_full_ || full;
    if (!next_.empty()) wire = wire_to_kick();
  }
  kick(wire);
  return full ? state::full : state::ok;
}

void outbox::fail(const api_error& e) {
  shared_wire wire;
  bool unseen;
  {
    std::lock_guard lock(mutex_);
    if (closed_ || stage_ == stage::ended) return;
    unseen = stage_ == stage::waiting;
    stage_ = stage::ended;
    closed_ = unseen;
    if (unseen) {
      wire = std::move(wire_);
    } else {
      openai_stream::append_error(next_, e, openai_errors_);
      wire = wire_to_kick();
    }
  }
  if (unseen)
    wire->post([wire, e] { wire->refused(e); });
  else
    kick(wire);
}

void outbox::close() {
  shared_wire dropped; // after the lock
  std::lock_guard lock(mutex_);
  closed_ = true;
  next_.clear();
  dropped = std::move(wire_);
}

bool outbox::ping() {
  shared_wire wire;
  {
    std::lock_guard lock(mutex_);
    if (closed_ || stage_ == stage::waiting) return false;
    if (stage_ != stage::open || busy_) return true;
    next_ += sse::ping;
    wire = wire_to_kick();
  }
  kick(wire);
  return true;
}

void outbox::note(std::string_view text) {
  shared_wire wire;
  {
    std::lock_guard lock(mutex_);
    if (closed_ || stage_ != stage::open) return;
    next_.append(sse::comment).append(text).append(sse::end);
    wire = wire_to_kick();
  }
  kick(wire);
}

void outbox::fetch() const {
  const auto *from = reinterpret_cast<const char*>(this), *to = reinterpret_cast<const char*>(&stream_);
  fetch_ahead(from, static_cast<size_t>(to - from));
}
void outbox::fetch_wire() const { fetch_ahead(touched_.data(), touched_.size()); }

void outbox::flush() {
  shared_wire wire;
  bool resumes;
  {
    std::lock_guard lock(mutex_);
    if (!wire_ || next_.empty()) {
      busy_ = false;
      return;
    }
    cur_.clear();
    cur_.swap(next_);
    is_last_ = stage_ == stage::ended;
    resumes = std::exchange(was_full_, false);
    wire = wire_;
  }
  if (resumes) wire->resumed();
  if (const auto state = wire->write(cur_, is_last_); state != write_state::later) written(state == write_state::done);
}

// Other streams come first if there is more.
void outbox::written(bool ok) {
  if (!ok || is_last_) return end(ok);
  shared_wire wire;
  {
    std::lock_guard lock(mutex_);
    busy_ = wire_ && !next_.empty();
    if (busy_) wire = wire_;
  }
  kick(wire);
}

void outbox::end(bool ok) {
  shared_wire wire;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    busy_ = false;
    next_.clear();
    wire = std::move(wire_);
  }
  if (wire) wire->finished(ok);
}

collector::collector(openai_answer answer, std::function<void(result)> done, std::function<void()> opened)
    : answer_(std::move(answer)), done_(std::move(done)), opened_(std::move(opened)) {}

void collector::show_prompt(std::string_view text) {
  std::lock_guard lock(mutex_);
  answer_.show_prompt(text);
}

void collector::open(std::span<const int32_t> prompt_ids) {
  std::lock_guard lock(mutex_);
  answer_.open(prompt_ids);
  if (opened_) opened_();
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
