// Rounds of items; a sleeping thread waits on the round's number.
#include "gpu/host_threads.h"

#include "storage/check.h"

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

host_threads::host_threads(int n_threads) {
  TROUPE_CHECK(n_threads >= 1, "a pool has at least the calling thread");
  for (int i = 1; i < n_threads; ++i) threads_.emplace_back([this] { serve(); });
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
  next_.store(static_cast<uint64_t>(round - 1) << 32 | UINT32_MAX); // nobody takes while the fields change
  call_.store(work, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  n_items_.store(n_items, std::memory_order_release);
  n_open_.store(n_items, std::memory_order_release);
  next_.store(static_cast<uint64_t>(round) << 32);
  round_.store(round);
  round_.notify_all();
  take_items(round);
  // Another thread is inside its last item: a microsecond or so, unless the host took its processor away.
  for (int i = 0; n_open_.load(std::memory_order_acquire) != 0; ++i) {
    if (i < patient_spins)
      relax();
    else
      std::this_thread::yield();
  }
}

void host_threads::take_items(uint32_t round) {
  uint64_t at = next_.load();
  for (;;) {
    if (static_cast<uint32_t>(at >> 32) != round) return;
    const auto item = static_cast<int64_t>(static_cast<uint32_t>(at));
    const call work = call_.load(std::memory_order_acquire);
    const void* context = context_.load(std::memory_order_acquire);
    if (item >= n_items_.load(std::memory_order_acquire)) return;
    // The exchange fails if the round has changed, so work and context above belong to the item.
    if (!next_.compare_exchange_weak(at, at + 1)) continue;
    work(context, item);
    n_open_.fetch_sub(1, std::memory_order_release);
    at = next_.load();
  }
}

void host_threads::serve() {
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
    take_items(round);
  }
}

} // namespace troupe
