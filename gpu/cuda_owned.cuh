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

} // namespace troupe
