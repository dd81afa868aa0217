// Selection of entries and of candidate blocks.
#include "gpu/topk.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace troupe;

namespace {

// One row at `position`, one head of one dimension with q = 1, w = 1: entry e scores max(keys[e], 0).
struct one_row {
  std::vector<float> q{1}, weight{1}, keys, scores;
  std::vector<int32_t> zero{0}, blocks{0}, selected, in, out;
  std::vector<int64_t> position, floor{0};
  step_rows rows;
  index_args a;

  one_row(std::vector<float> entry_keys, int64_t at, int64_t k)
      : keys(std::move(entry_keys)), selected(k), position{at} {
    rows.slot = rows.first_row = rows.table = tensor(zero.data(), dtype::i32, {1});
    rows.position = tensor(position.data(), dtype::i64, {1});
    rows.floor = tensor(floor.data(), dtype::i64, {1});
    rows.tables = tensor(blocks.data(), dtype::i32, {1, 1});
    a.selected = tensor(selected.data(), dtype::i32, {1, k});
    a.q = tensor(q.data(), dtype::f32, {1, 1, 1});
    a.weight = tensor(weight.data(), dtype::f32, {1, 1});
    a.keys = tensor(keys.data(), dtype::f32, {1, static_cast<int64_t>(keys.size()), 1});
    a.candidate_block = 2;
  }
  std::vector<int32_t> run() {
    select_entries_host(a, rows);
    return selected;
  }
};

using list = std::vector<int32_t>;

} // namespace

TEST_CASE("topk: the largest scores, ascending by entry, ties by the lower entry") {
  CHECK(one_row({1, 5, 3, 5, 4, 9}, 4, 3).run() == list{1, 3, 4}); // entry 5 is not visible yet
  CHECK(one_row({-1, -2, -3, 0}, 3, 2).run() == list{0, 1});       // all rectified to 0
}

TEST_CASE("topk: fewer visible entries than k, and none") {
  CHECK(one_row({1, 2, 3, 4}, 1, 4).run() == list{0, 1, -1, -1});
  one_row pair({1, 2}, 0, 2);
  pair.a.ratio = 2; // the first token of a pair sees nothing, the second its own entry
  CHECK(pair.run() == list{-1, -1});
  pair.position[0] = 1;
  CHECK(pair.run() == list{0, -1});
}

TEST_CASE("topk: candidate blocks by their best entry, the newest block forced in") {
  one_row r({9, 0, 1, 2, 8, 7, 0}, 6, 2);
  r.out.resize(2);
  r.a.candidates_out = tensor(r.out.data(), dtype::i32, {1, 2});
  CHECK(r.run() == list{0, 4}); // its own selection is from all entries
  CHECK(r.out == list{0, 3});   // the best block, and the newest although it scores 0
}

TEST_CASE("topk: entries outside the candidates are not selected, raw scores are not masked") {
  one_row r({9, 8, 1, 2, 7, 6}, 5, 3);
  r.in = {1, 2, -1};
  r.a.candidates_in = tensor(r.in.data(), dtype::i32, {1, 3});
  CHECK(r.run() == list{3, 4, 5});
  r.scores.resize(8);
  r.a.scores = tensor(r.scores.data(), dtype::f32, {1, 8});
  CHECK(r.run() == list{3, 4, 5});
  CHECK(r.scores == std::vector<float>{9, 8, 1, 2, 7, 6, -INFINITY, -INFINITY});
}
