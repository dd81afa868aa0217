// Output parser: golden cases in every grouping, and properties of streams in general.
#include "model/deepseek_v41/output_parser.h"

#include "tests/model/parser_feed.h"

#include <algorithm>
#include <chrono>
#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::golden_chat;
using simdjson::dom::element;

namespace {

parameter_type type_named(element schema) {
  std::string_view name;
  if (schema["type"].get(name)) return parameter_type::any;
  const std::map<std::string_view, parameter_type> types{
      {"string", parameter_type::string},   {"integer", parameter_type::integer}, {"number", parameter_type::number},
      {"boolean", parameter_type::boolean}, {"object", parameter_type::object},   {"array", parameter_type::array},
      {"null", parameter_type::null}};
  const auto it = types.find(name);
  return it == types.end() ? parameter_type::any : it->second;
}

parser_options options_of(element c) {
  parser_options o;
  const std::string start = golden_chat::text(c["start"]);
  o.start = start == "REASONING" ? parser_start::reasoning
            : start == "TOOLS"   ? parser_start::tools
                                 : parser_start::content;
  o.tools_active = !c["tools"].is_null();
  if (!o.tools_active) return o;
  for (const element t : list(c["tools"])) {
    chat_tool tool;
    tool.name = golden_chat::text(t["function"]["name"]);
    simdjson::dom::object properties;
    if (!t["function"]["parameters"]["properties"].get(properties))
      for (const auto field : properties) tool.parameters.emplace_back(field.key, type_named(field.value));
    o.tools.push_back(std::move(tool));
  }
  return o;
}

// The golden text as runs of text and added tokens; which is which comes from the golden ids.
units units_of(const std::vector<int32_t>& ids) {
  const tokenizer& tok = *real_tokenizer();
  units out;
  for (const int32_t id : ids) {
    if (tok.is_added(id) || out.empty() || out.back().is_marker)
      out.push_back({std::string(tok.bytes(id)), tok.is_added(id)});
    else
      out.back().text += tok.bytes(id);
  }
  return out;
}

// The case's text with real tokens (the released vocabulary).
parsed run_ids(const std::vector<int32_t>& ids, const parser_options& o, output_parser::ending ending) {
  static const marker_ids markers = find_markers(*real_tokenizer());
  output_parser parser(real_tokenizer(), markers, o);
  std::vector<output_event> out;
  for (const int32_t id : ids) parser.push(id, out);
  parser.finish(ending, out);
  parsed p;
  for (const output_event& e : out) p.add(e);
  p.stop = parser.stop_match();
  return p;
}

parsed expected_of(element c) {
  parsed p;
  const element e = c["expected"].value();
  p.reasoning = golden_chat::text(e["reasoning"]);
  if (!e["content"].is_null()) p.content = golden_chat::text(e["content"]);
  for (const element call : list(e["tool_calls"]))
    p.calls.push_back({golden_chat::text(call["name"]), golden_chat::text(call["arguments"])});
  return p;
}

// Whole, by character, by byte, cut in two at every byte, and at random bytes; markers stay whole.
std::vector<units> all_groupings(const units& whole, std::mt19937& rng, int n_random) {
  const units bytes = split(whole, false);
  std::vector<units> all{whole, split(whole, true), bytes};
  for (size_t at = 1; at < bytes.size(); ++at) all.push_back(grouped(bytes, [&](size_t i) { return i == at; }));
  for (int k = 0; k < n_random; ++k) {
    const unsigned one_in = 1 + rng() % 12;
    all.push_back(grouped(bytes, [&](size_t) { return rng() % one_in == 0; }));
  }
  return all;
}

} // namespace

TEST_CASE("output_parser: every golden case gives its message in every grouping") {
  document doc("parse_cases.json");
  std::mt19937 rng(11);
  int n = 0;
  for (const element c : cases(doc)) {
    const std::string id = golden_chat::text(c["id"]);
    CAPTURE(id);
    const parser_options o = options_of(c);
    const auto ending =
        golden_chat::text(c["finish"]) == "length" ? output_parser::ending::length : output_parser::ending::stop;
    const parsed want = expected_of(c);
    const auto ids = golden_chat::ids(c["token_ids"]);
    const units whole = units_of(ids);
    const auto all = all_groupings(whole, rng, 20);
    const chunk_vocabulary v(all);
    int n_bad = 0;
    for (const units& list : all) n_bad += !(run(v, list, o, ending) == want);
    CHECK(n_bad == 0);
    const parsed got = run_ids(ids, o, ending);
    CHECK(got.content == want.content);
    CHECK(got.reasoning == want.reasoning);
    CHECK(got.calls == want.calls);
    const std::string finish = ending == output_parser::ending::length ? "length"
                               : want.calls.empty()                    ? "stop"
                                                                       : "tool_calls";
    CHECK(finish == golden_chat::text(c["expected"]["finish_reason"]));
    ++n;
  }
  MESSAGE("parse cases: " << n << " ran");
  CHECK(n == 56);
}

TEST_CASE("output_parser: golden streams give their events in order, one character at a time") {
  document doc("stream_cases.json");
  int n = 0;
  for (const element c : cases(doc)) {
    CAPTURE(golden_chat::text(c["id"]));
    const units chars = characters(units_of(real_tokenizer()->encode(golden_chat::text(c["text"]))));
    const chunk_vocabulary v({chars});
    std::vector<output_event> events;
    run(v, chars, options_of(c), output_parser::ending::stop, &events);
    std::vector<std::string> got, want;
    const auto append = [](std::vector<std::string>& to, const std::string& kind, const std::string& text) {
      if (!to.empty() && to.back().starts_with(kind) && !kind.starts_with("call"))
        to.back() += text;
      else
        to.push_back(kind + text);
    };
    for (const output_event& e : events) {
      const std::string index = std::to_string(e.call_index) + ":";
      switch (e.what) {
      case output_event::kind::reasoning: append(got, "reasoning:", e.text); break;
      case output_event::kind::content: append(got, "content:", e.text); break;
      case output_event::kind::call: append(got, "call:" + index, e.text); break;
      case output_event::kind::arguments: append(got, "args:" + index, e.text); break;
      }
    }
    for (const element e : list(c["events"])) {
      const auto parts = list(e);
      std::string kind = golden_chat::text(parts[0]) + ":";
      if (parts.size() == 3) kind += std::to_string(parts[1].get_int64().value()) + ":";
      append(want, kind, golden_chat::text(parts.back()));
    }
    CHECK(got == want);
    ++n;
  }
  CHECK(n == 12);
}

TEST_CASE("output_parser: golden stop strings cut the content in every grouping") {
  document doc("stop_cases.json");
  std::mt19937 rng(5);
  int n = 0;
  for (const element c : cases(doc)) {
    CAPTURE(golden_chat::text(c["id"]));
    parser_options o;
    for (const element s : list(c["stop"])) o.stop.push_back(golden_chat::text(s));
    const auto all = all_groupings({{golden_chat::text(c["text"]), false}}, rng, 10);
    const chunk_vocabulary v(all);
    for (const bool include : {false, true})
      for (const bool raw : {false, true}) {
        o.include_stop = include, o.raw = raw;
        for (const units& list : all) {
          const parsed p = run(v, list, o, output_parser::ending::stop);
          CHECK(p.content == golden_chat::text(c[include ? "content_with_stop" : "content"]));
          CHECK(p.stop.value_or("-") == (c["stop_reason"].is_null() ? "-" : golden_chat::text(c["stop_reason"])));
        }
      }
    ++n;
  }
  CHECK(n == 18);
}

TEST_CASE("output_parser: markup inside reasoning stays there when the request has no tools") {
  writer w;
  w.text("Need data."), w.open_block(), w.open_call("ping"), w.close_call(), w.close_block();
  parser_options o;
  o.start = parser_start::reasoning;
  const parsed p = run(chunk_vocabulary({w.out}), w.out, o, output_parser::ending::stop);
  CHECK(p.reasoning.starts_with("Need data.\n\n<"));
  CHECK(p.content.empty());
  CHECK(p.calls.empty());
}

TEST_CASE("output_parser: a stop string waits for min_tokens") {
  parser_options o;
  o.stop = {"b"};
  const units said = {{"b", false}, {"a", false}, {"b", false}, {"c", false}, {"b", false}};
  const chunk_vocabulary v({said});
  for (const auto& [min_tokens, content] :
       {std::pair{0, ""}, {1, ""}, {2, "ba"}, {3, "ba"}, {4, "babc"}, {6, "babcb"}}) {
    o.min_tokens = min_tokens;
    CAPTURE(min_tokens);
    CHECK(run(v, said, o, output_parser::ending::stop).content == content);
  }
}

TEST_CASE("output_parser: stop strings act on content only") {
  writer w;
  w.text("Question: is it?"), w.out.push_back(marker(chat_text::think_end)), w.text("42 Question: x");
  parser_options o;
  o.start = parser_start::reasoning;
  o.stop = {"Question:"};
  const parsed p = run(chunk_vocabulary({w.out}), w.out, o, output_parser::ending::stop);
  CHECK(p.reasoning == "Question: is it?");
  CHECK(p.content == "42 ");
  CHECK(p.stop == "Question:");
}

TEST_CASE("output_parser: content held for a stop string comes before the call") {
  writer w;
  w.text("so END"), w.open_block(), w.open_call("ping"), w.close_call(), w.close_block();
  parser_options o = with_tools();
  o.stop = {"END."};
  const parsed p = run(chunk_vocabulary({w.out}), w.out, o, output_parser::ending::stop);
  CHECK(p.content == "so END");
  CHECK(p.calls.size() == 1);
}

TEST_CASE("output_parser: without parallel calls generation ends after the first") {
  writer w;
  w.open_block();
  for (int i = 0; i < 3; ++i) w.open_call("ping"), w.close_call();
  w.close_block();
  parser_options o = with_tools();
  CHECK(run(chunk_vocabulary({w.out}), w.out, o, output_parser::ending::stop).calls.size() == 3);
  o.parallel_tool_calls = false;
  const chunk_vocabulary v({w.out});
  output_parser parser(v.tok, v.markers, o);
  std::vector<output_event> out;
  size_t n = 0;
  for (; n < w.out.size() && !parser.done(); ++n) parser.push(v.id(w.out[n]), out);
  CHECK(parser.done());
  CHECK(parser.n_calls() == 1);
  CHECK(n < w.out.size() / 2);
}

TEST_CASE("output_parser: special tokens are dropped or shown, EOS never shows, markers in raw mode are text") {
  const chunk_vocabulary v({{{"a", false}}});
  const units list{
      {"a", false}, marker(chat_text::pad), marker(chat_text::eos), marker(chat_text::think_end), {"b", false}};
  parser_options o;
  CHECK(run(v, list, o, output_parser::ending::stop).content == "ab");
  o.skip_special_tokens = false;
  CHECK(run(v, list, o, output_parser::ending::stop).content == "a" + std::string(chat_text::pad) + "b");
  o = {};
  o.raw = true;
  CHECK(run(v, list, o, output_parser::ending::stop).content == "a</think>b");
}

TEST_CASE("output_parser: a cut character becomes one replacement character, before a marker and at the end") {
  const chunk_vocabulary v(std::vector<units>{});
  const units list{{"\xF0", false}, {"\x9F", false}, marker(chat_text::user), {"\xE2", false}, {"\x82", false}};
  CHECK(run(v, list, {}, output_parser::ending::stop).content == "\uFFFD<\uFF5CUser\uFF5C>\uFFFD");
}

TEST_CASE("output_parser: an ordinary token costs well under a microsecond") {
  const marker_ids markers = find_markers(*real_tokenizer());
  const auto ids = real_tokenizer()->encode(" the quick brown fox jumps over the lazy dog");
  for (const bool tools : {false, true}) {
    parser_options o = tools ? with_tools() : parser_options{};
    output_parser parser(real_tokenizer(), markers, o);
    std::vector<output_event> out;
    const int n = 200000;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < n; ++i) {
      out.clear();
      parser.push(ids[static_cast<size_t>(i) % ids.size()], out);
    }
    const double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / n;
    MESSAGE(std::string(tools ? "tools active: " : "plain: ") << ns << " ns a token");
    CHECK(ns < 5000); // generous: machines under test are shared and may run sanitizers
  }
}
