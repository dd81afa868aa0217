// Rounds of items; a sleeping thread waits on the round's number.
#include "gpu/host_threads.h"

#include "storage/check.h"

#include <algorithm>
#include <chrono>

namespace troupe {
namespace {

// Long enough to bridge the gaps between the operations of a step, short enough to cost nothing when idle.
constexpr auto spin_time = std::chrono::microseconds(30);

constexpr int patient_spins = 2000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

} // namespace

host_threads::host_threads(int n_threads) : parts_(static_cast<size_t>(std::max(n_threads, 1))) {
  TROUPE_CHECK(n_threads >= 1, "a pool has at least the calling thread");
  for (size_t i = 1; i < parts_.size(); ++i) threads_.emplace_back([this, i] { serve(i); });
}

host_threads::~host_threads() {
  stopping_ = true;
  round_.fetch_add(1);
  round_.notify_all();
  for (auto& t : threads_) t.join();
}

void host_threads::run(int64_t n_items, call work, const void* context) {
  TROUPE_CHECK(n_items < INT32_MAX, "the items of a loop fit in 32 bits");
  // No thread is inside take_items with an open item here: the loop before has finished all of its own.
  const uint32_t round = round_.load(std::memory_order_relaxed) + 1;
  const auto n_parts = static_cast<int64_t>(parts_.size());
  const uint64_t closed = static_cast<uint64_t>(round - 1) << 32 | UINT32_MAX;
  for (part& p : parts_) p.next.store(closed); // nobody takes while the fields change
  call_.store(work, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  n_items_.store(n_items, std::memory_order_release);
  n_open_.store(n_items, std::memory_order_release);
  for (int64_t t = 0; t < n_parts; ++t)
    parts_[static_cast<size_t>(t)].next.store(static_cast<uint64_t>(round) << 32 |
                                              static_cast<uint64_t>(n_items * t / n_parts));
  round_.store(round);
  round_.notify_all();
  take_items(round, 0);
  // Another thread is inside its last item: a microsecond or so, unless the host took its processor away.
  for (int i = 0; n_open_.load(std::memory_order_acquire) != 0; ++i) {
    if (i < patient_spins)
      relax();
    else
      std::this_thread::yield();
  }
}

void host_threads::take_items(uint32_t round, size_t thread) {
  const call work = call_.load(std::memory_order_acquire);
  const void* context = context_.load(std::memory_order_acquire);
  const int64_t n_items = n_items_.load(std::memory_order_acquire);
  const auto n_parts = static_cast<int64_t>(parts_.size());
  int64_t n_done = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const size_t whose = (thread + i) % parts_.size();
    const int64_t end = n_items * static_cast<int64_t>(whose + 1) / n_parts;
    std::atomic<uint64_t>& next = parts_[whose].next;
    uint64_t at = next.load();
    for (;;) {
      if (static_cast<uint32_t>(at >> 32) != round || static_cast<uint32_t>(at) >= end) break;
      // The exchange fails if the round has changed, so work, context and n_items belong to the item. While this thread
      // has not reported it, the loop does not end and the round stays.
      if (!next.compare_exchange_weak(at, at + 1)) continue;
      work(context, static_cast<uint32_t>(at));
      ++n_done;
      at = next.load();
    }
  }
  if (n_done > 0) n_open_.fetch_sub(n_done, std::memory_order_release);
}

void host_threads::serve(size_t thread) {
  uint32_t seen = 0;
  for (;;) {
    const auto give_up = std::chrono::steady_clock::now() + spin_time;
    uint32_t round = round_.load();
    for (int i = 0; round == seen; round = round_.load()) {
      relax();
      if (++i % 64 == 0 && std::chrono::steady_clock::now() > give_up) {
        round_.wait(seen);
        i = 0;
      }
    }
    if (stopping_) return;
    seen = round;
    take_items(round, thread);
  }
}

} // namespace troupe
