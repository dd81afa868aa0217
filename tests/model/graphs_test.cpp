// Captured steps: the same bits as launched ones, for every number of rows and anchors, in any order of use.
#include "tests/model/golden_case.h"
#include "tests/near.h"

using namespace golden;

namespace {

constexpr int32_t n_slots = 4;

// One model and what a scheduler feeds it: four sequences, each a prompt and then steps of any number of rows.
class player {
public:
  player(backend& be, prefill_mode mode) : files_(tiny_b().folder), tables_(files_, tiny_b().token_map, 0, 1, n_slots) {
    model_options o;
    o.folder = tiny_b().folder.string();
    o.max_sequences = n_slots;
    o.n_blocks = 8;
    o.max_rows = 128;
    o.prefill = mode;
    o.tail_tokens = 8;
    model_ = std::make_unique<model_v41>(be, o, nullptr);
  }
  model_v41& of() { return *model_; }

  struct part {
    int32_t slot;
    std::span<const int32_t> tokens;
    int64_t n_prompt;
  };
  // Logits of the last row of prompts and of every row behind them.
  std::vector<float> step(std::span<const part> parts) {
    std::vector<sequence_rows> rows;
    int64_t n = 0;
    for (const part& p : parts) {
      sequence_rows& s = rows.emplace_back();
      s.slot = p.slot;
      s.start = at_[static_cast<size_t>(p.slot)];
      s.tokens = p.tokens;
      s.blocks = blocks_[static_cast<size_t>(p.slot)];
      s.n_prompt = p.n_prompt;
      s.n_logits = s.start < p.n_prompt ? 1 : static_cast<int32_t>(p.tokens.size());
      at_[static_cast<size_t>(p.slot)] += static_cast<int64_t>(p.tokens.size());
      n += static_cast<int64_t>(p.tokens.size());
    }
    std::vector<std::byte> records(static_cast<size_t>(n * tables_.record_bytes_per_token()));
    tables_.read(rows, records);
    const auto all = model_->forward(rows, records);
    return {all.begin(), all.end()};
  }
  draft_tokens guess(int32_t n) {
    std::vector<draft_request> requests;
    for (int32_t s = 0; s < n; ++s) requests.push_back({s, at_[static_cast<size_t>(s)], 7 + s});
    return model_->draft_next(requests);
  }

private:
  checkpoint files_;
  engram_tables tables_;
  std::unique_ptr<model_v41> model_;
  std::vector<int64_t> at_ = std::vector<int64_t>(n_slots);
  std::vector<std::vector<int32_t>> blocks_{{6, 1}, {0, 7}, {3, 2}, {5, 4}};
};

std::vector<int32_t> ids_of(size_t n, uint32_t seed) {
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>((seed = seed * 1664525U + 1013904223U) >> 8) % 384;
  return ids;
}

void compare(prefill_mode mode) {
  on_ranks(1, [&](backend& be, int) {
    player launched(be, mode), captured(be, mode);
    captured.of().capture_steps(16);
    CHECK(captured.of().counts().replayed == 0);
    std::vector<std::vector<int32_t>> prompts;
    for (uint32_t s = 0; s < n_slots; ++s) prompts.push_back(ids_of(20 + 3 * s, s));
    std::vector<player::part> first;
    for (int32_t s = 0; s < n_slots; ++s) first.push_back({s, prompts[static_cast<size_t>(s)], 20 + 3 * s});
    REQUIRE(captured.step(first) == launched.step(first));
    CHECK(captured.of().counts().replayed == 0); // prompts are launched
    int64_t replayed = 0;
    for (uint32_t round = 0; round < 12; ++round) {
      const auto more = ids_of(16, 100 + round);
      std::vector<player::part> parts;
      for (int32_t s = 0; s <= static_cast<int32_t>(round % n_slots); ++s)
        parts.push_back({s, std::span(more).first(1 + (round + static_cast<uint32_t>(s)) % 4), 20 + 3 * s});
      REQUIRE(captured.step(parts) == launched.step(parts));
      ++replayed;
      if (!captured.of().can_draft()) continue;
      const int32_t n = 1 + static_cast<int32_t>(round) % n_slots;
      const draft_tokens got = captured.guess(n), want = launched.guess(n);
      CHECK(got.ids == want.ids);
      CHECK(got.confidence == want.confidence);
      ++replayed;
    }
    CHECK(captured.of().counts().replayed == replayed);
    CHECK(captured.of().counts().launched == 0);
    const auto many = ids_of(17, 999);
    const player::part wide{0, many, 20};
    REQUIRE(captured.step({&wide, 1}) == launched.step({&wide, 1}));
    CHECK(captured.of().counts().launched == 1); // of more rows than were captured
  });
}

} // namespace

TEST_CASE("graphs: replayed steps and guesses have the bits of launched ones") { compare(prefill_mode::exact); }

TEST_CASE("graphs: the same in tail mode") { compare(prefill_mode::tail); }

TEST_CASE("graphs: guesses made on the device are those of the host's loop over logits") {
  on_ranks(1, [&](backend& be, int) {
    player m(be, prefill_mode::exact);
    if (!m.of().can_draft()) return;
    const auto a = ids_of(30, 6), b = ids_of(21, 7);
    m.step(std::vector<player::part>{{0, a, 30}, {1, b, 21}});
    const draft_tokens got = m.guess(2);
    const draft_anchor anchors[] = {{.slot = 0, .position = 30, .token = 7}, {.slot = 1, .position = 21, .token = 8}};
    const draft_result want = m.of().draft(anchors);
    CHECK(got.ids == want.tokens);
    REQUIRE(got.confidence.size() == want.confidence.size());
    for (size_t i = 0; i < got.confidence.size(); ++i)
      CHECK(got.confidence[i] == 1 / (1 + std::exp(-want.confidence[i])));
  });
}
