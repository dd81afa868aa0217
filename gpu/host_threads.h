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

  // Calls work(i) once for every i in [0, n_items), on any thread, and returns when all calls have returned. Thread t
  // of T begins with the t-th part of the items and helps with the others when it is done: a caller that keeps the same
  // rows in the same part of every loop finds them in the same core's cache. `work` must not throw and must not call
  // the pool.
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
  void serve(size_t thread);
  void take_items(uint32_t round, size_t thread);

  // What one thread watches and what several write are on cache lines of their own.
  static constexpr size_t line = 64;
  // The part of the items that one thread begins with. The upper half of `next` holds the number of the round, so that
  // a thread that wakes late never takes an item of a later loop with the work of an earlier one.
  struct alignas(line) part {
    std::atomic<uint64_t> next = 0;
  };
  alignas(line) std::atomic<uint32_t> round_ = 0;
  std::atomic<bool> stopping_ = false;
  alignas(line) std::atomic<int64_t> n_items_ = 0;
  std::atomic<call> call_ = nullptr;
  std::atomic<const void*> context_ = nullptr;
  alignas(line) std::atomic<int64_t> n_open_ = 0; // items not yet reported as finished
  std::vector<part> parts_;
  std::vector<std::thread> threads_;
};

} // namespace troupe
