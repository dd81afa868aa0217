// Keeps up to `depth` reads in flight and finishes short ones. The kernel writes into memory of the ring: what hangs
// keeps its piece of it.
#include "storage/read_ring.h"

#include "storage/check.h"
#include "storage/log.h"
#include "storage/patient_reader.h"

#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace troupe {
struct read_ring::ring {
  struct landing { // where a read in flight arrives
    std::vector<std::byte> bytes;
    size_t index = 0;   // into its batch
    uint64_t batch = 0; // one that is over: it hangs
  };
  io_uring uring{};
  unsigned depth = 0; // 0: not set up
  std::vector<landing> landings;
  std::vector<uint32_t> free;  // landings with nothing in flight
  std::vector<uint32_t> done;  // bytes that arrived, per read of the batch
  std::vector<size_t> pending; // reads to queue, or to queue again; the last one goes first
  uint64_t batch_number = 0;
  unsigned n_in_flight = 0; // of this batch: queued, its completion not yet taken

  ring() = default;
  ring(const ring&) = delete;
  ring& operator=(const ring&) = delete;
  ~ring();

  size_t n_hanging() const { return landings.size() - free.size() - n_in_flight; }
  void queue(std::span<const positional_read> batch);
  void wait(std::chrono::milliseconds patience);
  bool collect(std::span<const positional_read> batch, std::optional<read_failure>& failure);
  read_failure give_up();
};

namespace {

// Sets up a ring and sends one empty request through it, since a sandbox may allow the one and forbid the other.
// Returns 0, or an errno value with nothing left to release.
int set_up(io_uring& uring, unsigned depth) {
  if (fault::at("row_store.no_io_uring")) return ENOSYS;
  if (const int status = io_uring_queue_init(depth, &uring, 0); status < 0) return -status;
  int error = 0;
  io_uring_probe* probe = io_uring_get_probe_ring(&uring);
  if (probe == nullptr || !io_uring_opcode_supported(probe, IORING_OP_READ)) error = EOPNOTSUPP;
  if ((uring.features & IORING_FEAT_EXT_ARG) == 0) error = EOPNOTSUPP; // waiting has no end there
  io_uring_free_probe(probe);
  io_uring_cqe* completion = nullptr;
  if (error == 0) {
    io_uring_prep_nop(io_uring_get_sqe(&uring));
    if (const int status = io_uring_submit_and_wait(&uring, 1); status < 0) error = -status;
  }
  if (error == 0) error = -io_uring_peek_cqe(&uring, &completion);
  if (error == 0)
    io_uring_cqe_seen(&uring, completion);
  else
    io_uring_queue_exit(&uring);
  return error;
}

} // namespace

// The kernel may still write to it: a read that never comes back costs its piece of memory until the process ends.
static void keep_for_kernel(std::vector<std::byte>&& bytes) {
  static std::mutex guard;
  static auto& kept = *new std::vector<std::vector<std::byte>>; // outlives the statics, as the reads may
  const std::lock_guard hold(guard);
  kept.push_back(std::move(bytes));
}

read_ring::ring::~ring() {
  if (depth == 0) return;
  n_in_flight = 0;
  std::optional<read_failure> none;
  ++batch_number;
  collect({}, none);
  io_uring_queue_exit(&uring);
  std::vector<bool> is_free(landings.size());
  for (const uint32_t i : free) is_free[i] = true;
  for (size_t i = 0; i < landings.size(); ++i)
    if (!is_free[i]) keep_for_kernel(std::move(landings[i].bytes));
}

// Queues what there is room for.
void read_ring::ring::queue(std::span<const positional_read> batch) {
  while (!pending.empty() && !free.empty()) {
    const size_t i = pending.back();
    const uint32_t to = free.back(), size = batch[i].size - done[i];
    auto& l = landings[to];
    if (l.bytes.size() < size) l.bytes.resize(size); // may throw: nothing is taken yet
    io_uring_sqe* entry = io_uring_get_sqe(&uring);
    TROUPE_CHECK(entry != nullptr, "the submission queue holds `depth` entries and no more than that are in flight");
    pending.pop_back();
    free.pop_back();
    l.index = i;
    l.batch = batch_number;
    io_uring_prep_read(entry, batch[i].descriptor, l.bytes.data(), size, batch[i].offset + done[i]);
    io_uring_sqe_set_data64(entry, to);
    ++n_in_flight;
  }
}

// Submits what is queued and waits for a completion.
void read_ring::ring::wait(std::chrono::milliseconds patience) {
  int status = 0;
  if (patience == forever) {
    status = io_uring_submit_and_wait(&uring, 1);
  } else {
    __kernel_timespec time{patience.count() / 1000, patience.count() % 1000 * 1'000'000};
    io_uring_cqe* completion = nullptr;
    status = io_uring_submit_and_wait_timeout(&uring, &completion, 1, &time, nullptr);
  }
  // EBUSY and EAGAIN ask to take completions first; what was not submitted stays queued for the next round.
  TROUPE_CHECK(status >= 0 || is_passing(-status) || status == -EBUSY || status == -ETIME,
               "the ring and its arguments are ours alone");
}

// Takes the completions that are there. False: there was none.
bool read_ring::ring::collect(std::span<const positional_read> batch, std::optional<read_failure>& failure) {
  bool any = false;
  for (io_uring_cqe* completion = nullptr; io_uring_peek_cqe(&uring, &completion) == 0;) {
    const auto from = static_cast<uint32_t>(io_uring_cqe_get_data64(completion));
    const int came = completion->res;
    io_uring_cqe_seen(&uring, completion);
    const auto& l = landings[from];
    free.push_back(from);
    any = true;                            // room for those that wait, whoever it was of
    if (l.batch != batch_number) continue; // it was given up
    --n_in_flight;
    const size_t i = l.index;
    const int result = faulty_result().value_or(came);
    if (result > 0) {
      std::memcpy(batch[i].to + done[i], l.bytes.data(), static_cast<size_t>(result));
      done[i] += static_cast<uint32_t>(result);
    }
    const bool over = result == 0 || (result < 0 && !is_passing(-result));
    if (over && !failure)
      failure = read_failure{i, -result, done[i]};
    else if (!over && done[i] < batch[i].size)
      pending.push_back(i);
  }
  return any;
}

// The first of the reads that hang, or that wait for the room of some that do.
read_failure read_ring::ring::give_up() {
  std::vector<bool> is_free(landings.size());
  for (const uint32_t i : free) is_free[i] = true;
  size_t first = pending.empty() ? done.size() : pending.back();
  for (size_t i = 0; i < landings.size(); ++i)
    if (!is_free[i] && landings[i].batch == batch_number) first = std::min(first, landings[i].index);
  n_in_flight = 0;
  return {first, ETIMEDOUT, done[first]};
}

read_ring::read_ring(unsigned depth) {
  TROUPE_CHECK(depth > 0, "a ring has room for one read");
  auto r = std::make_unique<ring>();
  if (const int error = set_up(r->uring, depth); error != 0) {
    spdlog::info("row reads: io_uring is not available ({}), using pread", std::strerror(error));
    reader_ = std::make_unique<patient_reader>();
    return;
  }
  r->depth = depth;
  r->landings.resize(depth);
  for (uint32_t i = 0; i < depth; ++i) r->free.push_back(i);
  ring_ = std::move(r);
}

read_ring::~read_ring() = default;
read_ring::read_ring(read_ring&&) noexcept = default;
read_ring& read_ring::operator=(read_ring&&) noexcept = default;

size_t read_ring::n_hanging() const { return ring_ ? ring_->n_hanging() : reader_->n_hanging(); }

bool read_ring::read_all(std::span<const positional_read> batch, read_failure& failure,
                         std::chrono::milliseconds patience) {
  if (!ring_) {
    if (patience == forever) return read_one_by_one(batch, failure);
    return reader_->read_all(batch, failure, patience);
  }
  ring& r = *ring_;
  ++r.batch_number;
  r.done.assign(batch.size(), 0);
  r.pending.clear();
  for (size_t i = batch.size(); i-- > 0;)
    if (batch[i].size > 0) r.pending.push_back(i);
  std::optional<read_failure> first;
  r.collect(batch, first); // what hung may have come back
  auto since = std::chrono::steady_clock::now();
  while ((!first && !r.pending.empty()) || r.n_in_flight > 0) {
    if (!first) r.queue(batch);
    auto left = patience;
    if (patience != forever) {
      const auto now = std::chrono::steady_clock::now();
      left -= std::chrono::duration_cast<std::chrono::milliseconds>(now - since);
      const bool is_over = left.count() <= 0 || fault::at("row_store.late");
      if (is_over) left = std::chrono::milliseconds(0); // what is there counts all the same
      r.wait(left);
      if (r.collect(batch, first)) {
        since = std::chrono::steady_clock::now();
      } else if (is_over) {
        first = r.give_up(); // above all: who tries again one by one would wait for it again
        break;
      }
    } else {
      r.wait(left);
      r.collect(batch, first);
    }
  }
  if (first) failure = *first;
  return !first;
}

} // namespace troupe
