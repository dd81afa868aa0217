// batch_policy in virtual time: a machine whose steps cost what a formula says, and what every stream experienced.
#pragma once

#include "actors/batch_policy.h"

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <vector>

namespace troupe {

// Microseconds of a step: fixed + per row of streams + per row of prompts (dearer with its position) +- noise.
struct fair_machine {
  double fixed_us = 5000, decode_row_us = 1000, prefill_row_us = 100;
  double per_position = 0; // a prompt row at position p costs prefill_row_us * (1 + per_position * p)
  double noise = 0;        // relative, uniform
  double draft_right = 0;  // of each draft, where the limits have any; the confidence says the same
};

struct fair_stream {
  int64_t n_prompt = 0, n_done = 0, n_tokens = 0;
  int64_t arrived_us = 0, first_us = -1, last_us = -1, ended_us = -1, worst_gap_us = 0;
  int64_t plan_admissible = -1, plan_first_rows = -1, plan_first_token = -1; // numbers of plans
  int32_t rank = 0;
};

class fair_world {
public:
  fair_world(const batch_limits& l, const fair_machine& m, uint64_t seed = 1)
      : limits(l), policy(l), machine(m), random(seed) {}

  // False: refused.
  bool arrive(uint64_t id, int64_t n_prompt, int64_t max_tokens, int32_t priority = 0) {
    turn_admit t{turn_id{id}, {}};
    auto& s = t.sequences.emplace_back();
    s.turn = t.turn;
    s.id = sequence_id{id};
    s.priority = priority;
    s.prompt.assign(static_cast<size_t>(n_prompt), 5);
    s.max_tokens = max_tokens;
    const int64_t n_blocks = (n_prompt + max_tokens + limits.block_tokens - 1) / limits.block_tokens;
    policy.has_step(now()); // starts what can start, so that only what cannot is still waiting
    const bool fits = policy.n_waiting() == 0 && policy.n_running() < limits.max_running &&
                      policy.n_blocks_reserved() + n_blocks <= limits.n_blocks;
    if (policy.admit(std::move(t), now())) return false;
    policy.has_step(now());
    auto& f = streams[id];
    f.n_prompt = n_prompt;
    f.arrived_us = now_us;
    f.rank = class_of(priority);
    if (fits) f.plan_admissible = n_plans;
    return true;
  }

  batch_policy::time now() const { return batch_policy::time{std::chrono::microseconds(now_us)}; }

  // One step of the machine. False: nothing to run.
  bool step() {
    if (!policy.has_step(now())) return false;
    plan = policy.plan(now());
    ++n_plans;
    n_decode_rows = n_prefill_rows = 0;
    double us = machine.fixed_us;
    step_result result;
    for (const auto& r : plan.rows) {
      auto& f = streams.at(static_cast<uint64_t>(r.id));
      const auto n = static_cast<int64_t>(r.tokens.size());
      const bool decodes = f.n_tokens > 0 && r.start >= f.n_prompt + f.n_tokens - 1; // not so for what was parked
      (decodes ? n_decode_rows : n_prefill_rows) += n;
      us += static_cast<double>(n) *
            (decodes ? machine.decode_row_us
                     : machine.prefill_row_us * (1 + machine.per_position * static_cast<double>(r.start)));
      if (f.plan_first_rows < 0) f.plan_first_rows = n_plans;
      auto& out = result.results.emplace_back();
      out.id = r.id;
      out.n_drafts = r.n_drafts;
      if (r.samples) out.tokens.emplace_back().id = 7;
      std::bernoulli_distribution is_right(machine.draft_right);
      while (out.n_accepted < r.n_drafts && is_right(random)) {
        out.tokens.emplace_back().id = 7;
        ++out.n_accepted;
      }
      f.n_done = out.n_tokens = r.start + n - r.n_drafts + out.n_accepted;
      if (r.wants_drafts) {
        out.next_drafts.assign(static_cast<size_t>(limits.drafts.block), 7);
        out.confidence.assign(static_cast<size_t>(limits.drafts.block), static_cast<float>(machine.draft_right));
      }
    }
    us *= 1 + machine.noise * (std::uniform_real_distribution<double>(-1, 1)(random));
    decode_us = machine.fixed_us + machine.decode_row_us * static_cast<double>(n_decode_rows);
    step_us = static_cast<int64_t>(us);
    now_us += step_us;
    result.compute_us = step_us;
    if (during) during();
    accepted.clear();
    policy.accept(std::move(result), now(), accepted);
    for (const auto& a : accepted) take(a);
    return true;
  }

  fair_stream& operator[](uint64_t id) { return streams.at(id); }

  batch_limits limits;
  batch_policy policy;
  fair_machine machine;
  std::mt19937_64 random;
  int64_t now_us = 0, n_plans = 0;
  std::map<uint64_t, fair_stream> streams;
  std::function<void()> during; // while a step runs
  // Of the last step.
  step_plan plan;
  int64_t n_decode_rows = 0, n_prefill_rows = 0, step_us = 0;
  double decode_us = 0; // what its streams alone would have taken
  std::vector<accepted_tokens> accepted;

private:
  void take(const accepted_tokens& a) {
    auto& f = streams.at(static_cast<uint64_t>(a.id));
    if (!a.tokens.empty()) {
      if (f.first_us < 0) {
        f.first_us = now_us;
        f.plan_first_token = n_plans;
      } else {
        f.worst_gap_us = std::max(f.worst_gap_us, now_us - f.last_us);
      }
      f.last_us = now_us;
      f.n_tokens += static_cast<int64_t>(a.tokens.size());
    }
    if (a.end != end_cause::none) f.ended_us = now_us;
  }
};

} // namespace troupe
