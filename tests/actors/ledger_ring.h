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
  // `n_drafts`: guesses that are verified in every step of a stream.
  explicit bench_ring(const kv_cache_config& c, int32_t chunk = 32, int32_t max_running = 4, int32_t n_drafts = 0)
      : policy(limits(c, chunk, max_running, n_drafts)), ledger(c) {
    device.slack = c.snapshot_slack;
    device.block_tokens = c.block_tokens;
    device.n_guesses = n_drafts;
  }
  static batch_limits limits(const kv_cache_config& c, int32_t chunk, int32_t max_running, int32_t n_drafts) {
    batch_limits l;
    l.max_running = max_running;
    l.chunk_tokens = chunk;
    l.n_blocks = c.n_blocks;
    l.block_tokens = c.block_tokens;
    if (n_drafts > 0) l.drafts = {n_drafts, n_drafts, false};
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

// With tiers below the device, in blocks of 100 bytes.
inline kv_cache_config tiered(int64_t n_snapshots, int64_t n_blocks, int64_t n_slots, int64_t disk_bytes) {
  auto c = config(0, n_snapshots, n_blocks);
  c.block_bytes = 100;
  c.host_cache_bytes = 100 * n_slots + 99;
  c.disk_cache_bytes = disk_bytes;
  c.disk_min_tokens = 8;
  return c;
}

struct tiered_ring : bench_ring {
  explicit tiered_ring(const kv_cache_config& c, int32_t chunk = 32, int32_t max_running = 4)
      : bench_ring(c, chunk, max_running) {
    ledger.restore({}, {}, entry_id{1});
    check_each_step = true;
  }
};

inline tokens marked(std::mt19937_64& random, int64_t n, int32_t mark) {
  auto t = random_tokens(random, n);
  t[0] = mark;
  return t;
}

// What a restart finds.
inline std::vector<prefix_index::stored> listing(const pretend_device& device) {
  std::vector<prefix_index::stored> out;
  for (const auto& [id, s] : device.disk)
    out.push_back({id, s.what.parent, s.what.snapshot != snapshot_id{}, s.what.n_tokens, s.what.floor, s.what.salt,
                   s.what.symbols});
  return out;
}

inline entry_id next_entry(const pretend_device& device) {
  return device.disk.empty() ? entry_id{1} : entry_id{static_cast<uint64_t>(device.disk.rbegin()->first) + 1};
}

// The same device with nothing but its disk, and a ledger that was told what is there.
struct restarted_ring : bench_ring {
  restarted_ring(const kv_cache_config& c, const pretend_device& before) : bench_ring(c) {
    device.disk = before.disk;
    device.n_written = before.n_written;
    ledger.restore(listing(device), {}, next_entry(device));
    check_each_step = true;
  }
};

} // namespace troupe::ledger_ring
