// The rank without a model: a fixed text, its pace, its limits.
#include "actors/null_text.h"
#include "actors/request.h"
#include "tests/actors/world.h"

#include <doctest/doctest.h>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

scripted_ring null_ring(world& w, double tokens_per_s) {
  return scripted_ring(w, scripted_ring::small_limits(), 1, [=](ring_config& c) {
    c.null = null_rank_config{tiny_text()->words()->encode_plain(" abc def"), tokens_per_s};
    c.open_tables = {};
  });
}

} // namespace

TEST_CASE("null_rank: repeats its text and stops at max_tokens") {
  world w;
  auto r = null_ring(w, 0);
  const auto out = std::make_shared<recording_sink>();
  const auto n = static_cast<int64_t>(r.text->words()->encode_plain(" abc def").size());
  r.start(r.completion("Hi", 2 * n), out);
  w.run();
  CHECK(out->choices.at(0).content == " abc def abc def");
  CHECK(out->choices.at(0).cause == finish_cause::length);
  CHECK(out->usage.completion_tokens == 2 * n);
  CHECK(w.count<step_ready>("null_rank") == w.count<step_plan>("kv_cache"));
  CHECK(r.is_idle());
}

TEST_CASE("null_rank: each stream gets its tokens at the set rate, together with the others") {
  world w;
  auto r = null_ring(w, 100);
  const auto one = std::make_shared<recording_sink>(), two = std::make_shared<recording_sink>();
  r.start(r.completion("Hi", 50), one);
  r.start(r.completion("Ho", 50), two);
  w.run();
  for (int i = 0; i < 200; ++i) w.advance(1ms); // 20 tokens each, give or take the first steps
  CHECK(one->usage.completion_tokens >= 18);
  CHECK(one->usage.completion_tokens <= 21);
  CHECK(two->usage.completion_tokens >= 17);
  for (int i = 0; i < 400; ++i) w.advance(1ms);
  CHECK(one->has_ended());
  CHECK(two->has_ended());
  CHECK(r.is_idle());
}

TEST_CASE("null_rank: stamps tell the times at which a stream's tokens left") {
  world w;
  scripted_ring r(w, scripted_ring::small_limits(), 1, [](ring_config& c) {
    c.null = null_rank_config{{1}, 100};
    for (const char letter : stamp_alphabet)
      for (const auto id : tiny_text()->words()->encode_plain({&letter, 1})) c.null->stamps.push_back(id);
    c.open_tables = {};
  });
  const auto out = std::make_shared<recording_sink>();
  r.start(r.completion("Hi", 16), out);
  w.run();
  for (int i = 0; i < 400 && !out->has_ended(); ++i) w.advance(1ms);
  const std::string said = out->choices.at(0).content;
  REQUIRE(said.size() == 16);
  std::vector<int64_t> stamps_us;
  for (const size_t at : {size_t{0}, size_t{8}}) {
    CHECK(said[at] == '@');
    int64_t us = 0;
    for (const char c : said.substr(at + 1, 7)) us = us * 32 + static_cast<int64_t>(stamp_alphabet.find(c)) - 1;
    stamps_us.push_back(us);
  }
  CHECK(stamps_us[1] - stamps_us[0] >= 79'000); // eight tokens at 100 a second, time moves by 1 ms
  CHECK(stamps_us[1] - stamps_us[0] <= 81'000);
  CHECK(r.is_idle());
}
