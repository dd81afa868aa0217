// Threads take the next index from a counter until there is none.
#include "storage/parallel.h"

#include "storage/check.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace troupe {

unsigned n_cores() { return std::max(1U, std::thread::hardware_concurrency()); }

void for_each_parallel(size_t n, unsigned n_threads, const std::function<void(size_t)>& work) {
  TROUPE_CHECK(n_threads >= 1, "the calling thread works too");
  std::atomic<size_t> next{0};
  std::mutex guard; // of the two below
  size_t failed = n;
  std::exception_ptr why;
  const auto run = [&] {
    for (size_t i; (i = next.fetch_add(1)) < n;) {
      try {
        work(i);
      } catch (...) { // carried over to the caller's thread as it is
        next = n;
        const std::lock_guard lock(guard);
        if (i < failed) failed = i, why = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (size_t t = 1; t < std::min<size_t>(n_threads, n); ++t) {
        if (fault::at("parallel.no_thread")) throw std::system_error(EAGAIN, std::generic_category());
        others.emplace_back(run);
      }
    } catch (const std::system_error&) { // no thread to be had: those there are do it
    }
    run();
  }
  if (why) std::rethrow_exception(why);
}

} // namespace troupe
