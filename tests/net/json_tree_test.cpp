// The JSON reader and the Python-style writer: tables of good, odd and broken texts.
#include "net/json_text.h"
#include "net/json_tree.h"
#include "net/python_json.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>

using namespace troupe;

namespace {

std::string round(const std::string& text) {
  json_document doc;
  return doc.parse(text) ? to_python_json(doc.root()) : "error: " + doc.error();
}

bool is_refused(const std::string& text) {
  json_document doc;
  const bool refused = !doc.parse(text);
  if (refused) CHECK(!doc.error().empty());
  return refused;
}

} // namespace

TEST_CASE("json_tree: keeps key order, number spelling and the last of duplicate keys at the first place") {
  CHECK(round(R"({"z":1,"a":{"y":2,"b":[1,2.50,-0,1e5]},"m":12345678901234567890123})") ==
        R"({"z": 1, "a": {"y": 2, "b": [1, 2.5, 0, 100000.0]}, "m": 12345678901234567890123})");
  CHECK(round(R"({"a":1,"b":2,"a":{"x":3}})") == R"({"a": {"x": 3}, "b": 2})");
  CHECK(round("\xEF\xBB\xBF {\"a\" : \"\\u00e9\\ud83d\\ude00\\/\"} ") == "{\"a\": \"\xC3\xA9\xF0\x9F\x98\x80/\"}");
  CHECK(round("42") == "42");
  CHECK(round("\"x\"") == "\"x\"");
  CHECK(round("null") == "null");
  std::string many = "{";
  for (int i = 0; i < 2000; i++) many += "\"k" + std::to_string(i % 1000) + "\":" + std::to_string(i) + ",";
  many.back() = '}';
  json_document doc;
  REQUIRE(doc.parse(many));
  CHECK(doc.root().items.size() == 1000);
  CHECK(doc.root().find("k7")->text == "1007");
}

TEST_CASE("json_tree: trees under unknown names are checked and dropped, their kind stays") {
  const std::string_view trees[] = {"known"};
  json_document doc;
  REQUIRE(doc.parse(R"({"known":[1,[2]],"x":[1,{"a":"\u00e9"}],"o":{"a":[1],"a":2},"s":"text","n":null})", trees));
  CHECK(to_python_json(doc.root()) == R"({"known": [1, [2]], "x": [], "o": {}, "s": "text", "n": null})");
  std::string deep = std::string(300, '[') + std::string(300, ']');
  for (const std::string& bad : {std::string("[NaN]"), std::string("[1,]"), std::string("[\"\\ud800\"]"),
                                 std::string("{\"a\":tru}"), std::string("{\"a\" 1}"), std::string("[1}"), deep})
    CHECK_FALSE(doc.parse("{\"x\":" + bad + "}", trees));
}

TEST_CASE("json_tree: more values than a request can need are refused, unknown ones are not counted") {
  const auto list = [](size_t n) {
    std::string s(2 * n, ',');
    for (size_t i = 0; i < n; i++) s[2 * i + 1] = '1';
    s.front() = '[';
    return s + "]";
  };
  const std::string_view trees[] = {"known"};
  json_document doc;
  CHECK(doc.parse("{\"x\":" + list(max_json_values + 10) + "}", trees));
  CHECK_FALSE(doc.parse("{\"known\":" + list(max_json_values + 10) + "}", trees));
  CHECK(doc.error().find("more than 2000000 values") != std::string::npos);
}

TEST_CASE("python_json: numbers and strings as Python writes them") {
  for (const auto& [in, out] : {std::pair{"0.0001", "0.0001"},
                                {"0.00001", "1e-05"},
                                {"1e15", "1000000000000000.0"},
                                {"1e16", "1e+16"},
                                {"1.5E300", "1.5e+300"},
                                {"-0.0", "-0.0"},
                                {"-0", "0"},
                                {"1E+2", "100.0"},
                                {"0.1", "0.1"},
                                {"123456789.125", "123456789.125"},
                                {"1e21", "1e+21"},
                                {"1e-7", "1e-07"},
                                {"5e-324", "5e-324"}})
    CHECK(to_python_number(in) == out);
  CHECK(round(R"("a\u0001\b\f\n\r\t\"\\\/\u007f")") == "\"a\\u0001\\b\\f\\n\\r\\t\\\"\\\\/\x7f\"");
}

TEST_CASE("json_tree: refuses what is no JSON") {
  for (const std::string text : {"",
                                 " ",
                                 "{",
                                 "}",
                                 "[1,]",
                                 "{\"a\":}",
                                 "{\"a\":1,}",
                                 "{a:1}",
                                 "{'a':1}",
                                 "[1 2]",
                                 "01",
                                 "+1",
                                 "1.",
                                 ".5",
                                 "1e",
                                 "NaN",
                                 "Infinity",
                                 "-Infinity",
                                 "nul",
                                 "nullx",
                                 "truefalse",
                                 "[1],[2]",
                                 "1]",
                                 "1],[2",
                                 "{\"a\":1}}",
                                 "\"abc",
                                 "\"\\x\"",
                                 "\"\\ud800\"",
                                 "\"\\udc00\"",
                                 "\"\\ud800\\u0041\"",
                                 "\"\\ud800\\ud800\"",
                                 "{\"\\udfff\":1}",
                                 "\"a\nb\"",
                                 "\"\x01\"",
                                 "\"\xC0\xAF\"",
                                 "\"\xED\xA0\x80\"",
                                 "\"\xF5\x80\x80\x80\"",
                                 "\xFF\xFE{}",
                                 "[\"a\",NaN]",
                                 "{\"a\":1 \"b\":2}",
                                 "[1,,2]",
                                 "{\"a\" 1}",
                                 "\"\\u12G4\""}) {
    CAPTURE(text);
    CHECK(is_refused(text));
  }
}

TEST_CASE("json_tree: 256 levels are read, 257 are refused") {
  const auto nested = [](size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  CHECK(!is_refused(nested(256)));
  CHECK(is_refused(nested(257)));
  CHECK(is_refused(nested(100000)));
  CHECK(is_refused(std::string(100000, '[')));
}

TEST_CASE("json_text: what is appended reads back as the same text") {
  std::string all;
  for (int c = 1; c < 128; c++) all += static_cast<char>(c);
  all += "\xE2\x80\xA8\xF0\x9F\x98\x80"; // a line separator and an emoji stay as they are
  std::string json;
  append_json_string(json, all);
  json_document doc;
  REQUIRE(doc.parse(json));
  CHECK(doc.root().text == all);
  CHECK(json.find('\n') == std::string::npos);
}
