// A fork-join pool: the calling thread and n - 1 others share the items of one loop at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace troupe {

// Used by one calling thread. Others spin for a few microseconds after a loop, because the next one of a step follows
// at once, then sleep in the kernel: an idle pool costs nothing.
class host_threads {
public:
  explicit host_threads(int n_threads); // n_threads >= 1, the caller included
  ~host_threads();
  host_threads(const host_threads&) = delete;
  host_threads& operator=(const host_threads&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls work(i) once for every i in [0, n_items), on any thread, and returns when all calls have returned. Items are
  // taken in order as threads become free. `work` must not throw and must not call the pool.
  template <class Work> void for_each(int64_t n_items, const Work& work) {
    if (n_items <= 1 || threads_.empty()) {
      for (int64_t i = 0; i < n_items; ++i) work(i);
      return;
    }
    run(
        n_items, [](const void* context, int64_t i) { (*static_cast<const Work*>(context))(i); }, &work);
  }

private:
  using call = void (*)(const void* context, int64_t item);
  void run(int64_t n_items, call, const void* context);
  void serve();
  void take_items(uint32_t round);

  // A loop: its items are handed out by `next`, whose upper half holds the number of the round, so that a thread that
  // wakes late never takes an item of a later loop with the work of an earlier one.
  std::atomic<uint32_t> round_ = 0;
  std::atomic<uint64_t> next_ = 0;
  std::atomic<int64_t> n_open_ = 0; // items not yet finished
  std::atomic<int64_t> n_items_ = 0;
  std::atomic<call> call_ = nullptr;
  std::atomic<const void*> context_ = nullptr;
  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> threads_;
};

} // namespace troupe
