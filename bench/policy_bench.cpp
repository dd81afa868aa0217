// Time of the scheduler's decisions a step: has_step + plan + accept, without actors and messages.
//   bench_policy [--csv] [LOAD]     LOAD: the one of that name only
#include "actors/batch_policy.h"
#include "bench/bench.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>

using namespace troupe;

namespace {

struct load {
  const char* name;
  int32_t n_streams, n_prompts; // decoding; prompts that never come to an end
  int32_t n_waiting;
  bool has_all = false; // drafts of five with their depth chosen each step, and blocks that grow step by step
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
  int64_t n_drafts = 0, n_plans = 0;
  double answer_us = 0; // the model's part, not the scheduler's: taken off

  void step() {
    now += std::chrono::milliseconds(20);
    if (!policy.has_step(now)) return;
    const step_plan plan = policy.plan(now);
    const double start = bench::now_us();
    ++n_plans;
    for (const auto& row : plan.rows) n_drafts += row.n_drafts;
    step_result r;
    int64_t n_rows = 0;
    for (const auto& row : plan.rows) n_rows += static_cast<int64_t>(row.tokens.size());
    r.compute_us = 5000 + 100 * n_rows;
    r.draft_us = 500;
    r.results.reserve(plan.rows.size());
    for (const auto& row : plan.rows) {
      auto& s = r.results.emplace_back();
      s.id = row.id;
      s.n_tokens = row.start + static_cast<int64_t>(row.tokens.size());
      if (row.samples) s.tokens.emplace_back().id = 7;
      s.n_drafts = row.n_drafts;
      s.n_accepted = std::min(row.n_drafts, static_cast<int32_t>(static_cast<uint64_t>(row.id) % 6));
      for (int32_t j = 0; j < s.n_accepted; ++j) s.tokens.emplace_back().id = 7;
      s.n_tokens += s.n_accepted - s.n_drafts;
      if (!row.wants_drafts) continue;
      s.next_drafts.assign(5, 7);
      s.confidence = {0.9F, 0.8F, 0.7F, 0.6F, 0.5F};
    }
    answer_us += bench::now_us() - start;
    out.clear();
    policy.accept(std::move(r), now, out);
  }
};

// `drafts`: mean of a step.
bench::sample run(const load& l, double& drafts) {
  batch_limits limits;
  limits.max_running = l.n_streams + l.n_prompts;
  limits.max_queue = 1 << 20;
  limits.n_blocks = int64_t{1} << 30;
  limits.overcommit = l.has_all;
  if (l.has_all) limits.drafts = {5, 5, true};
  machine m{batch_policy(limits), {}, {}};
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
  drafts = static_cast<double>(m.n_drafts) / static_cast<double>(m.n_plans);
  return s;
}

} // namespace

int main(int n_arguments, char** arguments) {
  const bool csv = n_arguments > 1 && std::strcmp(arguments[1], "--csv") == 0;
  const char* const only = n_arguments > 1 + csv ? arguments[1 + csv] : nullptr;
  const load loads[] = {{"decode", 8, 0, 0},
                        {"decode", 64, 0, 0},
                        {"decode+queue", 64, 0, 1024},
                        {"mixed", 48, 16, 0},
                        {"prefill", 0, 64, 1024},
                        {"decode", 256, 0, 0},
                        {"mixed", 192, 64, 1024},
                        {"all on", 64, 0, 0, true},
                        {"all on+queue", 64, 0, 1024, true},
                        {"all on+prompts", 48, 16, 1024, true}};
  if (only &&
      std::none_of(std::begin(loads), std::end(loads), [&](const load& l) { return !std::strcmp(only, l.name); })) {
    std::fprintf(stderr, "bench_policy: no load is called '%s'\n", only);
    return 2;
  }
  if (csv)
    std::printf("load,streams,prompts,waiting,median_us,mad_us,min_us,drafts\n");
  else
    std::printf("%-14s %8s %8s %8s %10s %8s %8s %8s\n", "load", "streams", "prompts", "waiting", "median us", "mad",
                "min", "drafts");
  for (const auto& l : loads) {
    if (only && std::strcmp(only, l.name) != 0) continue;
    double drafts = 0;
    const auto s = run(l, drafts);
    std::printf(csv ? "%s,%d,%d,%d,%.2f,%.2f,%.2f,%.1f\n" : "%-14s %8d %8d %8d %10.2f %8.2f %8.2f %8.1f\n", l.name,
                l.n_streams, l.n_prompts, l.n_waiting, s.median_us, s.mad_us, s.min_us, drafts);
  }
}
