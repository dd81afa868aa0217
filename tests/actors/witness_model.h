// A scripted model that also keeps what a real one would: the tokens of every KV block and of every slot. Each step it
// compares the two, so that a wrong block table, a stale snapshot or a lost rollback breaks it at once.
#pragma once

#include "tests/actors/doubles.h"

namespace troupe {

class witness_model : public scripted_model {
public:
  static constexpr int64_t slack = 8; // at least a block of drafts

  using scripted_model::scripted_model;
  std::span<const float> forward(std::span<const sequence_rows> rows, record_source& records) override {
    const auto out = scripted_model::forward(rows, records);
    for (const auto& r : rows) check(r);
    return out;
  }
  int64_t snapshot_bytes() const override { return 1; }
  int64_t snapshot_slack() const override { return slack; }
  void save_slot(int32_t slot, int64_t n_tokens, std::vector<std::byte>& to) override {
    const auto& tokens = tokens_[slot];
    const auto n = static_cast<int64_t>(tokens.size());
    if (n < n_tokens || n > n_tokens + slack)
      throw std::runtime_error("slot " + std::to_string(slot) + " is at " + std::to_string(n) + ", a snapshot of " +
                               std::to_string(n_tokens) + " is wanted");
    to.resize(static_cast<size_t>(n_tokens) * sizeof(int32_t));
    std::memcpy(to.data(), tokens.data(), to.size());
  }
  void load_slot(int32_t slot, int64_t n_tokens, std::span<const std::byte> from) override {
    check_snapshot(n_tokens, from);
    auto& tokens = tokens_[slot];
    tokens.resize(static_cast<size_t>(n_tokens));
    std::memcpy(tokens.data(), from.data(), from.size());
  }
  void check_snapshot(int64_t n_tokens, std::span<const std::byte> from) const override {
    if (from.size() != static_cast<size_t>(n_tokens) * sizeof(int32_t))
      throw std::runtime_error("a snapshot of another length");
  }
  void copy_block(int32_t from, int32_t to) override { blocks_[to] = blocks_[from]; }
  int64_t block_bytes() const override { return info().block_tokens * int64_t{sizeof(int32_t)}; }
  void save_block(int32_t block, std::vector<std::byte>& to) override {
    auto& tokens = blocks_[block];
    tokens.resize(static_cast<size_t>(info().block_tokens), -1);
    to.resize(static_cast<size_t>(block_bytes()));
    std::memcpy(to.data(), tokens.data(), to.size());
  }
  void load_block(int32_t block, std::span<const std::byte> from) override {
    if (static_cast<int64_t>(from.size()) != block_bytes()) throw std::runtime_error("a block of another length");
    auto& tokens = blocks_[block];
    tokens.resize(static_cast<size_t>(info().block_tokens));
    std::memcpy(tokens.data(), from.data(), from.size());
  }

private:
  void check(const sequence_rows& r) {
    const auto& tokens = tokens_[r.slot];
    const auto n = static_cast<size_t>(info().block_tokens);
    for (size_t i = 0; i < r.tokens.size(); ++i) {
      const size_t at = static_cast<size_t>(r.start) + i;
      auto& block = blocks_[r.blocks[at / n]];
      block.resize(n, -1);
      block[at % n] = r.tokens[i];
    }
    for (size_t at = 0; at < tokens.size(); ++at)
      if (const auto& block = blocks_[r.blocks[at / n]]; block.size() != n || block[at % n] != tokens[at])
        throw std::logic_error("slot " + std::to_string(r.slot) + ", position " + std::to_string(at) +
                               ": the KV block does not hold what the sequence fed");
  }
  std::map<int32_t, std::vector<int32_t>> blocks_;
};

} // namespace troupe
