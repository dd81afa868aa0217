// Decode with drafts against without, over the shipped model, turn about in one process so that noise meets both.
//   bench_spec [ROUNDS]
#include "actors/request.h"
#include "actors/system.h"
#include "bench/bench.h"
#include "storage/log.h"

#include <caf/all.hpp>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

using namespace troupe;

namespace {

constexpr int64_t n_answer = 256;

// Counts turns that ended; one for all turns of a round.
class ends {
public:
  void add() {
    const std::lock_guard hold(mutex_);
    ++n_;
    changed_.notify_all();
  }
  void wait(int n) {
    std::unique_lock hold(mutex_);
    changed_.wait(hold, [&] { return n_ >= n; });
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int n_ = 0;
};

class ending_sink : public turn_sink {
public:
  explicit ending_sink(ends& all) : all_(all) {}
  void open(std::span<const int32_t>) override {}
  state push(std::span<const turn_delta> deltas) override {
    for (const auto& d : deltas)
      if (d.what == turn_delta::kind::end) all_.add();
    return state::ok;
  }
  void fail(const api_error& e) override {
    std::fprintf(stderr, "failed: %s\n", e.message.c_str());
    all_.add();
  }

private:
  ends& all_;
};

struct server {
  struct config : caf::actor_system_config {
    config() { configure(*this); }
  };
  explicit server(const char* spec) : engine(system, with(spec), std::make_shared<counters>()) { engine.load(); }
  static settings with(const char* spec) {
    settings s;
    s.model = TROUPE_SOURCE_DIR "/etc/models/tiny";
    s.spec = spec;
    return s;
  }
  // Microseconds until `n` streams of this prompt have ended, their prompts cached.
  double run(const char* text, float temperature, int n) {
    ends all;
    const double began = bench::now_us();
    for (int i = 0; i < n; ++i) {
      chat_request r;
      r.turn = turn_id{++last_turn};
      r.id = "bench";
      r.chat.thinking = false;
      r.chat.messages.emplace_back().parts.push_back({text, -1});
      r.max_tokens = n_answer;
      r.sampling.temperature = temperature;
      r.sampling.seed = last_turn;
      r.sampling.ignore_eos = true;
      spawn_request(system, engine.parts(), std::move(r), std::make_shared<ending_sink>(all));
    }
    all.wait(n);
    return bench::now_us() - began;
  }
  config values;
  caf::actor_system system{values};
  runtime engine;
  uint64_t last_turn = 0;
};

} // namespace

int main(int n_arguments, char** arguments) {
  const int n_rounds = n_arguments > 1 ? std::atoi(arguments[1]) : 9;
  spdlog::set_level(spdlog::level::warn);
  server none("none"), dspark("dspark");
  const struct {
    const char *name, *text;
    float temperature;
  } texts[] = {{"counting", "Count from 1 to 100.", 0},
               {"story", "Tell me a story.", 0},
               {"hot story", "Tell me a story.", 1.5F}};
  std::printf("text,streams,none_tok_s,dspark_tok_s,ratio\n");
  for (const auto& t : texts)
    for (const int n : {1, 2, 4, 8, 16}) {
      std::vector<double> without, with, ratio;
      none.run(t.text, t.temperature, n);
      dspark.run(t.text, t.temperature, n);
      for (int i = 0; i < n_rounds; ++i) {
        const double a = none.run(t.text, t.temperature, n), b = dspark.run(t.text, t.temperature, n);
        without.push_back(1e6 * n * n_answer / a);
        with.push_back(1e6 * n * n_answer / b);
        ratio.push_back(a / b);
      }
      std::printf("%s,%d,%.0f,%.0f,%.3f\n", t.name, n, bench::median(without), bench::median(with),
                  bench::median(ratio));
      std::fflush(stdout);
    }
  none.engine.stop();
  dspark.engine.stop();
  return 0;
}
