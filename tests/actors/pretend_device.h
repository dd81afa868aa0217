// A rank made of token lists: every block entry and every window state knows which tokens it came from.
#pragma once

#include "actors/batch_policy.h"
#include "actors/kv_ledger.h"

#include <doctest/doctest.h>

#include <deque>
#include <map>
#include <vector>

namespace troupe {

struct pretend_device {
  using history = std::vector<int32_t>;
  int64_t block_tokens = 8, slack = 1;
  int n_guesses = 0; // that it makes behind a token
  std::map<block_id, history> blocks;
  std::map<int32_t, history> slots, slots_of_host;
  std::map<snapshot_id, history> snapshots;
  std::map<sequence_id, std::vector<block_id>> tables;
  std::map<sequence_id, int64_t> n_prompt, n_cached;
  std::map<sequence_id, int64_t> first_start; // of sequences that began
  std::map<int32_t, int64_t> n_wrong;         // guesses at the end of a slot that were wrong
  int64_t n_rows = 0;
  int64_t n_from_memory = 0, n_from_disk = 0; // tokens of blocks that were brought in for prompts
  // Its disk: what was written, whole, and what it has still to do or to tell.
  struct stored {
    tier_write what;
    history window, block;
  };
  std::map<entry_id, stored> disk;
  std::map<entry_id, int> n_written; // times
  std::deque<tier_read> reading;
  std::deque<std::pair<entry_id, bool>> written;

  void save(const snapshot_save& s) {
    const auto& h = slots.at(s.slot);
    const auto size = static_cast<int64_t>(h.size());
    REQUIRE(s.n_tokens <= size);
    CHECK(size - s.n_tokens <= slack);
    const history what(h.begin(), h.begin() + s.n_tokens);
    CHECK(snapshots.emplace(s.snapshot, what).first->second == what); // a number means one content for ever
  }
  void move(const block_move& m) {
    switch (m.what) {
    case block_move::kind::copy: blocks[block_id{m.to}] = blocks.at(block_id{m.from}); break;
    case block_move::kind::out: slots_of_host[m.to] = blocks.at(block_id{m.from}); break;
    case block_move::kind::in: blocks[block_id{m.to}] = slots_of_host.at(m.from); break;
    }
  }
  void write(const tier_write& w, bool has_run) {
    bool is_there = has_run && (w.snapshot == snapshot_id{} || snapshots.count(w.snapshot) > 0);
    if (is_there) {
      stored s{w, {}, {}};
      if (w.snapshot != snapshot_id{}) s.window = snapshots.at(w.snapshot);
      if (w.block >= 0) s.block = blocks.at(block_id{w.block});
      if (w.slot >= 0) s.block = slots_of_host.at(w.slot);
      CHECK(disk.emplace(w.entry, std::move(s)).second);
      ++n_written[w.entry];
    }
    written.emplace_back(w.entry, is_there);
  }
  // The next read is done. False: the file is not there or broken.
  bool arrive(bool ok) {
    const auto r = reading.front();
    reading.pop_front();
    const auto found = disk.find(r.entry);
    if (!ok && found != disk.end()) disk.erase(found);
    if (!ok || found == disk.end()) return false;
    if (r.slot >= 0) slots_of_host[r.slot] = found->second.block;
    if (r.snapshot != snapshot_id{}) snapshots[r.snapshot] = found->second.window;
    return true;
  }
  // What a model would say after these tokens: any function of all of them.
  static int32_t next(const history& h) {
    uint64_t x = 7;
    for (const auto t : h) x = x * 6364136223846793005U + static_cast<uint64_t>(t) + 1;
    return 100 + static_cast<int32_t>((x >> 40) % 50);
  }

  void before(const step_placed& placed) {
    for (const auto& s : placed.saves_before) save(s);
    for (const auto& e : placed.plan.ended) tables.erase(e.id);
    for (const auto& s : placed.plan.started) {
      CHECK(s.prompt.empty());
      tables[s.id];
      n_prompt[s.id] = s.n_prompt;
      slots[s.slot].clear();
      n_wrong[s.slot] = 0;
    }
    for (const auto& m : placed.moves) move(m);
    reading.insert(reading.end(), placed.reads.begin(), placed.reads.end());
    for (const auto& b : placed.blocks) tables.at(b.id).insert(tables[b.id].end(), b.blocks.begin(), b.blocks.end());
    for (const auto& c : placed.cached) {
      n_cached[c.id] = c.n_tokens;
      n_from_memory += c.from_memory;
      n_from_disk += c.from_disk;
      if (c.n_tokens == 0) continue;
      const auto& h = snapshots.at(c.snapshot);
      REQUIRE(static_cast<int64_t>(h.size()) == c.n_tokens);
      for (const auto& r : placed.plan.rows)
        if (r.id == c.id) {
          CHECK(r.start == c.n_tokens);
          slots[r.slot] = h;
        }
      CHECK(std::equal(c.before.rbegin(), c.before.rend(), h.rbegin()));
      CHECK(c.before.size() == std::min<size_t>(h.size(), 16));
    }
  }
  void run(const planned_rows& r) {
    auto& h = slots[r.slot];
    first_start.emplace(r.id, r.start);
    const auto n_ran = static_cast<int64_t>(h.size());
    REQUIRE(r.start <= n_ran);
    REQUIRE(r.start == n_ran - n_wrong[r.slot]);
    REQUIRE_FALSE(r.tokens.empty());
    h.resize(static_cast<size_t>(r.start));
    n_wrong[r.slot] = 0;
    const auto& table = tables.at(r.id);
    REQUIRE(static_cast<int64_t>(table.size()) * block_tokens >= r.start + static_cast<int64_t>(r.tokens.size()));
    for (int64_t p = 0; p < r.start; p += block_tokens) {
      const auto& entries = blocks.at(table[static_cast<size_t>(p / block_tokens)]);
      const auto n = std::min(block_tokens, r.start - p);
      REQUIRE(std::equal(entries.begin(), entries.begin() + n, h.begin() + p));
    }
    for (const auto t : r.tokens) {
      const auto p = static_cast<int64_t>(h.size());
      const auto b = table[static_cast<size_t>(p / block_tokens)];
      for (const auto& [id, other] : tables)
        if (id != r.id) CHECK(std::find(other.begin(), other.end(), b) == other.end()); // one writer
      auto& entries = blocks[b];
      entries.resize(static_cast<size_t>(block_tokens), -1);
      entries[static_cast<size_t>(p % block_tokens)] = t;
      h.push_back(t);
      ++n_rows;
    }
    if (r.start < n_prompt.at(r.id)) CHECK(r.samples == (static_cast<int64_t>(h.size()) == n_prompt.at(r.id)));
  }
  // Tokens behind rows that sample: as many as there are right guesses at their end, and one more.
  void speak(const planned_rows& r, sequence_result& out) {
    history h = slots.at(r.slot);
    const auto n_known = h.size() - static_cast<size_t>(r.n_drafts);
    const history guesses(h.begin() + static_cast<std::ptrdiff_t>(n_known), h.end());
    h.resize(n_known);
    for (size_t i = 0;; ++i) {
      const auto token = next(h);
      out.tokens.emplace_back().id = token;
      if (i == guesses.size() || guesses[i] != token) break;
      h.push_back(token);
      ++out.n_accepted;
    }
    out.n_drafts = r.n_drafts;
    out.n_tokens = static_cast<int64_t>(h.size());
    n_wrong[r.slot] = static_cast<int64_t>(n_known + guesses.size() - h.size());
    h.push_back(out.tokens.back().id);
    for (int i = 0; r.wants_drafts && i < n_guesses; ++i) {
      const auto token = next(h);
      h.push_back(token % 4 == 0 ? token + 1 : token); // now and then a wrong one
      out.next_drafts.push_back(h.back());
      out.confidence.push_back(0.9F);
    }
  }
  // `fails`: a status, and the whole step fails with it.
  step_result apply(const step_placed& placed, int32_t fails = 0) {
    before(placed);
    step_result result{placed.plan.epoch, placed.plan.step, {}, 0};
    for (const auto& r : placed.plan.rows) {
      auto& out = result.results.emplace_back();
      out.id = r.id;
      out.cached_tokens = n_cached[r.id];
      if (fails != 0) {
        out.failure = "failed";
        out.status = fails;
        if (fails == 500) slots[r.slot].push_back(-99); // nobody may build on it
        continue;
      }
      run(r);
      out.n_tokens = static_cast<int64_t>(slots.at(r.slot).size());
      if (r.samples) speak(r, out);
    }
    if (fails == 0)
      for (const auto& s : placed.saves_after) save(s);
    for (const auto& w : placed.writes) write(w, fails == 0);
    for (const auto id : placed.dropped) snapshots.erase(id);
    for (const auto id : placed.removes) disk.erase(id);
    return result;
  }
};

} // namespace troupe
