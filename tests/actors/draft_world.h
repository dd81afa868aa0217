// draft_policy in virtual time: streams of texts that are easy or hard to guess, on a machine that costs what the CPU
// does, with the noise and the changing load of one that is shared.
#pragma once

#include "actors/draft_policy.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <utility>
#include <vector>

namespace troupe {

struct draft_text {
  double right = 0.9, says = 0.9; // of each draft behind right ones: the truth, and what the confidence head believes
};

// In microseconds. What the shipped model takes on 2 cores of a Zen 4, all of the ring included, where nothing else
// runs: 0.55 ms a step of one row, and a third of that for each more.
struct draft_machine {
  double step_us = 350, row_us = 195, draft_us = 85, draft_sequence_us = 155;
  double context_us = 3;                // of making drafts, for each token since the last ones, up to a window of 64
  double noise = 0.05, outliers = 0.02; // of the time, log-normal; part of the steps that takes 2 to 6 times as long
  double busy = 1.7; // times as long as otherwise, in about half of the stretches of 200 to 1000 steps

  double rows_us(double n_rows) const { return step_us + row_us * n_rows; }
  double drafts_us(double n) const { return n == 0 ? 0 : draft_us + draft_sequence_us * n; }
  // Tokens a microsecond of a fixed depth.
  double rate(double n, int32_t depth, double right) const {
    double tokens = 1;
    for (int32_t j = 1; j <= depth; ++j) tokens += std::pow(right, j);
    return n * tokens / (rows_us(n * (1 + depth)) + (depth == 0 ? 0 : drafts_us(n) + n * tokens * context_us));
  }
};

class draft_world {
public:
  struct stream {
    draft_text text;
    sequence_drafts drafts;
    int64_t n_tokens = 0, n_drafts = 0, n_blocks = 0;
    int64_t n_owed = 0; // tokens since the last block
  };

  draft_world(const draft_limits& l, const draft_machine& m, uint64_t seed) : policy(l), machine(m), random(seed) {}

  // New sequences, of these texts.
  void start(const std::vector<draft_text>& texts) {
    streams.clear();
    for (const auto& t : texts) streams.push_back({t, {}, 0, 0, 0, 0});
  }
  void round() {
    const auto n = static_cast<int64_t>(streams.size());
    std::vector<draft_policy::offer> offers;
    std::vector<draft_policy::request> requests;
    for (auto& s : streams) offers.push_back({&s.drafts, 5, 0});
    for (auto& s : streams) requests.push_back({&s.drafts});
    policy.choose(offers, 0);
    policy.ask(requests, n);
    int64_t n_rows = n, n_drafted = 0, n_context = 0;
    int64_t n_gained = 0;
    for (size_t i = 0; i < streams.size(); ++i) {
      auto& s = streams[i];
      // A right draft is 1, and only ones are drawn.
      const auto k = static_cast<size_t>(offers[i].n_chosen);
      size_t right = 0;
      while (right < k && s.drafts.ids[right] == 1) ++right;
      const std::vector<int32_t> drawn(right + 1, 1);
      policy.observe_run(s.drafts, drawn);
      s.n_tokens += static_cast<int64_t>(drawn.size());
      n_gained += static_cast<int64_t>(drawn.size());
      s.n_drafts += offers[i].n_chosen;
      n_rows += offers[i].n_chosen;
      s.n_owed = std::min<int64_t>(s.n_owed + static_cast<int64_t>(drawn.size()), 64);
      if (!requests[i].is_wanted) continue;
      draft(s), ++n_drafted;
      n_context += std::exchange(s.n_owed, 0);
    }
    pass(n, n_rows, n_drafted, n_context, n_gained);
  }
  // Until each of the streams, on average, has gained so many tokens.
  void play(int64_t n_tokens) {
    const int64_t n = n_tokens * static_cast<int64_t>(streams.size());
    for (const int64_t until = n_all + n; n_all < until;) round();
  }
  // What a server does before it serves.
  void warm_up() {
    for (const size_t n : {1, 2, 4, 8}) {
      start(std::vector<draft_text>(n, {0.8, 0.8}));
      play(72);
    }
    forget();
  }
  void forget() { n_all = 0, all_us = none_us = quiet_us = 0; }

  // Times as fast as without drafts, in the same load; tokens a microsecond where nothing else runs.
  double gain() const { return none_us / all_us; }
  double quiet_rate() const { return static_cast<double>(n_all) / quiet_us; }

  draft_policy policy;
  draft_machine machine;
  std::mt19937_64 random;
  std::vector<stream> streams;
  int64_t n_dear = 0; // of the next steps with drafts, which take four times as long
  int64_t n_all = 0;
  double all_us = 0, none_us = 0, quiet_us = 0;

private:
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random); }
  void draft(stream& s) {
    std::vector<int32_t> ids;
    std::vector<float> confidence;
    for (int j = 0; j < 5; ++j) {
      ids.push_back(uniform() < s.text.right ? 1 : 0);
      confidence.push_back(static_cast<float>(std::clamp(s.text.says + 0.1 * (uniform() - 0.5), 0.0, 1.0)));
    }
    policy.take(s.drafts, std::move(ids), std::move(confidence));
    ++s.n_blocks;
  }
  void pass(int64_t n, int64_t n_rows, int64_t n_drafted, int64_t n_context, int64_t n_gained) {
    if (n_left-- <= 0) {
      n_left = 200 + static_cast<int64_t>(800 * uniform());
      load = uniform() < 0.5 ? 1 : machine.busy;
    }
    double slow = load * std::exp(machine.noise * std::normal_distribution<double>()(random));
    if (uniform() < machine.outliers) slow *= 2 + 4 * uniform();
    if (n_rows > n && n_dear-- > 0) slow *= 4;
    const double rows_us = machine.rows_us(static_cast<double>(n_rows)),
                 drafts_us = machine.drafts_us(static_cast<double>(n_drafted)) +
                             machine.context_us * static_cast<double>(n_context);
    policy.observe_step({n, n_rows, static_cast<int64_t>(slow * (rows_us + drafts_us)), n_drafted,
                         static_cast<int64_t>(slow * drafts_us), n_gained, false});
    n_all += n_gained;
    quiet_us += rows_us + drafts_us;
    all_us += load * (rows_us + drafts_us);
    none_us += load * machine.rows_us(static_cast<double>(n)) * static_cast<double>(n_gained) / static_cast<double>(n);
  }
  int64_t n_left = 0;
  double load = 1;
};

} // namespace troupe
