// batch_policy and kv_ledger in a ring with a pretend_device, whose disk answers when the test says so.
#pragma once

#include "tests/actors/pretend_device.h"

#include <random>

namespace troupe::ledger_ring {

using tokens = std::vector<int32_t>;
using instant = batch_policy::time;

inline kv_cache_config config(int64_t interval, int64_t n_snapshots = 100000, int64_t n_blocks = 4000) {
  kv_cache_config c;
  c.n_blocks = n_blocks;
  c.block_tokens = 8;
  c.snapshot_bytes = 10;
  c.snapshot_memory_bytes = 10 * n_snapshots;
  c.snapshot_interval = interval;
  c.snapshot_slack = 1;
  return c;
}

struct bench_ring {
  explicit bench_ring(const kv_cache_config& c, int32_t chunk = 32, int32_t max_running = 4)
      : policy(limits(c, chunk, max_running)), ledger(c) {
    device.slack = c.snapshot_slack;
  }
  static batch_limits limits(const kv_cache_config& c, int32_t chunk, int32_t max_running) {
    batch_limits l;
    l.max_running = max_running;
    l.chunk_tokens = chunk;
    l.n_blocks = c.n_blocks;
    l.block_tokens = c.block_tokens;
    return l;
  }
  turn_id admit(tokens prompt, int64_t max_tokens, int n = 1, std::string salt = {},
                std::vector<image_place> images = {}) {
    turn_admit t{turn_id{++last_turn}, {}};
    for (int i = 0; i < n; ++i) {
      auto& s = t.sequences.emplace_back();
      s.turn = t.turn;
      s.id = sequence_id{last_turn * 100 + static_cast<uint64_t>(i)};
      s.prompt = prompt;
      s.max_tokens = max_tokens;
      s.cache_salt = salt;
      s.images = images;
      s.shares_prompt = i > 0;
      prompts[s.id] = prompt;
    }
    const auto refused = policy.admit(std::move(t), now);
    is_admitted = !refused.has_value();
    return turn_id{last_turn};
  }
  void step(int32_t fails = 0) {
    auto plan = policy.plan(now);
    plan.step = ++n_steps;
    n_waits += ledger.must_wait(plan);
    const auto& pool = ledger.pool();
    const auto placed = ledger.place(std::move(plan), now);
    CHECK(pool.n_free() + pool.n_held() + pool.n_cached() == pool.n_total());
    CHECK(ledger.index().n_snapshots() <= ledger.index().max_snapshots());
    out.clear();
    policy.accept(device.apply(placed, fails), now, out);
    if (check_each_step) ledger.index().check();
    if (fails == 0 && device.reading.empty())
      CHECK(static_cast<int64_t>(device.snapshots.size()) == ledger.index().n_snapshots());
    for (const auto& a : out)
      for (const auto& t : a.tokens) said[a.id].push_back(t.id);
  }
  // What the disk has done, the first n of it.
  void answer(size_t n = SIZE_MAX, bool ok = true) {
    for (; n > 0 && !device.reading.empty(); --n) {
      const auto entry = device.reading.front().entry;
      ledger.read_done(entry, device.arrive(ok));
    }
    for (; n > 0 && !device.written.empty(); --n) {
      const auto [entry, is_there] = device.written.front();
      device.written.pop_front();
      if (!ok) device.disk.erase(entry);
      ledger.write_done(entry, ok && is_there, now);
    }
  }
  void run() {
    for (int i = 0; i < 100000 && policy.has_step(now); ++i) {
      step();
      answer();
    }
    CHECK(policy.is_idle());
    CHECK(ledger.pool().n_held() == 0);
  }
  // Cached tokens of one request run to its end.
  int64_t ask(const tokens& prompt, int64_t max_tokens = 1, std::string salt = {},
              std::vector<image_place> images = {}) {
    const auto id = sequence_id{(last_turn + 1) * 100};
    admit(prompt, max_tokens, 1, std::move(salt), std::move(images));
    REQUIRE(is_admitted);
    run();
    return device.n_cached.at(id);
  }
  // Each reply is the one that its prompt gives without any cache.
  void check_replies() const {
    for (const auto& [id, reply] : said) {
      auto h = prompts.at(id);
      for (const auto t : reply) {
        REQUIRE(t == pretend_device::next(h));
        h.push_back(t);
      }
    }
  }
  tokens reply_of_last() { return said[sequence_id{last_turn * 100}]; }

  batch_policy policy;
  kv_ledger ledger;
  pretend_device device;
  instant now{};
  uint64_t last_turn = 0, n_steps = 0, n_waits = 0;
  bool check_each_step = false;
  bool is_admitted = false;
  std::map<sequence_id, tokens> said, prompts;
  std::vector<accepted_tokens> out;
};

inline tokens random_tokens(std::mt19937_64& random, int64_t n) {
  tokens t(static_cast<size_t>(n));
  for (auto& x : t) x = 10 + static_cast<int32_t>(random() % 3); // few, so that prefixes meet by chance
  return t;
}

inline int64_t pick(std::mt19937_64& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

// The beginning of an earlier prompt and what comes new behind it, at most 100 tokens; kept among the earlier ones.
inline tokens grow(std::mt19937_64& random, std::vector<tokens>& past) {
  const auto& old = past[random() % past.size()];
  tokens prompt(old.begin(), old.begin() + pick(random, 0, static_cast<int64_t>(old.size())));
  const auto more = random_tokens(random, pick(random, prompt.empty() ? 1 : 0, 30));
  prompt.insert(prompt.end(), more.begin(), more.end());
  if (prompt.size() > 100) prompt.resize(100);
  past.push_back(prompt);
  return prompt;
}

} // namespace troupe::ledger_ring
