// Which waiting turns may start now, by the rules alone (design.md section 4, batch_policy.h, wait_queue.h): what the
// policy is held against. It follows plans and results, and asks the policy for nothing but how many turns wait.
#pragma once

#include "actors/batch_state.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

namespace troupe {

class fair_queue {
public:
  struct sequence {
    int64_t n_known = 0, n_most = 0;  // tokens it has to compute before it decodes; positions it may ever have
    int64_t n_done = 0, n_tokens = 0; // positions computed; tokens gained
    int64_t n_left() const { return n_known - n_done; }
  };
  struct turn {
    std::map<uint64_t, sequence> live; // by sequence
    int32_t rank = 0, n_parked = 0;    // parked: while its reader was not behind
    int64_t queued_us = 0, due_us = 0, order = 0;
    bool is_in = false;    // it has started, or has to in the next plan
    bool has_rows = false; // since then
    bool is_paused = false, was_parked = false, has_waited = false;
    int64_t since = -1; // plans there were when it became admissible; -1: it is not, or it has had rows since
  };

  explicit fair_queue(const batch_limits& l) : limits_(l) {}

  turn& arrive(uint64_t id, int32_t rank, int64_t now_us) {
    auto& t = turns[id];
    t.rank = rank;
    t.queued_us = now_us;
    t.due_us = now_us + patience(rank);
    t.order = ++last_;
    return t;
  }
  void end(uint64_t id, uint64_t of) {
    const auto found = turns.find(id);
    if (found == turns.end()) return;
    found->second.live.erase(of);
    if (found->second.live.empty()) turns.erase(found);
  }
  void pause(uint64_t id, bool is_paused) {
    const auto found = turns.find(id);
    if (found == turns.end()) return;
    found->second.is_paused = is_paused;
    found->second.since = -1; // it is not held to a time that its reader took
  }
  // All that it has is computed again.
  void park(uint64_t id) {
    const auto found = turns.find(id);
    if (found == turns.end() || !found->second.is_in) return; // it ended since, or is told of each of its sequences
    auto& t = found->second;
    t.is_in = t.has_rows = false;
    t.was_parked = true;
    t.n_parked += !t.is_paused;
    t.since = -1;
    t.order = ++last_;
    t.due_us = t.queued_us + patience(class_of_now(t)) - (class_of_now(t) == 0 ? a_year_us : 0);
    for (auto& [of, s] : t.live) {
      s.n_known += s.n_tokens;
      s.n_tokens = s.n_done = 0;
    }
  }
  void see_rows(uint64_t id) {
    auto& t = turns.at(id);
    t.is_in = t.has_rows = true;
    t.since = -1;
  }

  // Those that may start from now on and might not before, in order. `n_waiting`: turns, as the policy counts them.
  std::vector<uint64_t> mark(int64_t n_waiting, int64_t n_plans) {
    std::vector<uint64_t> out;
    // Some gave way, or started behind one that does not fit: the next plan says which.
    if (n_plans == plan_of_room_ || !knows_all(n_waiting)) return out;
    std::vector<std::pair<uint64_t, turn*>> waiting;
    int64_t n_slots = limits_.max_running, n_blocks = limits_.n_blocks;
    for (auto& [id, t] : turns) {
      if (t.is_in)
        n_slots -= n_live(t), n_blocks -= blocks_of(t);
      else if (!t.is_paused) // it keeps nobody waiting
        waiting.emplace_back(id, &t);
    }
    std::sort(waiting.begin(), waiting.end(), [](const auto& a, const auto& b) {
      return std::tie(a.second->due_us, a.second->order) < std::tie(b.second->due_us, b.second->order);
    });
    size_t n = 0;
    for (; n < waiting.size(); ++n) {
      auto& t = *waiting[n].second;
      const auto [slots, blocks] = room_of_paused(class_of_now(t));
      const bool fits = n_live(t) <= n_slots && blocks_of(t) <= n_blocks;
      if (!fits && (n_live(t) > n_slots + slots || blocks_of(t) > n_blocks + blocks)) break;
      t.is_in = true;
      t.since = n_plans;
      out.push_back(waiting[n].first);
      if (!fits) {
        plan_of_room_ = n_plans;
        break;
      }
      n_slots -= n_live(t), n_blocks -= blocks_of(t);
    }
    for (; n < waiting.size(); ++n) waiting[n].second->has_waited |= !waiting[n].second->is_in;
    return out;
  }
  // False: what runs has all the blocks that it may count on, so none of it has to be parked.
  bool may_park(int64_t n_waiting) const {
    int64_t n = 0;
    for (const auto& [id, t] : turns)
      if (t.is_in) n += blocks_of(t);
    return !knows_all(n_waiting) || n > limits_.n_blocks;
  }
  // False: blocks or slots are counted that nobody holds, or fewer than are held.
  bool is_exact(int64_t n_waiting, int64_t n_running) const {
    int64_t n = 0, n_out = 0;
    for (const auto& [id, t] : turns) {
      if (t.is_in)
        n += n_live(t);
      else
        ++n_out;
    }
    return n_out != n_waiting || n == n_running;
  }

  std::map<uint64_t, turn> turns; // that live

private:
  static constexpr int64_t a_year_us = int64_t{365} * 24 * 3600 * 1'000'000;

  static int64_t patience(int32_t rank) { return rank == 0 ? 0 : rank == 1 ? 10'000'000 : 60'000'000; }
  static int32_t class_of_now(const turn& t) { return std::max(t.rank - t.n_parked / 2, 0); }
  static int64_t n_live(const turn& t) { return static_cast<int64_t>(t.live.size()); }
  int64_t blocks_of(const turn& t) const {
    int64_t n = 0;
    for (const auto& [id, s] : t.live) {
      const int64_t margin = std::max(s.n_done, s.n_known) + 4 * limits_.block_tokens;
      const int64_t n_tokens = limits_.overcommit ? std::min(s.n_most, margin) : s.n_most;
      n += (n_tokens + limits_.block_tokens - 1) / limits_.block_tokens;
    }
    return n;
  }
  bool knows_all(int64_t n_waiting) const {
    return std::count_if(turns.begin(), turns.end(), [](const auto& t) { return !t.second.is_in; }) <= n_waiting;
  }
  // Slots and blocks of turns whose readers are behind, unless they are of a higher class.
  std::pair<int64_t, int64_t> room_of_paused(int32_t rank) const {
    std::pair<int64_t, int64_t> n{0, 0};
    if (!limits_.overcommit) return n;
    for (const auto& [id, t] : turns)
      if (t.is_in && t.is_paused && class_of_now(t) >= rank) n.first += n_live(t), n.second += blocks_of(t);
    return n;
  }

  batch_limits limits_;
  int64_t last_ = 0, plan_of_room_ = -1;
};

} // namespace troupe
