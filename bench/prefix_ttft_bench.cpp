// Time to the first token of a 12,700-token prompt of the shipped model: computed, then found in each tier of the
// prefix cache: on the device, in host memory (another prompt of its length has the device), on disk behind a restart.
#include "actors/request.h"
#include "actors/system.h"
#include "bench/bench.h"
#include "storage/log.h"

#include <caf/all.hpp>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

using namespace troupe;

namespace {

constexpr int64_t n_prompt = 12700, n_answer = 24, n_hits = 7;
const std::string model_folder = TROUPE_SOURCE_DIR "/etc/models/tiny";

// When each push came.
class timing_sink : public turn_sink {
public:
  void open(std::span<const int32_t>) override {}
  state push(std::span<const turn_delta> deltas) override {
    const std::lock_guard hold(mutex_);
    at_us_.push_back(bench::now_us());
    for (const auto& d : deltas) {
      cached_ = d.usage.cached_tokens;
      has_ended_ = has_ended_ || d.what == turn_delta::kind::end;
    }
    changed_.notify_all();
    return state::ok;
  }
  void fail(const api_error& e) override {
    const std::lock_guard hold(mutex_);
    std::fprintf(stderr, "failed: %s\n", e.message.c_str());
    has_ended_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock hold(mutex_);
    changed_.wait(hold, [&] { return has_ended_; });
  }
  double first_us() const { return at_us_.empty() ? 0 : at_us_.front(); }
  double step_us() const { // median between pushes
    std::vector<double> gaps;
    for (size_t i = 1; i + 1 < at_us_.size(); ++i) gaps.push_back(at_us_[i] - at_us_[i - 1]);
    return bench::median(gaps);
  }
  int64_t cached() const { return cached_; }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<double> at_us_;
  int64_t cached_ = 0;
  bool has_ended_ = false;
};

std::vector<int32_t> make_prompt(uint32_t seed) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < n_prompt; ++i)
    out.push_back(300 + static_cast<int32_t>((seed = seed * 1664525U + 1013904223U) >> 24));
  return out;
}

// One life of a server.
class life {
public:
  explicit life(settings s) : engine_(system_, fill(std::move(s)), std::make_shared<counters>()) { engine_.load(); }
  ~life() { engine_.stop(); }
  // One request, as a line of the table (none without a name). Median time of a decode step.
  double ask(const std::vector<int32_t>& prompt, const char* name, double step_of_goal_us = 0) {
    chat_request r;
    r.turn = turn_id{++last_turn_};
    r.id = "bench";
    r.is_chat = false;
    r.prompt_ids = {prompt};
    r.max_tokens = n_answer;
    r.sampling.temperature = 0;
    r.sampling.ignore_eos = true;
    const auto sink = std::make_shared<timing_sink>();
    const double began = bench::now_us();
    spawn_request(system_, engine_.parts(), std::move(r), sink);
    sink->wait();
    const double first = sink->first_us() - began, step = sink->step_us();
    const double goal = step_of_goal_us > 0 ? 2 * step_of_goal_us + 10e3 : 0;
    if (name)
      std::printf("%s,%lld,%.2f,%.2f,%.2f\n", name, static_cast<long long>(sink->cached()), first / 1e3, step / 1e3,
                  goal / 1e3);
    std::fflush(stdout);
    return step;
  }

private:
  static settings fill(settings s) {
    s.model = model_folder;
    s.max_running = 4;
    return s;
  }
  struct config : caf::actor_system_config {
    config() { configure(*this); }
  };
  config values_;
  caf::actor_system system_{values_};
  runtime engine_;
  uint64_t last_turn_ = 0;
};

// Room on the device for one prompt of this length.
settings tight() {
  const auto bytes = plan_state(model_folder, host_caches);
  settings s;
  s.max_context = 13000;
  s.kv_memory_bytes = bytes.per_slot * 4 + bytes.per_block * 230;
  return s;
}

} // namespace

int main() {
  spdlog::set_level(spdlog::level::warn);
  const auto prompt = make_prompt(1), other = make_prompt(2);
  std::printf("request,cached_tokens,first_token_ms,decode_step_ms,goal_ms\n");
  double step_us = 0; // what the goal is made of, from the same run
  {
    life l({});
    step_us = l.ask(prompt, "computed");
    for (int64_t i = 0; i < n_hits; ++i) l.ask(prompt, "device", step_us);
  }
  {
    life l(tight());
    l.ask(prompt, nullptr);
    l.ask(other, nullptr);
    for (int64_t i = 0; i < n_hits; ++i) l.ask(i % 2 == 0 ? prompt : other, "memory", step_us);
  }
  const auto folder = std::filesystem::temp_directory_path() / ("troupe_bench_" + std::to_string(::getpid()));
  settings on_disk;
  on_disk.disk_cache_dir = folder.string();
  life(on_disk).ask(prompt, nullptr);
  for (int64_t i = 0; i < n_hits; ++i) life(on_disk).ask(prompt, "disk", step_us);
  std::filesystem::remove_all(folder);
  return 0;
}
