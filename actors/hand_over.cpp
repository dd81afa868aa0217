// A scheduling policy for CAF's pool. CAF's own two wake a thread for every actor that gets mail: a step then costs
// more in wake-ups than in work, since what one actor sends the next is done sooner than a thread is woken.
#include "actors/hand_over.h"

#include <caf/actor_system_config.hpp>
#include <caf/policy/unprofiled.hpp>
#include <caf/scheduler/coordinator.hpp>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

namespace troupe {

namespace {

using caf::resumable;

constexpr int max_in_row = 16;    // actors that run before older ones get their turn
constexpr size_t max_unwoken = 1; // actors that wait while another thread sleeps

struct sleeper {
  std::condition_variable wakes;
  bool is_woken = false; // guarded by the queue's lock
};

class hand_over : public caf::policy::unprofiled {
public:
  // Shared by the threads. The lock is the pool's own: no actor sees it.
  struct coordinator_data {
    explicit coordinator_data(caf::scheduler::abstract_coordinator*) {}
    std::mutex lock; // guards the two below
    std::deque<resumable*> queue;
    std::vector<sleeper*> asleep; // the last one slept least
  };
  // Of one thread, which alone uses it. Invariant: `next` is empty while it sleeps.
  struct worker_data {
    explicit worker_data(caf::scheduler::abstract_coordinator*) {}
    worker_data(const worker_data&) {} // CAF copies an unused one
    resumable* next = nullptr;
    int n_in_row = 0;
    sleeper bed;
  };

  template <class Coordinator> void central_enqueue(Coordinator* self, resumable* r) { add(self, r, 0); }
  template <class Worker> void external_enqueue(Worker* self, resumable* r) { add(self->parent(), r, 0); }
  // What it handed over goes first; then another thread takes it.
  template <class Worker> void resume_job_later(Worker* self, resumable* r) {
    add(self->parent(), r, d(self).next ? 0 : max_unwoken);
  }
  template <class Worker> void internal_enqueue(Worker* self, resumable* r) {
    if (auto* const before = std::exchange(d(self).next, r)) add(self->parent(), before, max_unwoken);
  }

  template <class Worker> resumable* dequeue(Worker* self) {
    auto& mine = d(self);
    auto* const next = std::exchange(mine.next, nullptr);
    if (next && ++mine.n_in_row < max_in_row) return next;
    mine.n_in_row = 0;
    auto& all = d(self->parent());
    std::unique_lock hold(all.lock);
    if (next) all.queue.push_back(next);
    while (all.queue.empty()) {
      mine.bed.is_woken = false;
      all.asleep.push_back(&mine.bed);
      mine.bed.wakes.wait(hold, [&] { return mine.bed.is_woken; });
    }
    auto* const first = all.queue.front();
    all.queue.pop_front();
    return first;
  }

  template <class Worker, class F> void foreach_resumable(Worker*, F) {}
  template <class Coordinator, class F> void foreach_central_resumable(Coordinator* self, F f) {
    std::deque<resumable*> left;
    {
      const std::lock_guard hold(d(self).lock);
      left.swap(d(self).queue);
    }
    for (auto* const r : left) f(r);
  }

private:
  // Wakes a thread if more than so many wait.
  template <class Coordinator> void add(Coordinator* self, resumable* r, size_t n_unwoken) {
    auto& all = d(self);
    sleeper* woken = nullptr;
    {
      const std::lock_guard hold(all.lock);
      all.queue.push_back(r);
      if (all.queue.size() > n_unwoken && !all.asleep.empty()) {
        woken = all.asleep.back();
        all.asleep.pop_back();
        woken->is_woken = true;
      }
    }
    if (woken) woken->wakes.notify_one(); // behind the lock, which it takes first
  }
};

} // namespace

void use_hand_over(caf::actor_system_config& config) { config.load<caf::scheduler::coordinator<hand_over>>(); }

} // namespace troupe
