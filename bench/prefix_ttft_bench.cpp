// Time to the first token of a 12,700-token prompt of the shipped model: computed, then found in the prefix cache.
#include "actors/request.h"
#include "actors/system.h"
#include "bench/bench.h"
#include "storage/log.h"

#include <caf/all.hpp>

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <vector>

using namespace troupe;

namespace {

constexpr int64_t n_prompt = 12700, n_answer = 24, n_hits = 7;

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

} // namespace

int main() {
  spdlog::set_level(spdlog::level::warn);
  struct config : caf::actor_system_config {
    config() { configure(*this); }
  };
  config values;
  caf::actor_system system{values};
  settings s;
  s.model = TROUPE_SOURCE_DIR "/etc/models/tiny";
  s.max_running = 4;
  runtime engine(system, s, std::make_shared<counters>());
  engine.load();
  std::vector<int32_t> prompt;
  uint32_t x = 1;
  for (int64_t i = 0; i < n_prompt; ++i)
    prompt.push_back(300 + static_cast<int32_t>((x = x * 1664525U + 1013904223U) >> 24));
  std::printf("request,cached_tokens,first_token_ms,decode_step_ms\n");
  for (int64_t i = 0; i <= n_hits; ++i) {
    chat_request r;
    r.turn = turn_id{static_cast<uint64_t>(i) + 1};
    r.id = "bench";
    r.is_chat = false;
    r.prompt_ids = {prompt};
    r.max_tokens = n_answer;
    r.sampling.temperature = 0;
    r.sampling.ignore_eos = true;
    const auto sink = std::make_shared<timing_sink>();
    const double began = bench::now_us();
    spawn_request(system, engine.parts(), std::move(r), sink);
    sink->wait();
    std::printf("%s,%lld,%.2f,%.2f\n", i == 0 ? "computed" : "found", static_cast<long long>(sink->cached()),
                (sink->first_us() - began) / 1e3, sink->step_us() / 1e3);
    std::fflush(stdout);
  }
  engine.stop();
  return 0;
}
