// Aborting on a broken invariant, and the registry of armed fault points.
#include "storage/check.h"

#include "storage/log.h"

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

namespace troupe {

void check_failed(const char* condition, const char* why, const char* file, int line) {
  spdlog::critical("check failed: {} ({}:{}): {}", condition, file, line, why);
  spdlog::default_logger()->flush();
  std::abort();
}

namespace fault {
namespace {

struct armed_point {
  std::string name;
  uint64_t skip = 0;  // passes still to let through
  uint64_t times = 0; // failures still to come
};

// The one process-wide state of this folder: a fault point sits deep inside code that no test can hand an object to.
struct registry {
  std::atomic<bool> any_armed{false}; // lets a pass of an unarmed program cost one relaxed load
  std::mutex mutex;
  std::vector<armed_point> points;
  std::condition_variable changed;
  uint64_t n_let_go = 0;
};

registry& points() {
  static registry instance;
  return instance;
}

} // namespace

bool at(std::string_view point) {
  registry& r = points();
  if (!r.any_armed.load(std::memory_order_relaxed)) [[likely]]
    return false;
  const std::lock_guard lock(r.mutex);
  for (armed_point& p : r.points) {
    if (p.name != point || p.times == 0) continue;
    if (p.skip > 0) {
      --p.skip;
      return false;
    }
    --p.times;
    return true;
  }
  return false;
}

void arm(std::string_view point, uint64_t skip, uint64_t times) {
  registry& r = points();
  const std::lock_guard lock(r.mutex);
  r.points.push_back({std::string(point), skip, times});
  r.any_armed.store(true, std::memory_order_relaxed);
}

void disarm_all() {
  registry& r = points();
  const std::lock_guard lock(r.mutex);
  r.points.clear();
  r.any_armed.store(false, std::memory_order_relaxed);
}

std::optional<uint64_t> hold_at(std::string_view point) {
  if (!at(point)) [[likely]]
    return std::nullopt;
  registry& r = points();
  const std::lock_guard lock(r.mutex);
  return r.n_let_go;
}

void stay(uint64_t hold) {
  registry& r = points();
  std::unique_lock lock(r.mutex);
  r.changed.wait(lock, [&] { return r.n_let_go > hold; });
}

void let_go() {
  registry& r = points();
  {
    const std::lock_guard lock(r.mutex);
    ++r.n_let_go;
  }
  r.changed.notify_all();
}

} // namespace fault
} // namespace troupe
