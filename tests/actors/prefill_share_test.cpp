// How prompts share the rows of a step.
#include "actors/prefill_share.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>

using namespace troupe;

namespace {

struct prompts {
  std::deque<batch_sequence> sequences;
  std::deque<batch_turn> turns;
  prefill_share share{8};

  batch_sequence& add(int64_t n_prompt, int32_t rank = 0) {
    auto& s = sequences.emplace_back();
    s.what.prompt.resize(static_cast<size_t>(n_prompt));
    turns.emplace_back().rank = rank;
    return s;
  }
  // Rows given, in order of add().
  std::vector<int64_t> step(int64_t budget) {
    std::vector<prefill_share::candidate> c;
    for (size_t i = 0; i < sequences.size(); ++i)
      if (sequences[i].n_left() > 0) c.push_back({&sequences[i], &turns[i], 0});
    share.split(c, budget);
    std::vector<int64_t> rows(sequences.size());
    for (const auto& one : c) {
      rows[static_cast<size_t>(
          std::find_if(sequences.begin(), sequences.end(), [&](const auto& s) { return &s == one.sequence; }) -
          sequences.begin())] = one.n_rows;
      one.sequence->n_done += one.n_rows;
    }
    return rows;
  }
};

} // namespace

TEST_CASE("prefill_share: one prompt has all rows, and no more than it needs") {
  prompts p;
  p.add(100);
  CHECK(p.step(64) == std::vector<int64_t>{64});
  CHECK(p.step(64) == std::vector<int64_t>{36});
}

TEST_CASE("prefill_share: a short newcomer overtakes a long prompt, which keeps a quarter") {
  prompts p;
  p.add(10000);
  p.step(64);
  p.add(17);
  CHECK(p.step(64) == std::vector<int64_t>{47, 17});
  p.add(64);
  CHECK(p.step(64) == std::vector<int64_t>{16, 0, 48});
  CHECK(p.step(64) == std::vector<int64_t>{48, 0, 16});
}

TEST_CASE("prefill_share: many newcomers at once each get rows in the first step") {
  prompts p;
  p.add(10000);
  p.step(64);
  for (int i = 0; i < 20; ++i) p.add(3000);
  const auto rows = p.step(64);
  for (size_t i = 0; i < rows.size(); ++i) CHECK(rows[i] > 0);
}

TEST_CASE("prefill_share: long prompts share by class, 4 to 2 to 1, and the same within one") {
  prompts p;
  p.add(1000000, 0);
  p.add(1000000, 0);
  p.add(1000000, 1);
  p.add(1000000, 2);
  std::vector<int64_t> sum(4);
  for (int i = 0; i < 1000; ++i) {
    const auto rows = p.step(37);
    for (size_t k = 0; k < 4; ++k) sum[k] += rows[k];
  }
  CHECK(sum[0] + sum[1] + sum[2] + sum[3] == 37000);
  CHECK(std::abs(sum[0] - sum[1]) <= 64);
  CHECK(std::abs(sum[0] - 2 * sum[2]) <= 128);
  CHECK(std::abs(sum[0] - 4 * sum[3]) <= 128);
}

TEST_CASE("prefill_share: with one row a step nobody starves") {
  prompts p;
  auto& old = p.add(50);
  p.step(1);
  for (int i = 0; i < 30; ++i) p.add(3);
  for (int i = 0; i < 139; ++i) p.step(1);
  CHECK(old.n_left() == 0);
  for (const auto& s : p.sequences) CHECK(s.n_left() == 0);
}

TEST_CASE("prefill_share: a prompt that just fits is not put off for ever by a flood of shorter ones") {
  prompts p;
  auto& waits = p.add(48);
  p.add(1000000);
  int n = 0;
  for (; waits.n_left() > 0 && n < 40; ++n) {
    for (int i = 0; i < 4; ++i) p.add(12);
    p.step(48);
  }
  CHECK(n <= 10);
}
