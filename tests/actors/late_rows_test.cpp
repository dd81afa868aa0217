// Steps that begin before their side-table rows are read: order, failures, a reader that dies, a disk that hangs.
#include "tests/actors/threaded_ring.h"
#include "tests/says.h"

#include <atomic>
#include <set>
#include <utility>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

// A rank's model and its disk, as they know of each other: which generated rows the model has begun.
class begun_rows {
public:
  void begin(std::span<const sequence_rows> rows) {
    const std::lock_guard hold(mutex_);
    for (const auto& r : rows)
      if (r.start >= r.n_prompt) begun_.emplace(r.slot, r.start);
    changed_.notify_all();
  }
  // False: the rank waits for the disk instead.
  bool await(const sequence_rows& row) {
    std::unique_lock hold(mutex_);
    return changed_.wait_for(hold, 20s, [&] { return begun_.count({row.slot, row.start}) > 0; });
  }
  bool await_any() {
    std::unique_lock hold(mutex_);
    return changed_.wait_for(hold, 20s, [&] { return !begun_.empty(); });
  }
  void hang(bool on) {
    const std::lock_guard hold(mutex_);
    hangs_ = on;
    changed_.notify_all();
  }
  void await_disk() {
    std::unique_lock hold(mutex_);
    changed_.wait(hold, [&] { return !hangs_; });
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::pair<int32_t, int64_t>> begun_; // slot and position
  bool hangs_ = false;
};

class eager_model final : public scripted_model {
public:
  eager_model(std::shared_ptr<script> s, std::shared_ptr<begun_rows> begun)
      : scripted_model(std::move(s), tiny_text()->words()->size()), begun_(std::move(begun)) {}
  bool runs_ahead(int64_t) const override { return true; }
  std::span<const float> forward(std::span<const sequence_rows> rows, record_source& records) override {
    begun_->begin(rows);
    return scripted_model::forward(rows, records);
  }

private:
  std::shared_ptr<begun_rows> begun_; // shared with the disk and the test
};

struct disk {
  std::shared_ptr<begun_rows> begun = std::make_shared<begun_rows>();
  int64_t broken_from = INT64_MAX; // rows from this position on cannot be read
  std::atomic<int> dies_in = -1;   // so many reads of generated rows from now the reader ends; -1: it does not
  std::atomic<int> opens_fail = 0; // so many times
  std::atomic<int> n_late = 0;     // reads of rows whose step had begun
};

// Reads generated rows when their step has begun, and no sooner.
class late_tables final : public table_reader {
public:
  explicit late_tables(std::shared_ptr<disk> d) : disk_(std::move(d)) {}
  int64_t record_bytes_per_token() const override { return 1; }
  void read(std::span<const sequence_rows> rows, std::span<std::byte>) override {
    for (const auto& r : rows)
      if (r.start >= disk_->broken_from)
        throw std::system_error(std::make_error_code(std::errc::io_error), "rows.bin: row 9");
    if (std::any_of(rows.begin(), rows.end(), [](const auto& r) { return r.start == 0; })) return; // prompts
    if (!disk_->begun->await(rows[0])) throw std::runtime_error("the step was not begun");
    ++disk_->n_late;
    disk_->begun->await_disk();
    if (disk_->dies_in >= 0 && disk_->dies_in-- == 0) throw 7; // no exception that anyone expects
  }

private:
  std::shared_ptr<disk> disk_; // shared with the test
};

struct late_ring {
  explicit late_ring(int32_t n_ranks, std::chrono::milliseconds deadline = rows_deadline)
      : r(
            n_ranks, [this](int32_t rank) { return std::make_unique<eager_model>(says_letters(), disks[rank]->begun); },
            [this](int32_t rank) {
              if (disks[rank]->opens_fail-- > 0) throw std::runtime_error("tables.bin: gone");
              return std::make_unique<late_tables>(disks[rank]);
            },
            deadline) {}

  static std::shared_ptr<script> says_letters() {
    auto s = std::make_shared<script>();
    s->answer = tiny_text()->words()->encode(" a b c d e f");
    return s;
  }
  std::shared_ptr<disk> disks[2] = {std::make_shared<disk>(), std::make_shared<disk>()};
  threaded_ring r;
};

// The turn ends as on a disk without faults.
void check_whole(waiting_sink& out) {
  REQUIRE(out.wait_end());
  CHECK(out.error.message == "");
  CHECK(out.choices.at(0).content == " a b c d e f");
}

} // namespace

TEST_CASE("late rows: a rank begins its step before the rows of it are read, and the text is what it is") {
  for (const int32_t n_ranks : {1, 2}) {
    CAPTURE(n_ranks);
    late_ring l(n_ranks);
    const auto out = l.r.ask("Hello");
    check_whole(*out);
    for (int32_t rank = 0; rank < n_ranks; ++rank) CHECK(l.disks[rank]->n_late >= 6);
  }
}

TEST_CASE("late rows: a row that cannot be read fails its sequence alone, with 503, though it ran with the others") {
  for (const int32_t n_ranks : {1, 2}) {
    CAPTURE(n_ranks);
    late_ring l(n_ranks);
    const std::string words = "One two three four five six seven eight nine ten eleven twelve";
    const auto n = static_cast<int64_t>(tiny_text()->words()->encode(words).size());
    REQUIRE(n > 16);
    l.disks[n_ranks - 1]->broken_from = n + 2;
    const auto good = l.r.ask("Hi"), bad = l.r.ask(words);
    REQUIRE(good->wait_end());
    REQUIRE(bad->wait_end());
    CHECK(bad->error.status == 503);
    CHECK(says(bad->error.message, n_ranks == 1 ? "rows.bin" : "rank 1 lacks"));
    REQUIRE(bad->choices.size() == 1);
    CHECK(bad->choices[0].ids.size() == 3); // the first ones were sound
    CHECK(good->error.message == "");
    CHECK(good->choices.at(0).content == " a b c d e f");
    const auto late = l.r.ask("Hi");
    REQUIRE(late->wait_end());
    CHECK(late->choices.at(0).content == " a b c d e f");
    CHECK(l.r.numbers->restarts == 0);
  }
}

TEST_CASE(
    "late rows: a reader that dies under a step is replaced, and the step that waits gets the rows of the new one") {
  late_ring l(1);
  l.disks[0]->dies_in = 2;
  const auto out = l.r.ask("Hello");
  check_whole(*out);
  CHECK(out->notes.empty());
  CHECK(l.r.numbers->restarts == 1);
  CHECK(l.r.numbers->dropped_messages == 0);
}

TEST_CASE("late rows: a new epoch that a dying reader never heard of reaches its rank all the same") {
  late_ring l(1);
  l.disks[0]->begun->hang(true);
  const auto out = l.r.ask("Hello");
  REQUIRE(l.disks[0]->begun->await_any());
  caf::anon_send_exit(l.r.engine.scheduler, caf::exit_reason::kill);
  REQUIRE(l.r.await_restarts(1)); // the new epoch's wiring lies behind the step that is being read
  l.disks[0]->dies_in = 0;
  l.disks[0]->begun->hang(false);
  check_whole(*out);
  CHECK(l.r.numbers->restarts == 2);
}

TEST_CASE(
    "late rows: where the new reader finds no tables, the step that waits fails with 503, and the next one is read") {
  late_ring l(1);
  l.disks[0]->dies_in = 2;
  l.disks[0]->opens_fail = 1;
  const auto out = l.r.ask("Hello");
  REQUIRE(out->wait_end());
  CHECK(out->error.status == 503);
  CHECK(says(out->error.message, "tables.bin: gone"));
  CHECK(out->choices.at(0).ids.size() == 3);
  const auto next = l.r.ask("Hello");
  REQUIRE(next->wait_end());
  CHECK(next->choices.at(0).content == " a b c d e f");
  CHECK(l.r.numbers->restarts == 1); // of the reader that died
}

TEST_CASE("late rows: a disk that hangs past the deadline fails the step's sequences with 503, and then goes on") {
  late_ring l(1, 500ms);
  l.disks[0]->begun->hang(true);
  const auto out = l.r.ask("Hello");
  REQUIRE(out->wait_end());
  CHECK(out->error.status == 503);
  CHECK(says(out->error.message, "were not read within 500 ms"));
  l.disks[0]->begun->hang(false);
  const auto next = l.r.ask("Hello");
  check_whole(*next);
}

TEST_CASE("late rows: a rank that waits for a disk ends when it is told to") {
  late_ring l(1);
  l.disks[0]->begun->hang(true);
  const auto out = l.r.ask("Hello");
  REQUIRE(l.disks[0]->begun->await_any());
  {
    caf::scoped_actor self{l.r.system};
    self->monitor(l.r.engine.ranks[0]);
    caf::anon_send_exit(l.r.supervisor, caf::exit_reason::user_shutdown);
    bool is_down = false;
    self->receive([&](const caf::down_msg&) { is_down = true; }, caf::after(20s) >> [] {});
    CHECK(is_down);
  }
  l.disks[0]->begun->hang(false);
}
