// A device that goes on while the host does: what a graph receives may be posted after its replay.
#pragma once

#include "gpu/host_backend.h"
#include "tests/test_device.h"

#include <future>
#include <memory>
#include <thread>

namespace troupe::test {

// Replays on a thread of its own, which copies wait for. As on a device, nothing but copies may follow a replay.
class ahead_backend final : public host_backend {
public:
  ahead_backend() : host_backend({.n_threads = 1}) {}
  ~ahead_backend() override { join(); }

  bool is_under_way() const { return running_.valid(); }
  bool runs_ahead() const override { return true; }
  void upload(tensor to, const void* from, int64_t n_bytes) override {
    join();
    host_backend::upload(to, from, n_bytes);
  }
  void download(void* to, tensor from, int64_t n_bytes) override {
    join();
    host_backend::download(to, from, n_bytes);
  }
  void receive(std::span<const tensor> to, const mailbox& from) override {
    while (!from.is_posted()) std::this_thread::yield();
    host_backend::receive(to, from);
  }
  void replay(graph& g) override {
    join();
    running_ = std::async(std::launch::async, [this, &g] { host_backend::replay(g); });
  }

private:
  void join() {
    if (running_.valid()) running_.get();
  }
  std::future<void> running_;
};

inline std::unique_ptr<backend> make_ahead_device() {
#ifdef TROUPE_TEST_CUDA
  return make_device(1);
#else
  return std::make_unique<ahead_backend>();
#endif
}

// Whether a replay was begun since the last copy; a CUDA device cannot be asked.
inline bool is_under_way([[maybe_unused]] backend& b) {
#ifdef TROUPE_TEST_CUDA
  return true;
#else
  return dynamic_cast<ahead_backend&>(b).is_under_way();
#endif
}

} // namespace troupe::test
