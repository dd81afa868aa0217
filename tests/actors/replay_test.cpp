// Random loads and faults in virtual time: a seed decides everything, so the same one gives the same messages, and one
// that fails says how to run it again. TROUPE_REPLAY_SEED=n: that one; TROUPE_REPLAY_SEEDS=n: so many.
#include "actors/request.h"
#include "storage/check.h"
#include "tests/actors/witness_model.h"
#include "tests/actors/world.h"
#include "tests/safetensors_writer.h"

#include <doctest/doctest.h>

#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

const std::string answer = " some words that go on for a while STOP and on, and then a few more of them";

struct replayed {
  chat_request request;
  request_actor actor;
  std::shared_ptr<recording_sink> sink = std::make_shared<recording_sink>();
  bool has_left = false;
};

// What happened to the disk tier, over all seeds.
struct disk_counts {
  int64_t n_reads = 0, n_read_errors = 0, n_write_errors = 0;
};

class play {
public:
  explicit play(uint64_t seed) : random_(seed), r_(w_, limits(), n_ranks(), [this](ring_config& c) { plan(c); }) {
    r_.say(answer);
    for (auto& s : r_.scripts) s->wrong_every = 3;
    r_.supervise();
    n_clients_ = 3 + below(10);
    n_kills_ = n_faults_ = below(4);
  }

  void run() {
    for (int i = 0; i < 300000 && !is_over(); ++i) {
      act();
      if (!w_.run_once()) w_.advance(20ms);
    }
    for (auto& c : clients_) wake(c);
    for (int i = 0; i < 100 && (w_.run(), !all_ended()); ++i) w_.advance(100ms);
    for (int i = 0; i < 10; ++i) w_.advance(1s); // a restart may be waiting for its turn
    check();
  }
  ~play() { fault::disarm_all(); }
  void trace_content() { w_.hashes_content = true; }
  uint64_t trace() const { return w_.trace_hash; }
  void add_to(disk_counts& n) const {
    n.n_reads += r_.numbers->disk_reads;
    n.n_read_errors += r_.numbers->disk_read_errors;
    n.n_write_errors += r_.numbers->disk_write_errors;
  }

private:
  uint64_t below(uint64_t n) { return random_() % n; }
  bool one_in(uint64_t n) { return below(n) == 0; }

  batch_limits limits() {
    batch_limits l;
    l.max_running = 2 + static_cast<int32_t>(below(4));
    l.max_queue = 4 + static_cast<int32_t>(below(8));
    l.chunk_tokens = 8 + static_cast<int32_t>(below(24));
    l.n_blocks = 24 + static_cast<int64_t>(below(40));
    l.block_tokens = 8;
    if (one_in(2)) l.drafts = {5, 5, one_in(2)};
    has_drafts_ = l.drafts.block > 0;
    l.overcommit = one_in(2);
    return l;
  }
  int32_t n_ranks() { return 1 + static_cast<int32_t>(below(2)); }
  void plan(ring_config& c) {
    if (!one_in(4)) {
      c.prefix.snapshot_bytes = 1;
      c.prefix.snapshot_memory_bytes = static_cast<int64_t>(below(12)) + 1;
      c.prefix.snapshot_interval = static_cast<int64_t>(below(3)) * 8;
      c.prefix.snapshot_slack = witness_model::slack;
      c.prefix.block_bytes = c.limits.block_tokens * int64_t{sizeof(int32_t)};
      if (one_in(2)) c.prefix.host_cache_bytes = c.prefix.block_bytes * static_cast<int64_t>(1 + below(30));
      if (c.prefix.host_cache_bytes > 0 && one_in(2)) plan_disk(c);
    }
    c.make_rank = [this](int32_t rank) {
      rank_parts p;
      auto& s = r_.scripts[static_cast<size_t>(rank)];
      s->draft_block = has_drafts_ ? 5 : 0;
      p.weights = std::make_unique<witness_model>(s, tiny_text()->words()->size());
      return p;
    };
  }

  void plan_disk(ring_config& c) {
    folder_.emplace();
    c.prefix.disk_cache_bytes = static_cast<int64_t>(2000 + below(20000));
    c.prefix.disk_min_tokens = static_cast<int64_t>(1 + below(20));
    c.prefix.fingerprint = "fp_replay";
    c.disk = tier_disk_config{folder_->path(), "fp_replay", 0, 1, c.prefix.disk_cache_bytes};
  }

  void act() {
    if (clients_.size() < n_clients_ && one_in(12)) arrive();
    if (!clients_.empty() && one_in(60)) leave(clients_[below(clients_.size())]);
    if (!clients_.empty() && one_in(60)) stall(clients_[below(clients_.size())]);
    if (!clients_.empty() && one_in(10)) wake(clients_[below(clients_.size())]);
    // Two scripted ranks have no collective to agree in, on what failed on one of them.
    if (r_.scripts.size() == 1 && one_in(300)) r_.tables->n_failures = 1 + static_cast<int32_t>(below(2));
    if (n_kills_ > 0 && one_in(120)) kill();
    if (folder_ && one_in(40)) break_disk();
    if (one_in(40)) w_.advance_only(std::chrono::milliseconds(below(30)));
  }
  void arrive() {
    auto& c = clients_.emplace_back();
    std::string prompt = one_in(2) ? "the same beginning of a prompt that some share," : "p";
    for (auto k = below(40); k > 0; --k) prompt += one_in(3) ? " word" : " other";
    c.request = r_.completion(prompt, 1 + static_cast<int64_t>(below(35)), one_in(3) ? 2 : 1);
    if (one_in(3)) c.request.stop = {"STOP"};
    if (one_in(4)) c.request.sampling.n_logprobs = 2;
    c.request.priority = static_cast<int32_t>(below(3)) * 5;
    c.actor = r_.start(c.request, c.sink);
  }
  void leave(replayed& c) {
    c.has_left = true;
    caf::anon_send(c.actor, client_gone{c.request.turn});
  }
  static void stall(replayed& c) { c.sink->next_state = turn_sink::state::full; }
  void wake(replayed& c) {
    c.sink->next_state = turn_sink::state::ok;
    caf::anon_send(r_.engine.journal, stream_resumed{c.request.turn});
  }
  void kill() {
    --n_kills_;
    const auto who = r_.who();
    std::vector<caf::strong_actor_ptr> ring{who.scheduler, who.kv_cache, who.fan_out, who.engram_fetches.back(),
                                            who.rank_actors.front()};
    if (!who.disks.empty()) ring.push_back(who.disks.front());
    caf::anon_send_exit(ring[below(ring.size())], caf::exit_reason::kill);
  }

  // Some writes or reads fail, or a file that is there is cut or changed.
  void break_disk() {
    constexpr std::array points{"tier_files.no_space", "tier_files.write_error", "tier_files.torn",
                                "tier_files.read_error", "tier_files.short_read"};
    const auto what = below(points.size() + 2);
    if (what < points.size()) return fault::arm(points[what], below(3), 1 + below(4));
    std::vector<std::filesystem::path> files;
    for (const auto& f : std::filesystem::recursive_directory_iterator(folder_->path()))
      if (f.path().extension() == ".tier") files.push_back(f.path());
    if (files.empty()) return;
    std::sort(files.begin(), files.end()); // by their numbers
    const auto& victim = files[below(files.size())];
    const auto size = std::filesystem::file_size(victim);
    if (size == 0) return;
    if (what == points.size()) return std::filesystem::resize_file(victim, below(size));
    std::fstream f(victim, std::ios::binary | std::ios::in | std::ios::out);
    f.seekp(static_cast<std::streamoff>(below(size)));
    f.put('x');
  }

  bool all_ended() const {
    return std::all_of(clients_.begin(), clients_.end(),
                       [](const replayed& c) { return c.sink->has_ended() || c.has_left; });
  }
  bool is_over() const { return clients_.size() == n_clients_ && n_kills_ == 0 && all_ended(); }

  void check() {
    const auto ids = r_.text->words()->encode(answer);
    int64_t n_refused = 0;
    for (const auto& c : clients_) {
      CHECK(c.sink->n_opens <= 1);
      CHECK(c.sink->n_failures <= 1);
      CHECK((c.sink->has_ended() || c.has_left));
      n_refused += c.sink->n_opens == 0 && c.sink->n_failures == 1;
      for (const auto& choice : c.sink->choices) {
        CHECK(choice.n_ends <= 1);
        REQUIRE(choice.ids.size() <= ids.size() + 1);
        CHECK(
            std::equal(choice.ids.begin(), choice.ids.begin() + std::min(choice.ids.size(), ids.size()), ids.begin()));
        if (choice.n_ends == 1 && choice.cause == finish_cause::length)
          CHECK(static_cast<int64_t>(choice.ids.size()) == c.request.max_tokens);
        if (choice.n_ends == 1 && !choice.stop_string.empty())
          CHECK(choice.content == answer.substr(0, answer.find("STOP")));
      }
    }
    const auto& n = *r_.numbers;
    CHECK(n.ended_stop + n.ended_length + n.ended_abort + n.ended_error + n_refused >=
          static_cast<int64_t>(clients_.size()));
    CHECK(r_.is_idle());
    CHECK(n.running == 0);
    CHECK(n.now == phase::ready);
    CHECK(r_.failure == "");
    CHECK(n.restarts <= static_cast<int64_t>(n_faults_)); // nothing else breaks, the witness model for one
  }

  std::mt19937_64 random_;
  bool has_drafts_ = false;
  std::optional<test::temp_folder> folder_; // of the disk tier
  world w_;
  scripted_ring r_;
  std::vector<replayed> clients_;
  size_t n_clients_ = 0;
  uint64_t n_kills_ = 0, n_faults_ = 0;
};

std::string how_to_replay; // the seed that runs now

// A broken TROUPE_CHECK or a crash unwinds nothing, so doctest shows no INFO then.
void say_on_crash(int signal) {
  [[maybe_unused]] const auto n = ::write(STDERR_FILENO, how_to_replay.data(), how_to_replay.size());
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

struct crash_says_seed {
  static constexpr std::array signals{SIGABRT, SIGSEGV, SIGFPE, SIGBUS};
  crash_says_seed() {
    for (size_t i = 0; i < signals.size(); ++i) before[i] = std::signal(signals[i], say_on_crash);
  }
  ~crash_says_seed() {
    for (size_t i = 0; i < signals.size(); ++i) std::signal(signals[i], before[i]);
  }
  std::array<void (*)(int), signals.size()> before{};
};

uint64_t run(uint64_t seed, disk_counts& n, bool traces_content = false) {
  how_to_replay =
      "replay with TROUPE_REPLAY_SEED=" + std::to_string(seed) + " build/tests/test_actors -tc='replay:*'\n";
  INFO(how_to_replay);
  const crash_says_seed on_crash;
  play p(seed);
  if (traces_content) p.trace_content();
  p.run();
  p.add_to(n);
  return p.trace();
}

std::optional<uint64_t> only_seed() {
  const char* only = std::getenv("TROUPE_REPLAY_SEED");
  return only ? std::optional<uint64_t>(std::strtoull(only, nullptr, 10)) : std::nullopt;
}

} // namespace

TEST_CASE(
    "replay: a thousand seeds of random load and faults leave nothing behind, and every client has its own words") {
  disk_counts counts;
  if (const auto only = only_seed()) {
    run(*only, counts);
    return;
  }
  uint64_t n = 1000;
  if (const char* more = std::getenv("TROUPE_REPLAY_SEEDS")) n = std::strtoull(more, nullptr, 10);
  for (uint64_t seed = 1; seed <= n; ++seed) run(seed, counts);
  MESSAGE("disk: ", counts.n_reads, " reads, ", counts.n_read_errors, " failed, and ", counts.n_write_errors,
          " writes");
  if (n < 1000) return;
  CHECK(counts.n_reads > 30);
  CHECK(counts.n_read_errors > 20);
  CHECK(counts.n_write_errors > 100);
}

TEST_CASE("replay: the same seed gives the same messages in the same order, down to their fields") {
  disk_counts counts;
  const auto only = only_seed();
  for (uint64_t seed = only.value_or(1); seed <= only.value_or(50); ++seed) {
    CAPTURE(seed);
    CHECK(run(seed, counts, true) == run(seed, counts, true));
  }
}

TEST_CASE("replay: one other token in a prompt is another trace") {
  const auto trace_of = [](const std::string& prompt) {
    world w;
    w.hashes_content = true;
    scripted_ring r(w);
    r.say("words");
    const auto sink = std::make_shared<recording_sink>();
    auto request = r.completion("", 4);
    request.prompts.clear();
    request.prompt_ids = {r.text->words()->encode(prompt)};
    r.start(request, sink);
    w.run();
    CHECK(sink->has_ended());
    return w.trace_hash;
  };
  CHECK(trace_of("a word") == trace_of("a word"));
  CHECK(trace_of("a word") != trace_of("b word"));
}
