// Keeps up to `depth` reads in flight, finishes short ones, and never returns while the kernel may still write to a
// buffer.
#include "storage/read_ring.h"

#include "storage/check.h"
#include "storage/log.h"

#include <liburing.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <unistd.h>
#include <utility>
#include <vector>

namespace troupe {
namespace {

constexpr bool is_passing(int error) { return error == EINTR || error == EAGAIN; }

// Fault points shared by both ways of reading: what the kernel would have answered.
std::optional<int> faulty_result() {
  if (fault::at("row_store.short_read")) return 0;
  if (fault::at("row_store.io_error")) return -EIO;
  if (fault::at("row_store.interrupted")) return -EINTR;
  return std::nullopt;
}

} // namespace

struct read_ring::ring {
  io_uring uring{};
  unsigned depth = 0;          // 0: not set up
  std::vector<uint32_t> done;  // bytes that arrived, per read of the batch
  std::vector<size_t> pending; // reads to queue, or to queue again; the last one goes first
  unsigned n_in_flight = 0;    // queued, its completion not yet taken

  ring() = default;
  ring(const ring&) = delete;
  ring& operator=(const ring&) = delete;
  ~ring() {
    if (depth > 0) io_uring_queue_exit(&uring);
  }

  void queue(std::span<const positional_read> batch);
  void collect(std::span<const positional_read> batch, std::optional<read_failure>& failure);
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

bool read_one_by_one(std::span<const positional_read> batch, read_failure& failure) {
  for (size_t i = 0; i < batch.size(); ++i) {
    const positional_read& r = batch[i];
    uint32_t done = 0;
    while (done < r.size) {
      const std::optional<int> faulty = faulty_result();
      const ssize_t n =
          faulty ? *faulty : ::pread(r.descriptor, r.to + done, r.size - done, static_cast<off_t>(r.offset + done));
      const int error = n >= 0 ? 0 : (faulty ? -*faulty : errno);
      if (n == 0 || (n < 0 && !is_passing(error))) {
        failure = {i, error, done};
        return false;
      }
      if (n > 0) done += static_cast<uint32_t>(n);
    }
  }
  return true;
}

} // namespace

// Queues what there is room for.
void read_ring::ring::queue(std::span<const positional_read> batch) {
  while (!pending.empty() && n_in_flight < depth) {
    io_uring_sqe* entry = io_uring_get_sqe(&uring);
    TROUPE_CHECK(entry != nullptr, "the submission queue holds `depth` entries and no more than that are in flight");
    const size_t i = pending.back();
    pending.pop_back();
    const positional_read& r = batch[i];
    io_uring_prep_read(entry, r.descriptor, r.to + done[i], r.size - done[i], r.offset + done[i]);
    io_uring_sqe_set_data64(entry, i);
    ++n_in_flight;
  }
}

// Submits what is queued, waits for a completion and takes all that are there.
void read_ring::ring::collect(std::span<const positional_read> batch, std::optional<read_failure>& failure) {
  const int status = io_uring_submit_and_wait(&uring, 1);
  // EBUSY and EAGAIN ask to take completions first; what was not submitted stays queued for the next round.
  TROUPE_CHECK(status >= 0 || is_passing(-status) || status == -EBUSY, "the ring and its arguments are ours alone");
  io_uring_cqe* completion = nullptr;
  while (n_in_flight > 0 && io_uring_peek_cqe(&uring, &completion) == 0) {
    const auto i = static_cast<size_t>(io_uring_cqe_get_data64(completion));
    const int result = faulty_result().value_or(completion->res);
    io_uring_cqe_seen(&uring, completion);
    --n_in_flight;
    if (result > 0) done[i] += static_cast<uint32_t>(result);
    const bool over = result == 0 || (result < 0 && !is_passing(-result));
    if (over && !failure)
      failure = read_failure{i, -result, done[i]};
    else if (!over && done[i] < batch[i].size)
      pending.push_back(i);
  }
}

read_ring::read_ring(unsigned depth) {
  TROUPE_CHECK(depth > 0, "a ring has room for one read");
  auto r = std::make_unique<ring>();
  if (const int error = set_up(r->uring, depth); error != 0) {
    spdlog::info("row reads: io_uring is not available ({}), using pread", std::strerror(error));
    return;
  }
  r->depth = depth;
  ring_ = std::move(r);
}

read_ring::~read_ring() = default;
read_ring::read_ring(read_ring&&) noexcept = default;
read_ring& read_ring::operator=(read_ring&&) noexcept = default;

bool read_ring::read_all(std::span<const positional_read> batch, read_failure& failure) {
  if (!ring_) return read_one_by_one(batch, failure);
  ring& r = *ring_;
  r.done.assign(batch.size(), 0);
  r.pending.clear();
  for (size_t i = batch.size(); i-- > 0;)
    if (batch[i].size > 0) r.pending.push_back(i);
  std::optional<read_failure> first;
  while ((!first && !r.pending.empty()) || r.n_in_flight > 0) {
    if (!first) r.queue(batch);
    r.collect(batch, first);
  }
  if (first) failure = *first;
  return !first;
}

} // namespace troupe
