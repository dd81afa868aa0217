// Pieces of a batch go to a thread and come back in its memory; one that does not come back keeps both.
#include "storage/patient_reader.h"

#include "storage/check.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <unistd.h>
#include <vector>

namespace troupe {

namespace {

constexpr size_t handed_bytes = size_t{1} << 20; // that the thread is given at once

} // namespace

std::optional<int> faulty_result() {
  if (fault::at("row_store.short_read")) return 0;
  if (fault::at("row_store.io_error")) return -EIO;
  if (fault::at("row_store.interrupted")) return -EINTR;
  return std::nullopt;
}

bool read_one_by_one(std::span<const positional_read> batch, read_failure& failure, reading_state* state) {
  for (size_t i = 0; i < batch.size(); ++i) {
    const positional_read& r = batch[i];
    uint32_t done = 0;
    while (done < r.size) {
      if (state != nullptr && state->is_left) return false;
      const std::optional<int> faulty = faulty_result();
      const ssize_t n =
          faulty ? *faulty : ::pread(r.descriptor, r.to + done, r.size - done, static_cast<off_t>(r.offset + done));
      const int error = n >= 0 ? 0 : (faulty ? -*faulty : errno);
      if (n == 0 || (n < 0 && !is_passing(error))) {
        failure = {i, error, done};
        return false;
      }
      if (n > 0) done += static_cast<uint32_t>(n);
      if (state != nullptr) ++state->n_calls;
    }
  }
  return true;
}

struct patient_reader::handed_piece {
  std::vector<positional_read> reads; // into `bytes`
  std::vector<std::byte> bytes;
  read_failure failure;
  bool is_whole = false;
  std::optional<uint64_t> hold; // of a test that wants it to hang

  std::mutex mutex; // of what is below; what is above belongs to the thread from is_given to is_done
  std::condition_variable changed;
  bool is_given = false, is_done = false, is_over = false; // over: nothing more will be given
  reading_state state;                                     // left: and nobody waits for what was
  std::shared_ptr<std::atomic<size_t>> n_hanging;

  void run();
};

void patient_reader::handed_piece::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return is_given || is_over; });
    if (!is_given) return;
    lock.unlock();
    if (hold) fault::stay(*hold);
    is_whole = read_one_by_one(reads, failure, &state);
    lock.lock();
    is_given = false;
    is_done = true;
    if (state.is_left) --*n_hanging;
    changed.notify_all();
  }
}

patient_reader::patient_reader() : n_hanging_(std::make_shared<std::atomic<size_t>>(0)) {}

patient_reader::~patient_reader() {
  if (!handed_) return;
  {
    const std::lock_guard hold(handed_->mutex);
    handed_->is_over = true;
  }
  handed_->changed.notify_all();
  thread_.join();
}

// Precondition: the piece's mutex is held.
void patient_reader::leave() {
  thread_.detach();
  ++*n_hanging_;
  handed_->state.is_left = true;
  handed_->is_over = true;
}

bool patient_reader::read_piece(std::span<const positional_read> piece, read_failure& failure,
                                std::chrono::milliseconds patience) {
  if (!handed_) {
    auto made = std::make_shared<handed_piece>();
    made->n_hanging = n_hanging_;
    try {
      if (fault::at("row_store.no_thread")) throw std::system_error(EAGAIN, std::generic_category());
      thread_ = std::thread([made] { made->run(); });
    } catch (const std::system_error& e) {
      failure = {0, e.code().value(), 0};
      return false;
    }
    handed_ = std::move(made);
  }
  auto& h = *handed_;
  std::unique_lock hold(h.mutex);
  size_t n_bytes = 0;
  for (const auto& r : piece) n_bytes += r.size;
  h.bytes.resize(n_bytes);
  h.reads.assign(piece.begin(), piece.end());
  n_bytes = 0;
  for (auto& r : h.reads) {
    r.to = h.bytes.data() + n_bytes;
    n_bytes += r.size;
  }
  h.hold = fault::hold_at("row_store.hang");
  h.is_given = true;
  h.is_done = false;
  h.changed.notify_all();
  bool is_late = false;                                          // a test's deadline
  for (size_t seen = h.state.n_calls;; seen = h.state.n_calls) { // slow is not hanging
    h.changed.wait_for(hold, patience, [&] { return h.is_done || (is_late = is_late || fault::at("row_store.late")); });
    if (h.is_done || is_late || h.state.n_calls == seen) break;
  }
  if (!h.is_done) {
    failure = {0, ETIMEDOUT, 0};
    leave();
    hold.unlock();
    handed_.reset();
    return false;
  }
  failure = h.failure;
  if (!h.is_whole) return false;
  for (size_t i = 0; i < piece.size(); ++i) std::memcpy(piece[i].to, h.reads[i].to, piece[i].size);
  return true;
}

bool patient_reader::read_all(std::span<const positional_read> batch, read_failure& failure,
                              std::chrono::milliseconds patience) {
  for (size_t at = 0; at < batch.size();) {
    size_t n = 0, n_bytes = 0;
    while (at + n < batch.size() && (n == 0 || n_bytes + batch[at + n].size <= handed_bytes))
      n_bytes += batch[at + n++].size;
    if (n_hanging() >= read_ring::most_hanging) {
      failure = {at, ETIMEDOUT, 0};
      return false;
    }
    if (!read_piece(batch.subspan(at, n), failure, patience)) {
      failure.index += at;
      return false;
    }
    at += n;
  }
  return true;
}

} // namespace troupe
