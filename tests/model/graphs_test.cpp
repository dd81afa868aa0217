// Captured steps: the same bits as launched ones, for every number of rows and anchors, in any order of use.
#include "tests/ahead_device.h"
#include "tests/model/golden_case.h"
#include "tests/near.h"

#include <algorithm>

using namespace golden;

namespace {

constexpr int32_t n_slots = 4;

// Records that are on their way until they are taken. `arrive`: false: they never come.
class late_records final : public record_source {
public:
  late_records(std::span<const std::byte> records, const std::function<bool()>& arrive)
      : records_(records), arrive_(arrive) {}
  std::optional<std::span<const std::byte>> take() override {
    if (!arrive_()) return std::nullopt;
    return records_;
  }

private:
  std::span<const std::byte> records_;
  const std::function<bool()>& arrive_;
};

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
  std::function<bool()> arrive = [] { return true; }; // asked when a step takes its records
  // Logits of the last row of prompts and of every row behind them. A step that throws may be made again.
  std::vector<float> step(std::span<const part> parts) {
    const auto before = at_;
    const std::vector<sequence_rows> rows = rows_of(parts);
    for (const part& p : parts) at_[static_cast<size_t>(p.slot)] += static_cast<int64_t>(p.tokens.size());
    const std::vector<std::byte> records = read(rows);
    late_records late(records, arrive);
    try {
      const auto all = model_->forward(rows, late);
      return {all.begin(), all.end()};
    } catch (...) {
      at_ = before;
      throw;
    }
  }
  void take_back(std::span<const part> parts) { // the last step, to be made again
    for (const part& p : parts) at_[static_cast<size_t>(p.slot)] -= static_cast<int64_t>(p.tokens.size());
  }
  // Rounds of drafts by greedy choice: verifies the last tokens of each part, then guesses behind what ended each run,
  // all of them or those of even slots. `ahead`: the model is told with the step what it will be asked.
  struct round {
    std::vector<int32_t> drawn;
    draft_tokens guesses;
  };
  round verify(std::span<const part> parts, bool ahead, bool even_slots_only) {
    const std::vector<sequence_rows> rows = rows_of(parts);
    std::vector<draft_wish> wishes;
    sample_batch batch(model_->info().vocabulary);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (ahead) wishes.push_back({i, rows[i].n_logits - 1});
      batch.rows.resize(batch.rows.size() + rows[i].tokens.size(), {.temperature = 0});
    }
    const std::vector<std::byte> records = read(rows);
    sampled_rows drawn;
    model_->forward_and_sample(rows, records, batch, drawn, wishes);
    std::vector<draft_request> requests;
    auto next = drawn.ids.begin();
    for (const part& p : parts) {
      const auto drafts = p.tokens.subspan(1);
      const auto right = std::mismatch(drafts.begin(), drafts.end(), next).first - drafts.begin();
      int64_t& at = at_[static_cast<size_t>(p.slot)];
      at += 1 + right;
      if (!even_slots_only || p.slot % 2 == 0) requests.push_back({p.slot, at, *(next + right)});
      next += static_cast<std::ptrdiff_t>(p.tokens.size());
    }
    return {drawn.ids, model_->draft_next(requests)};
  }
  int64_t at(int32_t slot) const { return at_[static_cast<size_t>(slot)]; }
  draft_tokens guess(int32_t n) {
    std::vector<draft_request> requests;
    for (int32_t s = 0; s < n; ++s) requests.push_back({s, at_[static_cast<size_t>(s)], 7 + s});
    return model_->draft_next(requests);
  }

private:
  std::vector<sequence_rows> rows_of(std::span<const part> parts) const {
    std::vector<sequence_rows> rows;
    for (const part& p : parts) {
      sequence_rows& s = rows.emplace_back();
      s.slot = p.slot;
      s.start = at(p.slot);
      s.tokens = p.tokens;
      s.blocks = blocks_[static_cast<size_t>(p.slot)];
      s.n_prompt = p.n_prompt;
      s.n_logits = s.start < p.n_prompt ? 1 : static_cast<int32_t>(p.tokens.size());
    }
    return rows;
  }
  std::vector<std::byte> read(std::span<const sequence_rows> rows) {
    size_t n = 0;
    for (const sequence_rows& s : rows) n += s.tokens.size();
    std::vector<std::byte> records(n * static_cast<size_t>(tables_.record_bytes_per_token()));
    tables_.read(rows, records);
    return records;
  }

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

// Prompts of four sequences, and what follows them by greedy choice, a token at a time.
struct continuations {
  std::vector<std::vector<int32_t>> prompts, after;
  continuations(backend& be, prefill_mode mode, size_t n_tokens) : after(n_slots) {
    player truth(be, mode);
    for (uint32_t s = 0; s < n_slots; ++s) prompts.push_back(ids_of(20 + 3 * s, s));
    const auto choose = [&](const std::vector<float>& logits) {
      const auto width = static_cast<std::ptrdiff_t>(logits.size() / n_slots);
      for (std::ptrdiff_t s = 0; s < n_slots; ++s) {
        const auto row = logits.begin() + s * width;
        after[static_cast<size_t>(s)].push_back(static_cast<int32_t>(std::max_element(row, row + width) - row));
      }
    };
    choose(truth.step(prompt_parts()));
    for (size_t i = 1; i < n_tokens; ++i) {
      std::vector<player::part> newest;
      for (int32_t s = 0; s < n_slots; ++s)
        newest.push_back({s, std::span(after[static_cast<size_t>(s)]).last(1), n_prompt(s)});
      choose(truth.step(newest));
    }
  }
  static int64_t n_prompt(int32_t slot) { return 20 + 3 * slot; }
  std::vector<player::part> prompt_parts() const {
    std::vector<player::part> parts;
    for (int32_t s = 0; s < n_slots; ++s) parts.push_back({s, prompts[static_cast<size_t>(s)], n_prompt(s)});
    return parts;
  }
};

// A model that is told with the step what it will be asked guesses the same behind the same tokens.
void compare_ahead(prefill_mode mode) {
  on_ranks(1, [&](backend& be, int) {
    const continuations known(be, mode, 48);
    player asked(be, mode), told(be, mode);
    if (!asked.of().can_draft()) return;
    for (player* p : {&asked, &told}) {
      p->of().capture_steps(16);
      p->step(known.prompt_parts());
    }
    size_t right_drafts = 0;
    for (uint32_t round = 0; round < 10; ++round) {
      std::vector<std::vector<int32_t>> tokens;
      std::vector<player::part> parts;
      for (int32_t s = 0; s <= static_cast<int32_t>((round + 3) % n_slots); ++s) {
        const auto& after = known.after[static_cast<size_t>(s)];
        const auto from = static_cast<size_t>(told.at(s) - known.n_prompt(s)), n = (round + static_cast<size_t>(s)) % 4;
        auto& mine = tokens.emplace_back(after.begin() + static_cast<std::ptrdiff_t>(from),
                                         after.begin() + static_cast<std::ptrdiff_t>(from + n + 1));
        if (n > 0 && round % 3 != 0) mine[1 + round % n] ^= 1; // one draft is wrong
      }
      for (size_t s = 0; s < tokens.size(); ++s)
        parts.push_back({static_cast<int32_t>(s), tokens[s], known.n_prompt(static_cast<int32_t>(s))});
      const int64_t before = told.at(0);
      const auto want = asked.verify(parts, false, round % 4 == 1), got = told.verify(parts, true, round % 4 == 1);
      right_drafts += static_cast<size_t>(told.at(0) - before - 1);
      REQUIRE(got.drawn == want.drawn);
      CHECK(got.guesses.ids == want.guesses.ids);
      CHECK(got.guesses.confidence == want.guesses.confidence);
    }
    CHECK(right_drafts > 0);
    CHECK(told.of().counts().replayed == asked.of().counts().replayed);
    CHECK(told.of().counts().launched == 0);
  });
}

} // namespace

TEST_CASE("graphs: guesses begun behind tokens that are being drawn are those of asking afterwards") {
  compare_ahead(prefill_mode::exact);
  compare_ahead(prefill_mode::tail);
}

TEST_CASE("graphs: replayed steps and guesses have the bits of launched ones") { compare(prefill_mode::exact); }

TEST_CASE("graphs: the same in tail mode") { compare(prefill_mode::tail); }

TEST_CASE("graphs: a step whose records come when it is under way has the bits of one whose records were there") {
  const auto plain = troupe::test::make_device(1), ahead = troupe::test::make_ahead_device();
  player launched(*plain, prefill_mode::tail), late(*ahead, prefill_mode::tail);
  late.of().capture_steps(16);
  CHECK(late.of().runs_ahead(1));
  CHECK(late.of().runs_ahead(16));
  CHECK_FALSE(late.of().runs_ahead(17));
  CHECK_FALSE(launched.of().runs_ahead(1)); // nothing was captured
  int n_taken = 0, n_late = 0;
  late.arrive = [&] {
    n_late += troupe::test::is_under_way(*ahead);
    return ++n_taken > 0;
  };
  std::vector<std::vector<int32_t>> prompts;
  std::vector<player::part> first;
  for (uint32_t s = 0; s < n_slots; ++s) prompts.push_back(ids_of(20 + 3 * s, s));
  for (int32_t s = 0; s < n_slots; ++s) first.push_back({s, prompts[static_cast<size_t>(s)], 20 + 3 * s});
  REQUIRE(late.step(first) == launched.step(first));
  for (uint32_t round = 0; round < 12; ++round) {
    const auto more = ids_of(16, 100 + round);
    std::vector<player::part> parts;
    for (int32_t s = 0; s <= static_cast<int32_t>(round % n_slots); ++s)
      parts.push_back({s, std::span(more).first(1 + (round + static_cast<uint32_t>(s)) % 4), 20 + 3 * s});
    REQUIRE(late.step(parts) == launched.step(parts));
    CHECK(n_taken == 2 + static_cast<int>(round)); // once a step
    if (!late.of().can_draft()) continue;
    const int32_t n = 1 + static_cast<int32_t>(round) % n_slots;
    CHECK(late.guess(n).ids == launched.guess(n).ids);
  }
  CHECK(n_late >= 12); // of the prompt's step nothing runs ahead
  CHECK(late.of().counts().launched == 0);
}

TEST_CASE("graphs: records that never come, or end in an error, leave the device free and later steps as they are") {
  const auto plain = troupe::test::make_device(1), ahead = troupe::test::make_ahead_device();
  player truth(*plain, prefill_mode::exact), p(*ahead, prefill_mode::exact);
  p.of().capture_steps(4);
  const auto ids = ids_of(40, 3);
  const player::part prompt{0, std::span(ids).first(20), 20};
  REQUIRE(p.step({&prompt, 1}) == truth.step({&prompt, 1}));
  for (size_t at = 20; at < 40; at += 2) {
    const player::part rows{0, std::span(ids).subspan(at, 2), 20};
    if (at % 4 == 0) {
      p.arrive = []() -> bool { throw std::runtime_error("no disk"); };
      CHECK_THROWS_WITH_AS(p.step({&rows, 1}), "no disk", std::runtime_error);
    } else {
      p.arrive = [] { return false; };
      p.step({&rows, 1});
      p.take_back({&rows, 1});
    }
    p.arrive = [] { return true; };
    REQUIRE(p.step({&rows, 1}) == truth.step({&rows, 1}));
  }
}

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
