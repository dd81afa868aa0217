// The backend on a CUDA device: one stream, one lane of scratch memory, one thread that calls it.
#pragma once

#include "gpu/backend.h"
#include "gpu/self_check.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

// What a device is. Empty list: no driver, no device, or a build without CUDA (`why` says which, for messages).
struct cuda_device_info {
  int32_t index = 0;
  std::string name;             // "NVIDIA H200"
  int32_t major = 0, minor = 0; // compute capability
  int32_t n_multiprocessors = 0;
  int64_t memory_bytes = 0;
};
std::vector<cuda_device_info> list_cuda_devices(std::string& why);

// Scratch of a backend whose steps have up to `chunk_rows` rows: 256 KB a row and 112 MB take the real model's six
// experts of a row at once (39 KB each, and up to seven spare rows behind each of 384 experts), so that each of their
// outputs is read once. 512 MB at least, 2.25 GB at most.
constexpr int64_t scratch_of_chunk(int64_t chunk_rows) {
  return std::clamp((chunk_rows << 18) + (int64_t{112} << 20), int64_t{512} << 20, int64_t{2304} << 20);
}

struct cuda_backend_config {
  int32_t device = 0;
  int64_t memory_bytes = INT64_MAX; // allocations past it fail by name, as those past the card's memory do
  int64_t scratch_bytes = scratch_of_chunk(0);
  collective* group = nullptr; // borrowed; nullptr: one rank. Meets through host memory
};

// Throws std::system_error (category "cuda") naming the call, or std::runtime_error in a build without CUDA.
std::unique_ptr<backend> make_cuda_backend(const cuda_backend_config&);

// The stream and scratch of a CUDA backend, for kernels that are no operation of every backend. Makes its device
// current.
struct cuda_lane;
const cuda_lane& lane_of(backend&);
int32_t device_of(backend&); // its index

// A download in two steps, the second of which waits for the work before the first alone. At most 1 MB, one at a time.
void begin_download(backend&, tensor from, int64_t n_bytes);
void end_download(backend&, void* to, int64_t n_bytes);

// Microseconds that the device spent in replayed graphs so far; those that have ended.
double replayed_us(backend&);

// What a CUDA backend loaded, each variant once, for the self-check.
std::vector<weight_variant> loaded_variants(backend&);
// Takes the form that now serves it out of use; false: no other form serves it.
bool park(backend&, const parkable&);

} // namespace troupe
