// Shapes of streamed and whole answers: the golden event streams, and what assembling a stream must give.
#include "net/json_tree.h"
#include "net/openai_answer.h"
#include "net/openai_stream.h"
#include "tests/net/raw_client.h"
#include "tests/net/test_facts.h"

#include <doctest/doctest.h>

#include <fstream>
#include <regex>
#include <sstream>

using namespace troupe;

namespace {

json_document golden(const std::string& name) {
  std::ifstream in(std::string(TROUPE_SOURCE_DIR) + "/tests/golden/chat/" + name, std::ios::binary);
  std::ostringstream all;
  all << in.rdbuf();
  json_document doc;
  REQUIRE(doc.parse(all.str()));
  return doc;
}

answer_style golden_style() {
  answer_style s;
  s.stream = true;
  s.id = "chatcmpl-0f3a";
  s.model = "deepseek-v4.1-flash";
  s.created = 1790000000;
  return s;
}

turn_delta delta(turn_delta::kind what, std::string_view text, int32_t choice = 0, int32_t call = 0) {
  turn_delta d;
  d.what = what;
  d.text = text;
  d.choice = choice;
  d.call_index = call;
  return d;
}
using kind = turn_delta::kind;

turn_delta end(finish_cause cause, int32_t choice = 0, std::string_view stop = {}) {
  turn_delta d = delta(kind::end, {}, choice);
  d.cause = cause;
  d.stop_string = stop;
  return d;
}

// Plays deltas, comments between them as pings, and compares with the golden stream; call ids are random, so both sides
// lose theirs.
void check_stream(const char* id, answer_style style, const std::vector<turn_delta>& deltas, bool fails = false) {
  const auto doc = golden("sse_shapes.json");
  std::string want;
  for (const auto& c : doc.root().find("cases")->items)
    if (c.find("id")->text == id)
      for (const auto& piece : c.find("sse")->items)
        if (piece.text != ": ping\n\n") want += piece.text;
  openai_stream stream(std::move(style), make_test_facts());
  std::string got;
  stream.append_open(got, {});
  for (const auto& d : deltas) stream.append(got, d);
  if (fails) openai_stream::append_error(got, {500, "InternalServerError", "engine restarted", "", 0}, false);
  const std::regex call_id("call_[A-Za-z0-9]{24}");
  CHECK(std::regex_replace(got, call_id, "call_X") == std::regex_replace(want, call_id, "call_X"));
}

} // namespace

TEST_CASE("openai_stream: the golden chat streams byte for byte") {
  auto style = golden_style();
  style.include_usage = true;
  auto last = end(finish_cause::stop);
  last.usage = {21, 30, 16, 12};
  check_stream("chat-text", style,
               {delta(kind::content, "17\xC2\xB7"
                                     "19"),
                delta(kind::content, " = 323 \xF0\x9F\x99\x82"), last});
  check_stream("chat-no-usage", golden_style(), {delta(kind::content, "ok"), end(finish_cause::length)});
  check_stream("chat-reasoning-keepalive", golden_style(),
               {delta(kind::reasoning, "17*20"), delta(kind::reasoning, "-17"), delta(kind::content, "323"),
                end(finish_cause::stop, 0, "END")});
  check_stream("chat-tools", golden_style(),
               {delta(kind::content, "Let me look."), delta(kind::call, "get_weather"),
                delta(kind::arguments, "{\"city\": \""), delta(kind::arguments, "M\xC3\xBCn\\\"chen\""),
                delta(kind::arguments, "}"), delta(kind::call, "ping", 0, 1), delta(kind::arguments, "{}", 0, 1),
                end(finish_cause::tool_calls)});
  check_stream("chat-error-midstream", golden_style(), {delta(kind::content, "par")}, true);
}

TEST_CASE("openai_stream: two choices with log-probabilities, as in the golden stream") {
  auto style = golden_style();
  style.n_choices = 2;
  style.logprobs = true;
  const auto token = [](int32_t id, float p) { return std::vector<sampled_token>{{id, p, {{id, p}}}}; };
  const auto big_b = token('B', -0.5f), big_a = token('A', -0.25f), small_b = token('b', -1.0f);
  auto one = delta(kind::content, "B", 1), two = delta(kind::content, "A"), three = delta(kind::content, "b", 1);
  one.tokens = big_b;
  two.tokens = big_a;
  three.tokens = small_b;
  check_stream("chat-n2-logprobs", style, {one, two, end(finish_cause::stop), three, end(finish_cause::stop, 1)});
}

TEST_CASE("openai_stream: golden parser events assemble to the same message, whole and streamed (A02, A04, A10)") {
  const auto doc = golden("stream_cases.json");
  for (const auto& c : doc.root().find("cases")->items) {
    CAPTURE(std::string(c.find("id")->text));
    std::string reasoning, content, calls;
    const auto facts = make_test_facts();
    openai_stream stream(golden_style(), facts);
    openai_answer answer(golden_style(), facts);
    std::string sse;
    stream.append_open(sse, {});
    answer.open({});
    const auto play = [&](const turn_delta& d) {
      stream.append(sse, d);
      answer.add(d);
    };
    for (const auto& e : c.find("raw_events")->items) {
      const auto what = e.items[0].text;
      const auto index = e.items.size() > 2 ? std::stoi(std::string(e.items[1].text)) : 0;
      const auto text = e.items.back().text;
      play(delta(what == "reasoning" ? kind::reasoning
                 : what == "content" ? kind::content
                 : what == "call"    ? kind::call
                                     : kind::arguments,
                 text, 0, index));
    }
    play(end(finish_cause::stop));
    for (const auto& e : c.find("events")->items) {
      const auto what = e.items[0].text;
      (what == "reasoning" ? reasoning : what == "content" ? content : calls) += e.items.back().text;
    }
    std::string got_reasoning, got_content, got_calls;
    for (const auto& event : events_of(sse)) {
      if (event == "[DONE]") continue;
      json_document chunk;
      REQUIRE(chunk.parse(event));
      const auto* choices = chunk.root().find("choices");
      REQUIRE(choices->is(json_kind::array)); // L02
      const auto* d = choices->items[0].find("delta");
      if (const auto* v = d->find("content")) got_content += v->text;
      if (const auto* v = d->find("reasoning_content")) got_reasoning += v->text;
      if (const auto* list = d->find("tool_calls")) {
        const auto& call = list->items[0];
        REQUIRE(call.find("index"));
        const auto* function = call.find("function");
        const auto* name = function->find("name");
        CHECK((name != nullptr) == (call.find("id") != nullptr));
        CHECK((name != nullptr) == (call.find("type") != nullptr));
        REQUIRE(function->find("arguments")->is(json_kind::string));
        if (name) got_calls += name->text;
        got_calls += function->find("arguments")->text;
      }
    }
    CHECK(got_reasoning == reasoning);
    CHECK(got_content == content);
    CHECK(got_calls == calls);
    json_document body;
    REQUIRE(body.parse(answer.body()));
    const auto* m = body.root().find("choices")->items[0].find("message");
    CHECK(m->find("content")->text == content);
    CHECK(m->find("reasoning")->text == reasoning);
    std::string whole_calls;
    if (const auto* list = m->find("tool_calls"))
      for (const auto& call : list->items)
        whole_calls.append(call.find("function")->find("name")->text)
            .append(call.find("function")->find("arguments")->text);
    CHECK(whole_calls == calls);
    CHECK((m->find("tool_calls") != nullptr) == !calls.empty());
  }
}

TEST_CASE("openai_stream: E01, usage only when asked for; E02, one finish chunk a choice") {
  for (const bool usage : {false, true}) {
    auto style = golden_style();
    style.n_choices = 3;
    style.include_usage = usage;
    openai_stream stream(style, make_test_facts());
    std::string sse;
    stream.append_open(sse, {});
    for (int32_t i = 0; i < 3; i++) {
      stream.append(sse, delta(kind::content, "x", i));
      stream.append(sse, end(i == 1 ? finish_cause::length : finish_cause::stop, i));
      stream.append(sse, end(finish_cause::stop, i)); // a second end is not sent
    }
    CHECK(stream.finished());
    int n_usage = 0, n_finish = 0, n_empty = 0;
    for (const auto& e : events_of(sse)) {
      n_usage += e.find("\"usage\":{") != std::string::npos;
      n_finish += e.find("\"finish_reason\":\"") != std::string::npos;
      n_empty += e.find("\"choices\":[],") != std::string::npos;
    }
    CHECK(n_usage == (usage ? 1 : 0));
    CHECK(n_empty == (usage ? 1 : 0));
    CHECK(n_finish == 3);
  }
}

TEST_CASE("openai_stream: token ids, usage in every chunk, hidden reasoning, completions") {
  const std::vector<sampled_token> tokens{{5, 0, {}}, {6, 0, {}}};
  const std::vector<int32_t> prompt{1, 2};
  auto style = golden_style();
  style.token_ids = style.include_usage = style.continuous_usage = true;
  style.reasoning = style.reasoning_content = false;
  openai_stream stream(style, make_test_facts());
  std::string sse;
  stream.append_open(sse, prompt);
  auto hidden = delta(kind::reasoning, "secret");
  hidden.tokens = tokens;
  hidden.usage = {2, 2, 0, 2};
  stream.append(sse, hidden);
  stream.append(sse, end(finish_cause::stop));
  const auto events = events_of(sse);
  CHECK(sse.find("secret") == std::string::npos);
  CHECK(events[0].find("\"prompt_token_ids\":[1,2]") != std::string::npos);
  CHECK(events[1].find("\"token_ids\":[5,6]") != std::string::npos);
  CHECK(events[1].find("\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":2") != std::string::npos);
  auto text = golden_style();
  text.is_chat = false;
  openai_stream completions(text, make_test_facts());
  std::string out;
  completions.append_open(out, {});
  completions.append(out, delta(kind::content, "a"));
  completions.append(out, end(finish_cause::length));
  CHECK(out ==
        "data: {\"id\":\"chatcmpl-0f3a\",\"object\":\"text_completion\",\"created\":1790000000,\"model\":\"deepseek-"
        "v4.1-flash\",\"choices\":[{\"index\":0,\"text\":\"a\",\"logprobs\":null,\"finish_reason\":null,\"stop_"
        "reason\":null}]}\n\ndata: {\"id\":\"chatcmpl-0f3a\",\"object\":\"text_completion\",\"created\":1790000000,"
        "\"model\":\"deepseek-v4.1-flash\",\"choices\":[{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_"
        "reason\":\"length\",\"stop_reason\":null}]}\n\ndata: [DONE]\n\n");
}

TEST_CASE("openai_answer: D02, log-probabilities of split characters keep the exact bytes") {
  auto style = golden_style();
  style.logprobs = true;
  openai_answer answer(style, make_test_facts());
  answer.open({});
  const std::vector<sampled_token> tokens{{0xF0, -1, {}}, {0x9F, -1, {}}, {0x98, -1, {}}, {0x80, -1, {}}};
  auto d = delta(kind::content, "\xF0\x9F\x98\x80");
  d.tokens = tokens;
  answer.add(d);
  answer.add(end(finish_cause::stop));
  json_document doc;
  REQUIRE(doc.parse(answer.body()));
  std::string bytes;
  for (const auto& entry : doc.root().find("choices")->items[0].find("logprobs")->find("content")->items) {
    CHECK(entry.find("token")->text == "\xEF\xBF\xBD");
    for (const auto& b : entry.find("bytes")->items) bytes += static_cast<char>(std::stoi(std::string(b.text)));
  }
  CHECK(bytes == "\xF0\x9F\x98\x80");
}

TEST_CASE("openai_answer: completions have their own log-probability form") {
  auto style = golden_style();
  style.is_chat = false;
  style.logprobs = true;
  openai_answer answer(style, make_test_facts());
  answer.open({});
  const std::vector<sampled_token> tokens{{'a', -0.5f, {{'a', -0.5f}, {'b', -2}}}, {'c', -1, {}}};
  auto d = delta(kind::content, "ac");
  d.tokens = tokens;
  answer.add(d);
  answer.add(end(finish_cause::length));
  CHECK(
      answer.body().find(
          R"("logprobs":{"text_offset":[0,1],"token_logprobs":[-0.5,-1],"tokens":["a","c"],"top_logprobs":[{"a":-0.5,"b":-2},{}]})") !=
      std::string::npos);
}

TEST_CASE("openai_stream: C03, an answer that ends at once has a role chunk, a finish chunk and empty content") {
  openai_stream stream(golden_style(), make_test_facts());
  std::string sse;
  stream.append_open(sse, {});
  stream.append(sse, end(finish_cause::stop));
  CHECK(events_of(sse).size() == 3);
  openai_answer answer(golden_style(), make_test_facts());
  answer.open({});
  answer.add(end(finish_cause::stop));
  CHECK(answer.body().find("\"content\":\"\"") != std::string::npos);
}

TEST_CASE("openai_stream: the prompt's text rides with the first chunk, or stands beside the choices") {
  const std::string text = ",\"prompt_text\":\"a\\\"b\"";
  for (const bool is_chat : {true, false}) {
    answer_style style = golden_style();
    style.is_chat = is_chat;
    openai_stream stream(style, make_test_facts());
    std::string out;
    stream.show_prompt("a\"b");
    stream.append_open(out, {});
    stream.append(out, delta(kind::content, "x"));
    stream.append(out, end(finish_cause::stop));
    const auto events = events_of(out);
    CHECK(events.front().find(text) != std::string::npos);
    CHECK(out.find(text) == out.rfind(text));
    for (const auto& e : events)
      if (e != "[DONE]") CHECK(json_document().parse(e));
    openai_answer whole(style, make_test_facts());
    whole.show_prompt("a\"b");
    whole.open({});
    whole.add(end(finish_cause::stop));
    json_document doc;
    REQUIRE(doc.parse(whole.body()));
    CHECK(doc.root().find("prompt_text")->text == "a\"b");
  }
}
