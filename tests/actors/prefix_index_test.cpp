// The tree of cached blocks by itself: content, eviction order, what it says about a miss.
#include "actors/prefix_index.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace troupe;

namespace {

using content = std::vector<symbol>;
using missing = prefix_index::missing;

content text(std::initializer_list<std::pair<int, int>> runs) { // (symbol, times)
  content out;
  for (const auto& [s, n] : runs) out.insert(out.end(), static_cast<size_t>(n), static_cast<symbol>(s));
  return out;
}

struct cached_tree {
  explicit cached_tree(int64_t max_snapshots, int64_t n_blocks = 100)
      : pool(n_blocks, 4), index({"model", max_snapshots}, pool) {}
  // A sequence that ran all of `c` and ended there.
  std::optional<snapshot_id> run(const content& c, std::string_view salt = "", int64_t floor = 0) {
    index.unpin_all();
    const sequence_id id{++last};
    const auto n = static_cast<int64_t>(c.size());
    REQUIRE(pool.open(id));
    REQUIRE(index.free_blocks(pool.n_missing(id, n)));
    REQUIRE(pool.extend(id, n));
    const auto made = index.add_snapshot(salt, c, pool.table(id), floor);
    pool.release(id);
    return made;
  }
  int64_t longest(content prompt, std::string_view salt = "") const {
    prompt.push_back(999);
    return index.longest(salt, prompt);
  }

  block_pool pool;
  prefix_index index;
  uint64_t last = 0;
};

} // namespace

TEST_CASE("prefix_index: an empty index knows no prefix") {
  cached_tree t(4);
  CHECK(t.index.find("", text({{1, 9}})).n_tokens == 0);
  CHECK(t.index.find("", {}).n_tokens == 0);
  CHECK(t.index.n_snapshots() == 0);
}

TEST_CASE("prefix_index: of several snapshots in one block the longest that fits is found") {
  cached_tree t(20);
  const auto c = text({{1, 4}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 3}});
  for (size_t n = 1; n <= c.size(); ++n) t.run(content(c.begin(), c.begin() + static_cast<std::ptrdiff_t>(n)));
  t.run(text({{1, 4}, {2, 1}, {9, 2}}));
  t.run(text({{1, 4}, {2, 1}, {0, 2}}));
  for (size_t n = 1; n < c.size(); ++n) {
    CAPTURE(n);
    content prompt(c.begin(), c.begin() + static_cast<std::ptrdiff_t>(n));
    CHECK(t.longest(prompt) == static_cast<int64_t>(n));
    prompt.push_back(77);
    const auto hit = t.index.find("", prompt);
    CHECK(hit.n_tokens == static_cast<int64_t>(n));
    CHECK(hit.n_common == static_cast<int64_t>(n));
    CHECK(hit.blocks.size() == n / 4);
    CHECK(hit.partial.has_value() == (n % 4 != 0));
  }
  CHECK(t.longest(text({{1, 4}, {2, 1}, {9, 1}})) == 5);
  CHECK(t.longest(text({{1, 4}, {2, 1}, {9, 3}})) == 7);
}

TEST_CASE("prefix_index: equal content is kept once, and every block comes back") {
  cached_tree t(20);
  const auto c = text({{1, 4}, {2, 4}, {3, 2}});
  CHECK(t.run(c).has_value());
  const int64_t n = t.pool.n_cached();
  CHECK(n == 3);
  CHECK_FALSE(t.run(c).has_value());
  CHECK(t.pool.n_cached() == n);
  t.run(text({{1, 4}, {2, 4}, {4, 6}}));
  CHECK(t.pool.n_cached() == n + 2);
  t.index.unpin_all();
  CHECK(t.index.free_blocks(100));
  CHECK(t.pool.n_free() == 100);
  CHECK(t.index.n_nodes() == 0);
  CHECK(t.index.n_snapshots() == 0);
  CHECK(t.index.take_dropped().size() == 2);
}

TEST_CASE("prefix_index: what saves most is kept longest, what was used last before that") {
  cached_tree t(3);
  t.run(text({{1, 40}}));
  t.run(text({{2, 8}}));
  t.run(text({{3, 8}}));
  t.run(text({{4, 8}})); // one of the small ones goes
  CHECK(t.longest(text({{1, 40}})) == 40);
  CHECK(t.longest(text({{4, 8}})) == 8);
  CHECK(t.longest(text({{2, 8}})) + t.longest(text({{3, 8}})) == 8);
  for (int i = 0; i < 12; ++i) t.run(text({{10 + i, 8}})); // nobody asks for the large one any more
  CHECK(t.longest(text({{1, 40}})) == 0);
}

TEST_CASE("prefix_index: what this step uses cannot go, and without room nothing is added") {
  cached_tree t(1);
  t.run(text({{1, 8}}));
  t.index.unpin_all();
  auto prompt = text({{1, 9}});
  CHECK(t.index.find("", prompt).n_tokens == 8);
  const sequence_id id{500};
  t.pool.open(id);
  t.pool.extend(id, 8);
  CHECK_FALSE(t.index.add_snapshot("", text({{2, 8}}), t.pool.table(id), 0).has_value());
  t.index.unpin_all();
  CHECK(t.index.add_snapshot("", text({{2, 8}}), t.pool.table(id), 0).has_value());
  CHECK(t.index.take_dropped().size() == 1);
}

TEST_CASE("prefix_index: in tail mode a snapshot must hold the late rows that a prompt needs") {
  cached_tree t(4);
  t.run(text({{1, 20}}), "", 15);
  auto prompt = text({{1, 20}, {2, 5}});
  CHECK(t.index.longest("", prompt, 22) == 20); // its tail lies behind
  CHECK(t.index.longest("", prompt, 15) == 20);
  CHECK(t.index.longest("", prompt, 10) == 0);
  CHECK(t.run(text({{1, 20}}), "", 9).has_value()); // one with more rows takes its place
  CHECK(t.index.longest("", prompt, 10) == 20);
}

TEST_CASE("prefix_index: a miss is explained by the first token that differs and the part that lacks") {
  cached_tree t(2);
  const auto c = text({{1, 4}, {2, 4}, {3, 4}, {4, 1}});
  t.run(c);
  const auto why = [&](content prompt, std::string_view salt = "") {
    prompt.push_back(999);
    return t.index.explain(salt, prompt);
  };
  CHECK(why(c).what == missing::nothing);
  CHECK(why(c).n_cached == 13);
  auto w = why(text({{1, 4}, {2, 2}, {7, 9}}));
  CHECK(w.what == missing::snapshot); // its blocks are there, the window state is not
  CHECK(w.first_differing == 6);
  w = why(text({{7, 9}}));
  CHECK(w.what == missing::block);
  CHECK(w.first_differing == 0);
  w = why(c, "other");
  CHECK(w.what == missing::salt);
  t.run(text({{5, 8}}));
  t.run(text({{6, 30}})); // evicts one
  w = why(text({{5, 8}}));
  CHECK(w.what == missing::evicted);
  CHECK(w.n_cached == 0);
}

TEST_CASE("prefix_index: salts that came and went leave nothing behind, and no hit crosses them") {
  cached_tree t(4);
  for (int i = 0; i < 50; ++i) {
    CHECK(t.longest(text({{1, 8}}), std::to_string(i)) == 0);
    t.run(text({{1, 8}}), std::to_string(i));
    CHECK(t.longest(text({{1, 8}}), std::to_string(i)) == 8);
  }
  CHECK(t.index.n_snapshots() == 4);
  t.index.unpin_all();
  CHECK(t.index.free_blocks(100));
  t.index.unpin_all();
  CHECK(t.index.n_salts() == 0);
}

TEST_CASE("prefix_index: symbols of an image are its pixels and place, not its placeholder tokens") {
  const std::vector<int32_t> tokens(20, 5);
  const image_place cat{3, 1, 4, 0, 70}, dog{3, 1, 4, 0, 71}; // positions 3 .. 9
  content plain, a, b, later;
  append_symbols(plain, tokens, 0, {});
  append_symbols(a, tokens, 0, {&cat, 1});
  append_symbols(b, tokens, 0, {&dog, 1});
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool inside = i >= 3 && i < 10;
    CHECK((a[i] == plain[i]) == !inside);
    CHECK((a[i] == b[i]) == !inside);
    if (inside) CHECK(std::count(a.begin(), a.end(), a[i]) == 1);
  }
  append_symbols(later, std::span(tokens).subspan(5), 5, {&cat, 1}); // in pieces the same
  CHECK(std::equal(later.begin(), later.end(), a.begin() + 5));
}
