// batch_policy in virtual time: a machine whose steps cost what a formula says, and what every stream experienced.
#pragma once

#include "actors/batch_policy.h"
#include "tests/actors/fair_queue.h"

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <utility>
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
  int64_t n_known = 0; // to be computed before it decodes: its prompt, and what it had when it was parked
  int64_t arrived_us = 0, first_us = -1, last_us = -1, ended_us = -1, worst_gap_us = 0;
  int64_t plan_admissible = -1, plan_first_rows = -1, plan_first_token = -1; // numbers of plans
  int32_t rank = 0;
};

class fair_world {
public:
  fair_world(const batch_limits& l, const fair_machine& m, uint64_t seed = 1)
      : limits(l), policy(l), queue(l), machine(m), random(seed) {}

  // Sequence k of a turn has the id turn + k * of_choice.
  static constexpr uint64_t of_choice = 1'000'000;
  static uint64_t turn_of(uint64_t sequence) { return sequence % of_choice; }

  // False: refused.
  bool arrive(uint64_t id, int64_t n_prompt, int64_t max_tokens, int32_t priority = 0, int32_t n_choices = 1) {
    turn_admit t{turn_id{id}, {}};
    for (int32_t k = 0; k < n_choices; ++k) {
      auto& s = t.sequences.emplace_back();
      s.turn = t.turn;
      s.id = sequence_id{id + static_cast<uint64_t>(k) * of_choice};
      s.priority = priority;
      s.prompt.assign(static_cast<size_t>(n_prompt), 5);
      s.max_tokens = max_tokens;
      s.shares_prompt = k > 0;
    }
    start(); // what can start, so that only what cannot is still waiting
    if (policy.admit(std::move(t), now())) return false;
    auto& queued = queue.arrive(id, class_of(priority), now_us);
    for (int32_t k = 0; k < n_choices; ++k) {
      const uint64_t of = id + static_cast<uint64_t>(k) * of_choice;
      queued.live[of] = {n_prompt, n_prompt + max_tokens};
      auto& f = streams[of];
      f.n_prompt = f.n_known = n_prompt;
      f.arrived_us = now_us;
      f.rank = class_of(priority);
    }
    return true;
  }
  void cancel(uint64_t id) {
    policy.cancel(turn_id{id});
    if (queue.turns.erase(id) == 0) return;
    for (auto at = streams.begin(); at != streams.end();)
      at = turn_of(at->first) == id ? streams.erase(at) : std::next(at);
  }
  void stop(uint64_t sequence) {
    policy.stop(sequence_id{sequence});
    queue.end(turn_of(sequence), sequence);
    if (const auto f = streams.find(sequence); f != streams.end() && f->second.ended_us < 0)
      f->second.ended_us = now_us;
  }
  void set_paused(uint64_t id, bool is_paused) {
    policy.set_paused(turn_id{id}, is_paused);
    queue.pause(id, is_paused);
  }
  // False: nothing to run.
  bool start() {
    if (std::exchange(n_plans_marked, n_plans) != n_plans) admissible.clear();
    for (const auto id : queue.mark(policy.n_waiting(), n_plans)) {
      admissible.push_back(id);
      if (auto& f = streams.at(id); f.plan_admissible < 0) f.plan_admissible = n_plans;
    }
    return policy.has_step(now());
  }

  batch_policy::time now() const { return batch_policy::time{std::chrono::microseconds(now_us)}; }

  // One step of the machine. False: nothing to run.
  bool step() {
    if (!start()) return false;
    may_park = queue.may_park(policy.n_waiting());
    plan = policy.plan(now());
    for (const auto& e : plan.ended)
      if (e.is_parked) park(static_cast<uint64_t>(e.id));
    ++n_plans;
    n_decode_rows = n_prefill_rows = 0;
    double us = machine.fixed_us;
    step_result result;
    for (const auto& r : plan.rows) {
      auto& f = streams.at(static_cast<uint64_t>(r.id));
      const auto n = static_cast<int64_t>(r.tokens.size());
      const bool decodes = r.start >= f.n_known;
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
      auto& queued = queue.turns.at(turn_of(static_cast<uint64_t>(r.id))).live.at(static_cast<uint64_t>(r.id));
      queue.see_rows(turn_of(static_cast<uint64_t>(r.id)));
      queued.n_done = f.n_done = out.n_tokens = r.start + n - r.n_drafts + out.n_accepted;
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
  fair_queue queue;
  fair_machine machine;
  std::mt19937_64 random;
  int64_t now_us = 0, n_plans = 0, n_plans_marked = 0;
  std::map<uint64_t, fair_stream> streams;
  std::function<void()> during; // while a step runs
  // Of the last step.
  step_plan plan;
  std::vector<uint64_t> admissible; // turns that may start in this plan and might not in the one before
  bool may_park = false;            // blocks are short
  int64_t n_decode_rows = 0, n_prefill_rows = 0, step_us = 0;
  double decode_us = 0; // what its streams alone would have taken
  std::vector<accepted_tokens> accepted;

private:
  void park(uint64_t id) {
    queue.park(turn_of(id));
    if (const auto f = streams.find(id); f != streams.end())
      f->second.n_known = f->second.n_prompt + f->second.n_tokens;
  }
  void take(const accepted_tokens& a) {
    const auto id = static_cast<uint64_t>(a.id);
    auto& f = streams.at(id);
    if (!a.tokens.empty()) {
      if (f.first_us < 0) {
        f.first_us = now_us;
        f.plan_first_token = n_plans;
      } else {
        f.worst_gap_us = std::max(f.worst_gap_us, now_us - f.last_us);
      }
      f.last_us = now_us;
      f.n_tokens += static_cast<int64_t>(a.tokens.size());
      if (const auto t = queue.turns.find(turn_of(id)); t != queue.turns.end())
        t->second.live.at(id).n_tokens += static_cast<int64_t>(a.tokens.size());
    }
    if (a.end == end_cause::none) return;
    f.ended_us = now_us;
    queue.end(turn_of(id), id);
  }
};

} // namespace troupe
