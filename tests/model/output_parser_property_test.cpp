// Output parser: properties of streams of random calls, cut, mutated and regrouped.
#include "tests/model/parser_feed.h"

#include <algorithm>
#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::golden_chat;

namespace {

std::string random_value(std::mt19937& rng) {
  static const std::vector<std::string> parts{
      "x", " ", "\n", "<", "</", "<b>",  "\"",     "\\",     "\u4E2D",          "\U0001F600",
      "{", "}", ":",  "/", "\t", "\x01", "</div>", "calls>", "\uFF5CDSML\uFF5C"};
  std::string s;
  for (unsigned n = rng() % 12; n-- > 0;) s += parts[rng() % parts.size()];
  return s;
}

// A random JSON value, spelled as the model spells it.
std::string random_json(std::mt19937& rng, int depth) {
  static const std::vector<std::string> leaves{
      "null", "true", "-1",        "2.50", "1e3", "\"\"", "\"a\\n\\\"b\\\\\"", "\"\u4E2D \U0001F600 \\u00e9\"",
      "[]",   "{}",   "\"</b> <\""};
  if (depth == 0 || rng() % 3 == 0) return leaves[rng() % leaves.size()];
  const bool is_object = rng() % 2 == 0;
  std::string s = is_object ? "{" : "[";
  for (unsigned n = 1 + rng() % 3; n-- > 0;) {
    if (is_object) s += "\"k" + std::to_string(n) + "\": ";
    s += random_json(rng, depth - 1) + (n > 0 ? ", " : "");
  }
  return s + (is_object ? "}" : "]");
}

} // namespace

TEST_CASE("output_parser: two calls cut at any token keep complete calls and never show markup in arguments") {
  writer w;
  w.text("ok"), w.open_block();
  for (const char* a : {"first", "second"})
    w.open_call("f"), w.parameter("a", true, a), w.parameter("n", false, "1"), w.close_call();
  w.close_block();
  const units chars = characters(w.out);
  const chunk_vocabulary v({chars});
  for (size_t n = 0; n <= chars.size(); ++n) {
    const units part(chars.begin(), chars.begin() + static_cast<std::ptrdiff_t>(n));
    const parsed cut = run(v, part, with_tools(), output_parser::ending::length);
    const parsed ended = run(v, part, with_tools(), output_parser::ending::stop);
    REQUIRE(cut.calls.size() == ended.calls.size());
    for (size_t i = 0; i < cut.calls.size(); ++i) {
      CHECK(ended.calls[i].arguments.starts_with(cut.calls[i].arguments));
      CHECK(kind_of_json(ended.calls[i].arguments) == json_kind::object);
      CHECK(ended.calls[i].arguments.find("DSML") == std::string::npos);
    }
    if (!cut.calls.empty()) CHECK(cut.content == "ok");
    if (cut.calls.size() == 2) CHECK(cut.calls[0].arguments == "{\"a\": \"first\", \"n\": 1}");
  }
}

TEST_CASE("output_parser: random calls come back as they were written, in any grouping" * doctest::test_suite("slow")) {
  std::mt19937 rng(40801);
  for (int k = 0; k < 10000; ++k) {
    writer w;
    parsed want;
    want.content = "Text " + std::to_string(k) + (rng() % 2 ? "\n" : "") + ".";
    w.text(want.content), w.open_block();
    for (unsigned n = 1 + rng() % 4; n-- > 0;) {
      std::string arguments;
      w.open_call("g");
      for (unsigned p = rng() % 4; p > 0; --p) {
        const std::string key = "k" + std::to_string(p), value = random_value(rng);
        w.parameter(key, true, value);
        arguments += (arguments.empty() ? "{\"" : ", \"") + key + "\": \"";
        append_json_escaped(arguments, value);
        arguments += '"';
      }
      w.close_call();
      want.calls.push_back({"g", arguments.empty() ? "{}" : arguments + "}"});
    }
    w.close_block();
    const units chars = characters(w.out);
    const unsigned one_in = 1 + rng() % 12;
    const units random = grouped(chars, [&](size_t) { return rng() % one_in == 0; });
    const chunk_vocabulary v({w.out, chars, random});
    for (const units& list : {w.out, chars, random}) {
      const parsed got = run(v, list, with_tools(), output_parser::ending::stop);
      REQUIRE(got.content == want.content);
      REQUIRE(got.calls == want.calls);
      REQUIRE(got.n_errors == 0);
    }
  }
}

TEST_CASE("output_parser: mutated blocks always end normally and are counted" * doctest::test_suite("slow")) {
  writer w;
  w.text("go"), w.open_block(), w.open_call("f"), w.parameter("a", true, "v"), w.parameter("n", false, "2");
  w.close_call(), w.open_call("ping"), w.close_call(), w.close_block();
  const units good = characters(w.out);
  const chunk_vocabulary v({good});
  std::mt19937 rng(3560);
  uint64_t n_errors = 0;
  for (int k = 0; k < 50000; ++k) {
    units list = good;
    for (unsigned m = 1 + rng() % 3; m-- > 0 && !list.empty();) {
      const auto at = static_cast<std::ptrdiff_t>(rng() % list.size());
      switch (rng() % 4) {
      case 0: list.erase(list.begin() + at); break;
      case 1: std::swap(list[static_cast<size_t>(at)], list[rng() % list.size()]); break;
      case 2: list.insert(list.begin() + at, list[rng() % list.size()]); break;
      default: list.resize(static_cast<size_t>(at)); break;
      }
    }
    const parsed p = run(v, list, with_tools(), output_parser::ending::stop);
    n_errors += p.n_errors;
    for (const auto& call : p.calls) REQUIRE(kind_of_json(call.arguments) == json_kind::object);
  }
  CHECK(n_errors > 10000);
}

TEST_CASE("output_parser: random argument objects come back as they were written" * doctest::test_suite("slow")) {
  std::mt19937 rng(10781);
  for (int k = 0; k < 2000; ++k) {
    writer w;
    std::string arguments;
    w.open_block(), w.open_call("g");
    for (unsigned p = rng() % 4; p > 0; --p) {
      const std::string key = "k" + std::to_string(p), value = random_json(rng, 4);
      w.parameter(key, false, value);
      arguments += (arguments.empty() ? "{\"" : ", \"") + key + "\": " + value;
    }
    arguments += arguments.empty() ? "{}" : "}";
    w.close_call(), w.close_block();
    const units chars = characters(w.out);
    const unsigned one_in = 1 + rng() % 12;
    const units random = grouped(chars, [&](size_t) { return rng() % one_in == 0; });
    const chunk_vocabulary v({w.out, chars, random});
    for (const units& list : {w.out, chars, random}) {
      const parsed got = run(v, list, with_tools(), output_parser::ending::stop);
      REQUIRE(got.calls.size() == 1);
      REQUIRE(got.calls[0].arguments == arguments);
    }
  }
}

TEST_CASE("output_parser: a string argument of 200 kB streams through") {
  writer w;
  std::string value, arguments = "{\"a\": \"";
  for (int i = 0; value.size() < 200'000; ++i) value += "line " + std::to_string(i) + " <b> \"\u4E2D\"\n";
  w.open_block(), w.open_call("f"), w.parameter("a", true, value), w.close_call(), w.close_block();
  append_json_escaped(arguments, value);
  const units chars = characters(w.out);
  std::vector<output_event> events;
  const parsed got = run(chunk_vocabulary({chars}), chars, with_tools(), output_parser::ending::stop, &events);
  CHECK(got.calls.at(0).arguments == arguments + "\"}");
  CHECK(events.size() > 100'000);
}

TEST_CASE("output_parser: text of emoji and Chinese streams as it decodes, one id at a time" *
          doctest::test_suite("slow")) {
  const auto& tok = real_tokenizer();
  const marker_ids markers = find_markers(*tok);
  std::mt19937 rng(28926);
  static const std::vector<std::string> parts{"\U0001F600",
                                              "\U0001F468\u200D\U0001F469",
                                              "\u4E2D\u6587",
                                              "\U00020000",
                                              "\U0001F1E9\U0001F1EA",
                                              "a",
                                              "\n",
                                              " ",
                                              "\u00E9",
                                              "\uFFFD"};
  for (int k = 0; k < 5000; ++k) {
    std::string text, streamed;
    for (unsigned n = rng() % 20; n-- > 0;) text += parts[rng() % parts.size()];
    output_parser parser(tok, markers, {});
    std::vector<output_event> events;
    for (const int32_t id : tok->encode_plain(text)) parser.push(id, events);
    parser.finish(output_parser::ending::stop, events);
    for (const output_event& e : events) {
      REQUIRE(is_utf8(e.text));
      streamed += e.text;
    }
    REQUIRE(streamed == text);
  }
}
