// Pieces of a lane's scratch one after another, 256 bytes apart.
#pragma once

#include "gpu/cuda_lane.h"

namespace troupe {

class scratch_cut {
public:
  explicit scratch_cut(const cuda_lane& lane) : lane_(lane) {}
  template <class T> T* take(int64_t n) {
    T* at = reinterpret_cast<T*>(lane_.scratch + used_);
    used_ += (n * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return at;
  }
  int64_t used() const { return used_; }

private:
  const cuda_lane& lane_;
  int64_t used_ = 0;
};

} // namespace troupe
