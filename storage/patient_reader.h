// Positional reads one after another on a thread of their own, which can be left where it hangs.
#pragma once

#include "storage/read_ring.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <thread>

namespace troupe {

// What another thread may know of reads under way, and tell them.
struct reading_state {
  std::atomic<bool> is_left = false; // ends them between two reads
  std::atomic<size_t> n_calls = 0;   // that have come back
};
constexpr bool is_passing(int error) { return error == EINTR || error == EAGAIN; } // of a read: try again
// One read after another, on the calling thread. As read_ring::read_all.
bool read_one_by_one(std::span<const positional_read> batch, read_failure& failure, reading_state* = nullptr);
// What a fault point makes of a read: a result in place of the kernel's; nullopt: none is armed.
std::optional<int> faulty_result();

// For one thread. What its own thread writes to is its own until the read has come back.
class patient_reader {
public:
  patient_reader();
  ~patient_reader(); // a thread that hangs ends by itself when its read comes back
  patient_reader(patient_reader&&) = delete;

  // As read_ring::read_all.
  bool read_all(std::span<const positional_read> batch, read_failure& failure, std::chrono::milliseconds patience);
  size_t n_hanging() const { return *n_hanging_; }

private:
  struct handed_piece;
  bool read_piece(std::span<const positional_read> piece, read_failure& failure, std::chrono::milliseconds patience);
  void leave();

  std::shared_ptr<handed_piece> handed_; // shared with the thread, which may outlive this
  std::thread thread_;
  std::shared_ptr<std::atomic<size_t>> n_hanging_; // threads; shared with all of them
};

} // namespace troupe
