// The shipped model in a ring with tiers below the device: host memory, and a folder of files.
#pragma once

#include "tests/actors/tiny_ring.h"

#include <filesystem>
#include <random>

namespace troupe {

struct tier_settings {
  int64_t n_blocks = 260, n_slots = 260, n_snapshots = 50;
  std::filesystem::path folder{}; // empty: no disk
  int64_t disk_bytes = int64_t{1} << 30;
  int32_t chunk = 512, max_running = 2, n_drafts = 0;
  bool overcommit = false;
};

// One life of a server.
struct tier_ring : tiny_ring {
  explicit tier_ring(const tier_settings& s)
      : tiny_ring({.n_blocks = s.n_blocks,
                   .max_running = s.max_running,
                   .chunk = s.chunk,
                   .n_drafts = s.n_drafts,
                   .overcommit = s.overcommit,
                   .interval = 4096},
                  [&s](ring_config& c) { add_tiers(c, s); }) {
    r.parts.max_context = r.parts.info.context;
    r.parts.prepare = w.own(spawn_prepare(w.system(), {r.parts.config, r.parts.info, r.parts.max_context}, text, 0));
  }
  static void add_tiers(ring_config& c, const tier_settings& s) {
    const auto bytes = plan_state(tiny_folder, host_caches);
    c.prefix.snapshot_memory_bytes = s.n_snapshots * bytes.per_snapshot;
    c.prefix.block_bytes = bytes.per_block;
    c.prefix.host_cache_bytes = s.n_slots * bytes.per_block;
    c.prefix.fingerprint = "fp_test";
    c.prefix.disk_min_tokens = 100;
    if (s.folder.empty()) return;
    c.prefix.disk_cache_bytes = s.disk_bytes;
    c.disk = tier_disk_config{s.folder, "fp_test", 0, 1, s.disk_bytes};
  }
  std::shared_ptr<exact_sink> ask(const std::vector<int32_t>& prompt, int64_t max_tokens = 4) {
    return tiny_ring::ask(completion_of(prompt, max_tokens));
  }
  static chat_request completion_of(const std::vector<int32_t>& prompt, int64_t max_tokens, draw how = draw::greedy) {
    auto q = tiny_completion("", max_tokens, how);
    q.prompts.clear();
    q.prompt_ids = {prompt};
    return q;
  }
};

inline std::vector<int32_t> some_tokens(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (auto& t : out) t = 300 + static_cast<int32_t>(random() % 1500);
  return out;
}

inline void same(const exact_sink& got, const exact_sink& want) {
  CHECK(got.ids() == want.ids());
  CHECK(got.said == want.said);
}

} // namespace troupe
