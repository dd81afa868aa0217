// Ranks that are threads of one process: they meet, each sums one part of the values for all, they meet again.
#include "gpu/collective.h"

#include "storage/check.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <fmt/format.h>
#include <mutex>
#include <string>
#include <system_error>

namespace troupe {
namespace {

constexpr int spins = 2000; // a few microseconds: ranks of one step arrive close together

enum class operation : uint8_t { all_reduce_sum, all_gather };
const char* name(operation op) { return op == operation::all_reduce_sum ? "all_reduce_sum" : "all_gather"; }

struct contribution {
  operation op = operation::all_reduce_sum;
  float* out = nullptr;
  const float* in = nullptr;
  size_t n = 0;
};

// What the members share. Lives as long as the last of them, hence the shared_ptr.
class meeting {
public:
  meeting(int n_ranks, std::chrono::milliseconds deadline)
      : parts(static_cast<size_t>(n_ranks)), n_ranks_(n_ranks), deadline_(deadline),
        here_(static_cast<size_t>(n_ranks)) {}

  // Everybody has come with a fitting contribution, or everybody throws. A broken group stays broken.
  void arrive(int rank, const contribution& part) {
    std::unique_lock lock(mutex_);
    if (!broken_.empty()) fail(rank);
    TROUPE_CHECK(!here_[static_cast<size_t>(rank)], "a member is used by one thread at a time");
    parts[static_cast<size_t>(rank)] = part;
    here_[static_cast<size_t>(rank)] = true;
    const uint64_t round = round_;
    if (++n_here_ == n_ranks_) {
      check_parts();
      fits_ = broken_.empty();
      next_round();
    } else {
      spin(lock, round);
      woken_.wait_for(lock, deadline_, [&] { return round_ != round || !broken_.empty(); });
      if (round_ == round && broken_.empty()) break_group(missing());
      if (round_ == round) fail(rank);
    }
    // An abort after this point is seen by the next call: the members of a round all go on or all throw.
    if (!fits_) fail(rank);
  }

  // Everybody has done its part. No deadline: between the two meetings a member only adds numbers, and nobody may leave
  // while another still reads its values.
  void leave() {
    std::unique_lock lock(mutex_);
    const uint64_t round = round_;
    if (++n_done_ == n_ranks_) {
      n_done_ = 0;
      next_round();
    } else {
      spin(lock, round);
      woken_.wait(lock, [&] { return round_ != round; });
    }
  }

  void abort() {
    std::lock_guard lock(mutex_);
    if (broken_.empty()) break_group("the group was aborted");
  }

  int n_ranks() const { return n_ranks_; }

  std::vector<contribution> parts; // one a rank; written by arrive, read until leave

private:
  void spin(std::unique_lock<std::mutex>& lock, uint64_t round) {
    lock.unlock();
    for (int i = 0; i < spins && round_ == round; ++i) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    lock.lock();
  }

  void next_round() {
    n_here_ = 0;
    std::fill(here_.begin(), here_.end(), false);
    ++round_;
    woken_.notify_all();
  }

  void break_group(std::string why) {
    broken_ = std::move(why);
    woken_.notify_all();
  }

  [[noreturn]] void fail(int rank) const {
    throw std::system_error(std::make_error_code(std::errc::timed_out),
                            fmt::format("collective of {} ranks, rank {}: {}", n_ranks_, rank, broken_));
  }

  std::string missing() const {
    std::string who;
    for (int r = 0; r < n_ranks_; ++r)
      if (!here_[static_cast<size_t>(r)]) who += fmt::format("{}{}", who.empty() ? "" : ", ", r);
    return fmt::format("rank {} did not arrive within {} ms", who, deadline_.count());
  }

  void check_parts() {
    for (int r = 1; r < n_ranks_; ++r) {
      const contribution &a = parts[0], &b = parts[static_cast<size_t>(r)];
      if (a.op != b.op || a.n != b.n)
        return break_group(
            fmt::format("rank 0 calls {} of {} values, rank {} calls {} of {}", name(a.op), a.n, r, name(b.op), b.n));
    }
  }

  const int n_ranks_;
  const std::chrono::milliseconds deadline_;
  std::mutex mutex_;
  std::condition_variable woken_;
  std::atomic<uint64_t> round_ = 0;
  int n_here_ = 0, n_done_ = 0;
  bool fits_ = true; // the contributions of the last full round
  std::vector<bool> here_;
  std::string broken_;
};

class host_collective final : public collective {
public:
  host_collective(int rank, std::shared_ptr<meeting> all) : rank_(rank), all_(std::move(all)) {}

  int rank() const override { return rank_; }
  int n_ranks() const override { return all_->n_ranks(); }

  void all_reduce_sum(std::span<float> values) override {
    all_->arrive(rank_, {operation::all_reduce_sum, values.data(), values.data(), values.size()});
    const auto n = static_cast<size_t>(n_ranks()), mine = static_cast<size_t>(rank_);
    const size_t end = values.size() * (mine + 1) / n;
    for (size_t i = values.size() * mine / n; i < end; ++i) {
      float sum = all_->parts[0].in[i];
      for (size_t r = 1; r < n; ++r) sum += all_->parts[r].in[i];
      for (size_t r = 0; r < n; ++r) all_->parts[r].out[i] = sum;
    }
    all_->leave();
  }

  void all_gather(std::span<float> out, std::span<const float> in) override {
    TROUPE_CHECK(out.size() == in.size() * static_cast<size_t>(n_ranks()), "a gather has room for every rank");
    all_->arrive(rank_, {operation::all_gather, out.data(), in.data(), in.size()});
    for (size_t r = 0; r < static_cast<size_t>(n_ranks()); ++r)
      std::copy_n(all_->parts[r].in, in.size(), out.data() + r * in.size());
    all_->leave();
  }

  void abort() override { all_->abort(); }

private:
  int rank_;
  std::shared_ptr<meeting> all_; // shared by the members of a group, which end in any order
};

} // namespace

std::vector<std::unique_ptr<collective>> make_host_collectives(int n_ranks, std::chrono::milliseconds deadline) {
  TROUPE_CHECK(n_ranks >= 1, "a group has a member");
  auto all = std::make_shared<meeting>(n_ranks, deadline);
  std::vector<std::unique_ptr<collective>> members;
  for (int r = 0; r < n_ranks; ++r) members.push_back(std::make_unique<host_collective>(r, all));
  return members;
}

} // namespace troupe
