// Where the next blocks of drafts begin: behind the drafts that were right.
#include "gpu/backend.h"

#include <doctest/doctest.h>

#include <vector>

using namespace troupe;

TEST_CASE("place_anchors: right drafts move the anchor on, the first wrong one ends the run") {
  const auto be = make_host_backend({.n_threads = 1});
  const auto i32 = [&](std::vector<int32_t> v) {
    const tensor t = be->allocate(dtype::i32, {static_cast<int64_t>(v.size())}, "test");
    be->upload(t, v.data(), t.size_bytes());
    return t;
  };
  anchor_args a;
  // Sequences of a step: 7 with drafts 11, 12, 13; 8 alone; 9 with draft 21; 6 whose token could not be drawn.
  a.step_ids = i32({7, 11, 12, 13, 8, 9, 21, 6});
  a.drawn = i32({11, 12, 50, 51, 60, 21, 70, sample_unsound});
  a.requests = i32({0, 0, 3, 100, 4, 4, 0, 200, 5, 5, 1, 300, 7, 7, 0, 400});
  a.guesses = i32({-5, -5, -5, -5});
  a.ids = i32({-5, 3, -5, 3, -5, 3, -5, 3});
  a.positions = be->allocate(dtype::i64, {8}, "test");
  be->place_anchors(a);
  const auto read = [](const auto* p, int64_t n) { return std::vector<int64_t>(p, p + n); };
  CHECK(read(a.guesses.i32(), 4) == std::vector<int64_t>{50, 60, 70, 0});
  CHECK(read(a.ids.i32(), 8) == std::vector<int64_t>{50, 3, 60, 3, 70, 3, 0, 3}); // noise stays
  CHECK(read(a.positions.i64(), 8) == std::vector<int64_t>{102, 103, 200, 201, 301, 302, 400, 401});
}
