// Time of the scheduler's decisions a step: has_step + plan + accept, without actors and messages.
//   bench_policy [--csv]
#include "actors/batch_policy.h"
#include "bench/bench.h"

#include <cstring>

using namespace troupe;

namespace {

struct load {
  const char* name;
  int32_t n_streams, n_prompts; // decoding; prompts that never come to an end
  int32_t n_waiting;
};

turn_admit turn(uint64_t id, int64_t n_prompt, int64_t max_tokens) {
  turn_admit t{turn_id{id}, {}};
  auto& s = t.sequences.emplace_back();
  s.turn = t.turn;
  s.id = sequence_id{id};
  s.prompt.assign(static_cast<size_t>(n_prompt), 5);
  s.max_tokens = max_tokens;
  return t;
}

struct machine {
  batch_policy policy;
  std::vector<accepted_tokens> out;
  batch_policy::time now{};
  double answer_us = 0; // the model's part, not the scheduler's: taken off

  void step() {
    now += std::chrono::milliseconds(20);
    if (!policy.has_step(now)) return;
    const step_plan plan = policy.plan(now);
    const double start = bench::now_us();
    step_result r;
    r.compute_us = 20000;
    r.results.reserve(plan.rows.size());
    for (const auto& row : plan.rows) {
      auto& s = r.results.emplace_back();
      s.id = row.id;
      s.n_tokens = row.start + static_cast<int64_t>(row.tokens.size());
      if (row.samples) s.tokens.emplace_back().id = 7;
    }
    answer_us += bench::now_us() - start;
    out.clear();
    policy.accept(std::move(r), now, out);
  }
};

bench::sample run(const load& l) {
  batch_limits limits;
  limits.max_running = l.n_streams + l.n_prompts;
  limits.max_queue = 1 << 20;
  limits.n_blocks = int64_t{1} << 30;
  machine m{batch_policy(limits), {}, {}, 0};
  uint64_t id = 1;
  for (int i = 0; i < l.n_streams; ++i) m.policy.admit(turn(id++, 10, int64_t{1} << 20), m.now);
  for (int i = 0; i < 20; ++i) m.step();
  for (int i = 0; i < l.n_prompts; ++i) m.policy.admit(turn(id++, 4 << 20, 10), m.now);
  for (int i = 0; i < l.n_waiting; ++i) m.policy.admit(turn(id++, 10, 10), m.now);
  std::vector<double> times;
  constexpr int n = 51, batch = 100;
  for (int i = 0; i < n; ++i) {
    m.answer_us = 0;
    const double start = bench::now_us();
    for (int k = 0; k < batch; ++k) m.step();
    times.push_back((bench::now_us() - start - m.answer_us) / batch);
  }
  bench::sample s;
  s.n = n;
  s.median_us = bench::median(times);
  s.min_us = *std::min_element(times.begin(), times.end());
  for (double& t : times) t = std::fabs(t - s.median_us);
  s.mad_us = bench::median(times);
  return s;
}

} // namespace

int main(int n_arguments, char** arguments) {
  const bool csv = n_arguments > 1 && std::strcmp(arguments[1], "--csv") == 0;
  const load loads[] = {{"decode", 8, 0, 0},     {"decode", 64, 0, 0},     {"decode+queue", 64, 0, 1024},
                        {"mixed", 48, 16, 0},    {"prefill", 0, 64, 1024}, {"decode", 256, 0, 0},
                        {"mixed", 192, 64, 1024}};
  if (csv)
    std::printf("load,streams,prompts,waiting,median_us,mad_us,min_us\n");
  else
    std::printf("%-14s %8s %8s %8s %10s %8s %8s\n", "load", "streams", "prompts", "waiting", "median us", "mad", "min");
  for (const auto& l : loads) {
    const auto s = run(l);
    std::printf(csv ? "%s,%d,%d,%d,%.2f,%.2f,%.2f\n" : "%-14s %8d %8d %8d %10.2f %8.2f %8.2f\n", l.name, l.n_streams,
                l.n_prompts, l.n_waiting, s.median_us, s.mad_us, s.min_us);
  }
}
