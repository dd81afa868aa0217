// Decode with drafts against without, over the shipped model. Both run in one process in short slices, in pairs whose
// order changes, and the ratio is the median of the pairs' ratios: other load meets both halves of a pair alike.
//   bench_spec [PAIRS] [TEXT] [STREAMS,...]
#include "actors/request.h"
#include "actors/system.h"
#include "bench/bench.h"
#include "storage/log.h"

#include <caf/all.hpp>

#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <numeric>
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
  explicit server(const char* spec) : engine(system, with(spec), numbers) { engine.load(); }
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
  std::shared_ptr<counters> numbers = std::make_shared<counters>();
  config values;
  caf::actor_system system{values};
  runtime engine;
  uint64_t last_turn = 0;
};

// "1,2,8" -> those numbers.
std::vector<int> to_numbers(const char* list) {
  std::vector<int> out;
  for (char* at = nullptr; *list; list = *at ? at + 1 : at) {
    out.push_back(static_cast<int>(std::strtol(list, &at, 10)));
    if (at == list) return {};
  }
  return out;
}

struct text {
  const char *name, *prompt;
  float temperature;
};

void compare(const text& t, int n, int n_pairs, server& none, server& dspark) {
  std::vector<double> without, with, ratio;
  none.run(t.prompt, t.temperature, n);
  dspark.run(t.prompt, t.temperature, n);
  const auto sum = [](const auto& of_place) {
    return std::accumulate(of_place.begin(), of_place.end(), 0.0, [](double a, const auto& b) { return a + b; });
  };
  const double drafts = sum(dspark.numbers->drafts_at), accepted = sum(dspark.numbers->accepted_drafts_at);
  for (int i = 0; i < n_pairs; ++i) {
    const auto run_none = [&] { return none.run(t.prompt, t.temperature, n); };
    const double first = i % 2 == 0 ? run_none() : 0;
    const double b = dspark.run(t.prompt, t.temperature, n), a = i % 2 == 0 ? first : run_none();
    without.push_back(1e6 * n * n_answer / a);
    with.push_back(1e6 * n * n_answer / b);
    ratio.push_back(a / b);
  }
  const double median = bench::median(ratio), n_tokens = static_cast<double>(n_pairs * n * n_answer);
  for (double& r : ratio) r = std::fabs(r - median);
  std::printf("%s,%d,%.0f,%.0f,%.3f,%.3f,%.3f,%.3f\n", t.name, n, bench::median(without), bench::median(with), median,
              bench::median(ratio), (sum(dspark.numbers->drafts_at) - drafts) / n_tokens,
              (sum(dspark.numbers->accepted_drafts_at) - accepted) / n_tokens);
  std::fflush(stdout);
}

} // namespace

int main(int n_arguments, char** arguments) {
  const int n_pairs = n_arguments > 1 ? std::atoi(arguments[1]) : 9;
  const char* wanted = n_arguments > 2 ? arguments[2] : "all";
  const auto streams = to_numbers(n_arguments > 3 ? arguments[3] : "1,2,4,8,16");
  if (n_pairs <= 0 || streams.empty()) {
    std::fprintf(stderr, "usage: bench_spec [PAIRS] [counting|story|hot story|all] [STREAMS,...]\n");
    return 2;
  }
  spdlog::set_level(spdlog::level::warn);
  server none("none"), dspark("dspark");
  const text texts[] = {{"counting", "Count from 1 to 100.", 0},
                        {"story", "Tell me a story.", 0},
                        {"hot story", "Tell me a story.", 1.5F}};
  std::printf("text,streams,none_tok_s,dspark_tok_s,ratio,ratio_mad,drafts_a_token,accepted_a_token\n");
  for (const auto& t : texts)
    for (const int n : streams)
      if (std::strcmp(wanted, "all") == 0 || std::strcmp(wanted, t.name) == 0) compare(t, n, n_pairs, none, dspark);
  none.engine.stop();
  dspark.engine.stop();
  return 0;
}
