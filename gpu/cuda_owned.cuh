// Streams, events and graphs that end with their owner. For .cu files only.
#pragma once

#include "gpu/backend.h"
#include "gpu/cuda_check.cuh"
#include "gpu/cuda_lane.h"

namespace troupe {

class cuda_graph final : public graph {
public:
  cudaGraphExec_t ready = nullptr;
  ~cuda_graph() override {
    if (ready != nullptr) cudaGraphExecDestroy(ready);
  }
};

class own_event {
public:
  explicit own_event(unsigned flags) { cuda_check(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreate"); }
  ~own_event() { cudaEventDestroy(event_); }
  own_event(const own_event&) = delete;
  own_event& operator=(const own_event&) = delete;
  cudaEvent_t get() const { return event_; }

private:
  cudaEvent_t event_ = nullptr;
};

// A stream that ends after everything that uses it.
class own_stream {
public:
  explicit own_stream(int32_t device) {
    cuda_check(cudaSetDevice(device), "cudaSetDevice");
    cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~own_stream() { cudaStreamDestroy(stream_); }
  own_stream(const own_stream&) = delete;
  own_stream& operator=(const own_stream&) = delete;
  cuda_stream get() const { return stream_; }

private:
  cudaStream_t stream_ = nullptr;
};

// Device time of what was launched under it, while up to two are under way.
class replay_clock {
public:
  template <class F> void time(cuda_stream on, const F& launch) {
    at_ ^= 1;
    count(pairs_[at_]); // of the one before the last
    cuda_check(cudaEventRecord(pairs_[at_].begin.get(), on), "replay");
    launch();
    cuda_check(cudaEventRecord(pairs_[at_].end.get(), on), "replay");
    pairs_[at_].is_running = true;
  }
  double us() { // of all that have ended
    for (pair& p : pairs_) count(p);
    return us_;
  }

private:
  struct pair {
    own_event begin{cudaEventDefault}, end{cudaEventDefault};
    bool is_running = false; // its time is not counted yet
  };
  void count(pair& p) {
    float ms = 0;
    if (p.is_running && cudaEventElapsedTime(&ms, p.begin.get(), p.end.get()) == cudaSuccess) {
      us_ += 1e3 * static_cast<double>(ms);
      p.is_running = false;
    }
    cudaGetLastError(); // not ready is no fault
  }
  pair pairs_[2];
  int at_ = 0;
  double us_ = 0;
};

} // namespace troupe
