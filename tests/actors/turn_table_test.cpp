// From tokens to deltas: one push a turn and step, causes of the end, usage, stop strings, tokens that ride once.
#include "actors/turn_table.h"
#include "tests/actors/doubles.h"

#include <doctest/doctest.h>

using namespace troupe;

namespace {

using namespace std::chrono_literals;

struct table_world {
  counters numbers;
  turn_table table{tiny_text(), numbers};
  std::shared_ptr<recording_sink> sink = std::make_shared<recording_sink>();
  turn_table::outcome out;
  turn_table::time now{};

  turn_open request(int n = 1) {
    turn_open o;
    o.turn = turn_id{1};
    for (int i = 0; i < n; ++i) o.sequences.push_back({sequence_id{static_cast<uint64_t>(i)}, i, {}});
    o.sink = sink;
    o.raw = true;
    o.prompt_tokens = 7;
    return o;
  }
  void start(turn_open o) {
    REQUIRE(table.open(std::move(o), now));
    table.queued(turn_id{1}, out);
  }
  void step(std::vector<accepted_tokens> sequences) {
    now += 10ms;
    table.accept({1, 1, std::move(sequences)}, now, out);
  }
  static std::vector<int32_t> words(const std::string& text) { return tiny_text()->words()->encode(text); }
  static accepted_tokens said(uint64_t id, const std::string& text, end_cause end = end_cause::none) {
    return said(id, tiny_text()->words()->encode(text), end);
  }
  static accepted_tokens said(uint64_t id, const std::vector<int32_t>& ids, end_cause end = end_cause::none) {
    accepted_tokens a;
    a.id = sequence_id{id};
    for (const auto t : ids) a.tokens.push_back({t, 0, {}});
    a.end = end;
    return a;
  }
};

} // namespace

TEST_CASE("turn_table: one push a turn and step, whatever the number of tokens and choices") {
  table_world w;
  w.start(w.request(2));
  w.step({w.said(0, " one two"), w.said(1, " three")});
  CHECK(w.sink->n_opens == 1);
  CHECK(w.sink->n_pushes == 1);
  CHECK(w.sink->choices.at(0).content == " one two");
  CHECK(w.sink->choices.at(1).content == " three");
  CHECK(w.out.ended.empty());
}

TEST_CASE("turn_table: every token rides exactly once, in order, markers and the end token too") {
  table_world w;
  auto o = w.request();
  o.raw = false;
  o.start = parser_start::reasoning;
  w.start(std::move(o));
  const auto& words = *tiny_text()->words();
  std::vector<int32_t> ids = words.encode("think");
  ids.push_back(tiny_text()->think_end_id());
  for (const auto id : words.encode(" \xC3\xA9t\xC3\xA9!")) ids.push_back(id);
  for (const auto id : ids) w.step({w.said(0, std::vector<int32_t>{id})});
  w.step({w.said(0, std::vector<int32_t>{1}, end_cause::eos)});
  ids.push_back(1);
  const auto& c = w.sink->choices.at(0);
  CHECK(c.ids == ids);
  CHECK(c.reasoning == "think");
  CHECK(c.content == " \xC3\xA9t\xC3\xA9!");
  CHECK(c.n_ends == 1);
  CHECK(w.sink->usage.completion_tokens == static_cast<int64_t>(ids.size()));
  CHECK(w.sink->usage.reasoning_tokens == static_cast<int64_t>(words.encode("think").size()));
  REQUIRE(w.out.ended.size() == 1);
  CHECK(w.out.ended[0].cause == "stop");
  CHECK(w.table.n_turns() == 0);
}

TEST_CASE("turn_table: a stop string drops the later tokens of its step and tells the scheduler") {
  table_world w;
  auto o = w.request();
  o.stop = {"END"};
  w.start(std::move(o));
  w.step({w.said(0, "abc END of the story")});
  const auto& c = w.sink->choices.at(0);
  CHECK(c.content == "abc ");
  CHECK(c.stop_string == "END");
  CHECK(c.cause == finish_cause::stop);
  CHECK(w.sink->usage.completion_tokens == static_cast<int64_t>(c.ids.size()));
  CHECK(c.ids.size() < tiny_text()->words()->encode("abc END of the story").size());
  CHECK(w.out.stopped == std::vector<sequence_id>{sequence_id{0}});
  w.step({w.said(0, "late")}); // already planned when it stopped
  CHECK(w.sink->n_pushes == 1);
}

TEST_CASE("turn_table: causes of the end") {
  table_world w;
  auto o = w.request();
  o.raw = false;
  o.tools_active = true;
  const std::string call =
      "\n\n<\uFF5CDSML\uFF5C calls>\n<\uFF5CDSML\uFF5C invoke name=\"f\">\n</\uFF5CDSML\uFF5C invoke>\n";
  const std::string close = "</\uFF5CDSML\uFF5C calls>";
  SUBCASE("a closed tool block") {
    w.start(std::move(o));
    w.step({w.said(0, "ok" + call + close)});
    const auto& c = w.sink->choices.at(0);
    const size_t n_said = w.words("ok" + call + close).size();
    SUBCASE("and the end token behind it, which the turn keeps") {
      CHECK(w.out.ended.empty());
      w.step({w.said(0, std::vector<int32_t>{1}, end_cause::eos)});
      CHECK(c.ids.size() == n_said + 1);
      CHECK(c.ids.back() == 1);
      CHECK(w.out.stopped.empty());
    }
    SUBCASE("and more text, which was never said") {
      w.step({w.said(0, "more")});
      CHECK(c.ids.size() == n_said);
      CHECK(w.out.stopped == std::vector<sequence_id>{sequence_id{0}});
    }
    SUBCASE("and a failure behind it, which no longer matters") {
      w.step({w.said(0, std::vector<int32_t>{}, end_cause::failed)});
      CHECK(c.ids.size() == n_said);
    }
    CHECK(c.cause == finish_cause::tool_calls);
    CHECK(c.calls == "f:{}");
    CHECK(c.content == "ok");
    CHECK(w.sink->usage.completion_tokens == static_cast<int64_t>(c.ids.size()));
    CHECK(w.out.ended.at(0).cause == "tool_calls");
  }
  SUBCASE("a closed tool block and the end token in one step") {
    w.start(std::move(o));
    auto said = w.words(call + close);
    said.push_back(1);
    w.step({w.said(0, said, end_cause::eos)});
    CHECK(w.sink->choices.at(0).ids == said);
    CHECK(w.sink->choices.at(0).cause == finish_cause::tool_calls);
  }
  SUBCASE("a named choice ends with stop") {
    o.named_tool = true;
    w.start(std::move(o));
    w.step({w.said(0, call + close)});
    w.step({w.said(0, std::vector<int32_t>{1}, end_cause::eos)});
    CHECK(w.sink->choices.at(0).cause == finish_cause::stop);
  }
  SUBCASE("the end token after a call") {
    w.start(std::move(o));
    w.step({w.said(0, call), w.said(0, std::vector<int32_t>{1}, end_cause::eos)});
    CHECK(w.sink->choices.at(0).cause == finish_cause::tool_calls);
    CHECK(w.out.stopped.empty());
  }
  SUBCASE("cut by length wins over a call") {
    w.start(std::move(o));
    w.step({w.said(0, call, end_cause::length)});
    CHECK(w.sink->choices.at(0).cause == finish_cause::length);
  }
  SUBCASE("a stop token makes no text") {
    w.start(std::move(o));
    w.step({w.said(0, std::vector<int32_t>{500, 600}, end_cause::stop_token)});
    CHECK(w.sink->choices.at(0).content == tiny_text()->words()->decode(std::vector<int32_t>{500}, true));
    CHECK(w.sink->choices.at(0).stop_token == 600);
    CHECK(w.sink->usage.completion_tokens == 2);
  }
}

TEST_CASE("turn_table: a failed sequence fails its turn, stops the other choices and says so once") {
  table_world w;
  w.start(w.request(2));
  accepted_tokens a;
  a.id = sequence_id{0};
  a.end = end_cause::failed;
  a.failure = "rows.bin";
  a.status = 503;
  w.step({a, w.said(1, "x")});
  CHECK(w.sink->n_failures == 1);
  CHECK(w.sink->error.type == "ServiceUnavailableError");
  CHECK(w.sink->n_pushes == 0);
  CHECK(w.out.stopped == std::vector<sequence_id>{sequence_id{1}});
  CHECK(w.out.ended.at(0).cause.substr(0, 6) == "error:");
}

TEST_CASE("turn_table: full is said once until the sink was drained; closed ends the pushes") {
  table_world w;
  w.start(w.request());
  w.sink->next_state = turn_sink::state::full;
  w.step({w.said(0, "a")});
  w.step({w.said(0, "b")});
  CHECK(w.out.paused.size() == 1);
  w.table.resumed(turn_id{1});
  w.step({w.said(0, "c")});
  CHECK(w.out.paused.size() == 2);
  w.sink->next_state = turn_sink::state::closed;
  w.step({w.said(0, "d")});
  w.step({w.said(0, "e")});
  CHECK(w.out.closed.size() == 1);
  CHECK(w.sink->n_pushes == 4);
  w.table.gone(turn_id{1}, w.now, w.out);
  CHECK(w.out.ended.at(0).cause == "abort");
}

TEST_CASE("turn_table: an echoed prompt is the first content") {
  table_world w;
  auto o = w.request();
  o.sequences[0].echo = "Once";
  w.start(std::move(o));
  w.step({w.said(0, " upon", end_cause::length)});
  CHECK(w.sink->choices.at(0).content == "Once upon");
}

TEST_CASE("turn_table: opening twice is refused, times and counts reach the end") {
  table_world w;
  w.start(w.request());
  CHECK_FALSE(w.table.open(w.request(), w.now));
  w.step({w.said(0, "a")});
  w.step({w.said(0, "b", end_cause::length)});
  const auto& e = w.out.ended.at(0);
  CHECK(e.first_token_us == 10000);
  CHECK(e.decode_us == 10000);
  CHECK(e.usage.prompt_tokens == 7);
  CHECK(w.numbers.inter_token.count(0) == 1);
}
