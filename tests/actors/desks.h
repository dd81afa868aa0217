// The shipped model behind policy, ledger and rank, without actors: what drafts do to tokens.
#pragma once

#include "actors/batch_policy.h"
#include "actors/kv_ledger.h"
#include "actors/rank_state.h"
#include "tests/actors/doubles.h"

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

// The desks of the ring without their actors, over the shipped model: policy, ledger, tables, rank, one by one.
class desks {
public:
  static constexpr int32_t block = 5;
  static inline const std::string folder = TROUPE_SOURCE_DIR "/etc/models/tiny";

  struct outcome {
    std::vector<int32_t> ids;
    end_cause end = end_cause::none;
    std::string failure;
    int64_t n_rounds = 0, n_drafts = 0, n_accepted = 0; // rounds: steps that had drafts
  };

  explicit desks(int32_t n_drafts, int32_t max_running = 8, bool has_prefix_cache = true)
      : limits_(limits(n_drafts, max_running)), policy_(limits_), ledger_(prefix(limits_, has_prefix_cache)),
        device_(make_host_backend({.n_threads = 2})), model_(load(*device_, limits_, n_drafts > 0)),
        tables_(open_tables(folder, 0, 1, max_running)), rank_({suppressed(), 1}, true) {}
  static batch_limits limits(int32_t n_drafts, int32_t max_running) {
    batch_limits l;
    l.max_running = max_running;
    l.max_queue = 1024;
    l.chunk_tokens = 256;
    l.n_blocks = 512;
    l.block_tokens = 64;
    if (n_drafts > 0) l.drafts = {block, n_drafts, false};
    return l;
  }
  static std::unique_ptr<model> load(backend& be, const batch_limits& l, bool with_drafts) {
    model_options o;
    o.folder = folder;
    o.max_sequences = l.max_running;
    o.n_blocks = l.n_blocks;
    o.max_rows = l.max_rows_and_drafts();
    o.load_draft = with_drafts;
    o.load_vision = false;
    return load_model(be, o, nullptr);
  }
  // One turn of n choices; the ids of its sequences.
  std::vector<sequence_id> admit(const std::vector<int32_t>& prompt, int64_t max_tokens, sampling_params sampling,
                                 int32_t n = 1) {
    turn_admit t{turn_id{++last_turn_}, {}};
    std::vector<sequence_id> ids;
    for (sampling.choice = 0; sampling.choice < n; ++sampling.choice) {
      auto& s = t.sequences.emplace_back();
      s.turn = t.turn;
      s.id = sequence_id{++last_sequence_};
      s.prompt = prompt;
      s.max_tokens = max_tokens;
      s.sampling = sampling;
      s.shares_prompt = sampling.choice > 0;
      ids.push_back(s.id);
    }
    REQUIRE(!policy_.admit(std::move(t), now_).has_value());
    return ids;
  }
  void run() {
    while (policy_.has_step(now_)) step();
    CHECK(policy_.is_idle());
    CHECK(ledger_.pool().n_held() == 0);
  }
  const outcome& of(sequence_id id) { return outcomes_[id]; }

private:
  static std::vector<int32_t> suppressed() {
    const auto ids = tiny_text()->suppressed_ids();
    return {ids.begin(), ids.end()};
  }
  static kv_cache_config prefix(const batch_limits& l, bool is_on) {
    kv_cache_config c;
    c.n_blocks = l.n_blocks;
    c.block_tokens = l.block_tokens;
    const auto bytes = plan_state(folder, host_caches);
    c.snapshot_bytes = bytes.per_snapshot;
    c.snapshot_memory_bytes = is_on ? 32 * bytes.per_snapshot : 0;
    c.snapshot_slack = l.drafts.block > 0 ? bytes.draft_slack : bytes.snapshot_slack;
    return c;
  }
  void step() {
    auto plan = policy_.plan(now_);
    plan.step = ++last_step_;
    const auto placed = ledger_.place(std::move(plan));
    std::vector<sequence_rows> rows;
    size_t n_rows = 0;
    for (const auto& r : placed.plan.rows) {
      auto& row = rows.emplace_back();
      row.slot = r.slot;
      row.start = r.start;
      row.tokens = r.tokens;
      for (const auto& c : placed.cached)
        if (c.id == r.id) row.before = c.before;
      n_rows += r.tokens.size();
    }
    records_.resize(n_rows * static_cast<size_t>(tables_->record_bytes_per_token()));
    if (n_rows > 0) tables_->read(rows, records_);
    REQUIRE(rank_.begin(placed, model_.get()).empty());
    step_result result{1, last_step_, {}, 0, 0};
    if (n_rows > 0) {
      ready_records ready(records_);
      rank_.run(placed.plan, {}, ready, *model_);
      result.results = rank_.answer(placed.plan, {}, *model_, result.draft_us);
    }
    rank_.end(placed, {}, *model_);
    std::vector<accepted_tokens> accepted;
    policy_.accept(std::move(result), now_, accepted);
    for (const auto& a : accepted) {
      auto& o = outcomes_[a.id];
      for (const auto& t : a.tokens) o.ids.push_back(t.id);
      o.end = a.end;
      o.failure = a.failure;
      o.n_rounds += a.n_drafts > 0;
      o.n_drafts += a.n_drafts;
      o.n_accepted += a.n_accepted;
    }
  }

  batch_limits limits_;
  batch_policy policy_;
  kv_ledger ledger_;
  std::unique_ptr<backend> device_;
  std::unique_ptr<model> model_;
  std::unique_ptr<table_reader> tables_;
  rank_state rank_;
  std::vector<std::byte> records_;
  std::map<sequence_id, outcome> outcomes_;
  batch_policy::time now_{};
  uint64_t last_turn_ = 0, last_sequence_ = 0, last_step_ = 0;
};

} // namespace troupe
