// Where tensor-parallel ranks meet. Every rank calls the same operations in the same order; nothing else crosses ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace troupe {

// Sums run in rank order 0, 1, ..., so the result has the same bits on every rank and in every run.
// A rank that does not arrive before the deadline makes the others throw std::system_error naming it.
class collective {
public:
  virtual ~collective() = default;
  virtual int rank() const = 0;
  virtual int n_ranks() const = 0;
  virtual void all_reduce_sum(std::span<float> values) = 0;
  // out = inputs of rank 0, rank 1, ... one after another; out.size() == n_ranks * in.size().
  virtual void all_gather(std::span<float> out, std::span<const float> in) = 0;
  // Wakes every waiting rank with an error; used when a rank dies.
  virtual void abort() = 0;
};

// n members of one group of threads in this process. Each member is used by one thread at a time.
std::vector<std::unique_ptr<collective>> make_host_collectives(int n_ranks, std::chrono::milliseconds deadline);

} // namespace troupe
