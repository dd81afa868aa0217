// Counters of /metrics only rise, whatever dies: what resets them would show as a rate that never was.
#include "net/metrics_text.h"
#include "tests/net/socket_world.h"

#include <doctest/doctest.h>

#include <map>
#include <sstream>

using namespace troupe;

namespace {

// Samples of counters and of the buckets, counts and sums of histograms, by name and labels.
std::map<std::string, double> counter_samples(const std::string& text) {
  std::map<std::string, double> out;
  std::istringstream lines(text);
  bool rises = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) rises = line.ends_with(" counter") || line.ends_with(" histogram");
    if (line.starts_with("#") || !rises) continue;
    const size_t space = line.rfind(' ');
    out[line.substr(0, space)] = std::stod(line.substr(space + 1));
  }
  return out;
}

struct counting_world {
  explicit counting_world(const batch_limits& limits)
      : r(w, limits, 1, [](ring_config& c) {
          c.prefix.snapshot_bytes = 1;
          c.prefix.snapshot_memory_bytes = 64;
          c.prefix.snapshot_interval = 8;
          c.prefix.snapshot_slack = 1;
        }) {}
  std::map<std::string, double> samples() const { return counter_samples(metrics_text(*r.numbers, http, 0, "m", 8)); }
  double sample(const std::string& name) const {
    double sum = 0;
    for (const auto& [key, value] : samples())
      if (key.starts_with(name + "{")) sum += value;
    return sum;
  }
  http_counts http;
  world w;
  scripted_ring r;
};

} // namespace

TEST_CASE("metrics: no counter falls when an actor is replaced, and all of them go on") {
  auto limits = scripted_ring::small_limits();
  limits.n_blocks = 20; // three turns begin, and do not all fit when they are longer
  limits.overcommit = true;
  limits.max_queue = 16;
  for (const std::string kind : {"scheduler", "kv_cache", "fan_out", "engram_fetch", "rank"}) {
    CAPTURE(kind);
    counting_world c(limits);
    c.r.say(" one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen");
    c.r.supervise();
    const auto load = [&] {
      std::vector<std::shared_ptr<recording_sink>> sinks;
      for (int i = 0; i < 4; ++i) {
        auto q = c.r.completion("The same prompt for all of them, of more than a chunk of sixteen tokens", 64);
        q.sampling.ignore_eos = true;
        sinks.push_back(sink());
        if (i == 0) sinks.back()->next_state = turn_sink::state::full;
        c.r.start(std::move(q), sinks.back());
      }
      return sinks;
    };
    auto before = c.samples();
    std::string fallen;
    const auto run = [&] {
      for (int n = 0; c.w.run_once(); ++n) {
        if (n % 16 != 0) continue;
        auto now = c.samples();
        for (const auto& [name, value] : before)
          if (now[name] < value && fallen.empty()) fallen = name;
        before = std::move(now);
      }
    };
    const auto finish = [&](const auto& sinks, uint64_t first_turn) {
      sinks[0]->next_state = turn_sink::state::ok;
      caf::anon_send(c.r.engine.journal, stream_resumed{turn_id{first_turn}});
      run();
      for (const auto& s : sinks) CHECK(s->has_ended());
    };
    auto sinks = load();
    run();
    finish(sinks, 1);
    std::map<std::string, double> at_kill;
    for (const char* name : {"troupe_steps_total", "troupe_rows_total", "vllm:num_preemptions_total",
                             "troupe_graph_replays_total", "troupe_stream_pauses_total", "vllm:prefix_cache_hits_total",
                             "troupe_prefix_cache_hit_tokens_total", "vllm:generation_tokens_total"}) {
      at_kill[name] = c.sample(name);
      CAPTURE(name);
      CHECK(at_kill[name] > 0);
    }
    CHECK(c.r.numbers->sink_full == 1); // paused once, whatever has come since
    const auto w = c.r.who();
    sinks = load();
    for (int n = 0; n < 60; ++n) c.w.run_once();
    caf::anon_send_exit(kind == "scheduler"      ? w.scheduler
                        : kind == "kv_cache"     ? w.kv_cache
                        : kind == "fan_out"      ? w.fan_out
                        : kind == "engram_fetch" ? w.engram_fetches[0]
                                                 : w.rank_actors[0],
                        caf::exit_reason::kill);
    run();
    finish(sinks, 5);
    CHECK(fallen == "");
    for (const auto& [name, value] : at_kill) {
      CAPTURE(name);
      CHECK(c.sample(name) > value);
    }
    CHECK(c.r.numbers->paused == 0);
    CHECK(c.r.is_idle());
  }
}
