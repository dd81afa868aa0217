// Tokenizer: golden ids both ways, properties, and refusals of files it does not implement.
#include "model/tokenizer.h"

#include "model/chat_types.h"
#include "tests/model/golden_chat.h"

#include <chrono>
#include <doctest/doctest.h>
#include <random>

using namespace troupe;

namespace {

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE_MESSAGE(at != text.npos, from);
  return text.replace(at, from.size(), to);
}

std::string error_of(const std::string& json) {
  try {
    tokenizer::parse(json, "x.json");
  } catch (const std::runtime_error& e) { return e.what(); }
  return "";
}

// A random text of the groups that matter to the splits: letters, digits, spaces, newlines, CJK, emoji, controls,
// markers.
std::string random_text(std::mt19937& rng, size_t n_parts) {
  static const std::vector<std::string> parts{"a",
                                              "the",
                                              " of",
                                              "Zx",
                                              "1",
                                              "42",
                                              "\u0663",
                                              " ",
                                              "  ",
                                              "\n",
                                              "\r\n",
                                              "\t",
                                              "!",
                                              "...",
                                              "<",
                                              "</",
                                              ">",
                                              "|",
                                              "\uFF5C",
                                              "\u4E2D\u6587",
                                              "\u3042",
                                              "\u30AB",
                                              "\uAC00",
                                              "\u0301",
                                              "\U0001F600",
                                              "\u200D",
                                              "\uFE0F",
                                              std::string(1, '\0'),
                                              "\x7F",
                                              "\u0085",
                                              "\u00A0",
                                              "\u3000",
                                              "\u180E",
                                              "<think>",
                                              "</think>",
                                              "\uFF5CDSML\uFF5C",
                                              "<\uFF5CUser\uFF5C>",
                                              "<\uFF5CUser",
                                              "\u00E9",
                                              "_x",
                                              "'s",
                                              "{\"k\": [1]}"};
  std::string out;
  for (size_t i = 0; i < n_parts; ++i) out += parts[rng() % parts.size()];
  return out;
}

} // namespace

TEST_CASE("tokenizer: golden cases encode to their ids and decode back to their text") {
  const auto& tok = *golden_chat::real_tokenizer();
  golden_chat::document doc("tokenizer_cases.json");
  int n = 0, n_bad = 0;
  for (const auto c : golden_chat::cases(doc)) {
    const std::string text = golden_chat::text(c["text"]);
    const auto ids = golden_chat::ids(c["ids"]);
    const bool ok = tok.encode(text) == ids && tok.decode(ids, false) == text;
    CHECK_MESSAGE(ok, golden_chat::text(c["id"]));
    ++n, n_bad += !ok;
  }
  MESSAGE("tokenizer cases: " << n << " ran, " << n_bad << " failed");
  CHECK(n == 504);
}

TEST_CASE("tokenizer: the added-token table of the golden file is what the loader finds") {
  const auto& tok = *golden_chat::real_tokenizer();
  golden_chat::document doc("added_tokens_v41.json");
  int n = 0;
  const bool is_list = doc.root.is_array();
  for (const auto t : golden_chat::list(is_list ? doc.root : doc.root["added_tokens"].value())) {
    const auto id = static_cast<int32_t>(t["id"].get_int64().value());
    CHECK(tok.bytes(id) == golden_chat::text(t["content"]));
    CHECK(tok.added_id(golden_chat::text(t["content"])) == id);
    CHECK(tok.is_special(id) == t["special"].get_bool().value());
    ++n;
  }
  CHECK(n == 1283);
  CHECK(tok.size() == 129280);
}

TEST_CASE("tokenizer: the tiny model's file loads fast and finds its own marker ids") {
  const auto start = std::chrono::steady_clock::now();
  const auto tok = tokenizer::load(TROUPE_SOURCE_DIR "/etc/models/tiny/tokenizer.json");
  MESSAGE("tiny tokenizer.json loaded in "
          << std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() << " ms");
  CHECK(tok->size() == 2048);
  CHECK(tok->encode("<think>") == std::vector<int32_t>{2036});
  CHECK(tok->encode("") == std::vector<int32_t>{});
  CHECK(tok->is_special(2035));
  CHECK_FALSE(tok->is_special(2036));
  CHECK(tok->is_added(2036));
  CHECK(tok->decode(tok->encode("What is 17*19?\n\u4E2D\U0001F600"), false) == "What is 17*19?\n\u4E2D\U0001F600");
}

TEST_CASE("tokenizer: special tokens are dropped from text only when asked, and only the special ones") {
  const auto& tok = *golden_chat::real_tokenizer();
  const std::vector<int32_t> ids{0, 19923, 128821, 128803, 1};
  CHECK(tok.decode(ids, true) == "Hello<think><\uFF5CUser\uFF5C>");
  CHECK(tok.decode(ids, false).size() > tok.decode(ids, true).size());
}

TEST_CASE("tokenizer: ids outside the vocabulary have no bytes and never crash") {
  const auto& tok = *golden_chat::tiny_tokenizer();
  for (const int32_t id : {-1, INT32_MIN, tok.size(), INT32_MAX}) {
    CHECK(tok.bytes(id).empty());
    CHECK(tok.raw(id).empty());
    CHECK_FALSE(tok.is_special(id));
  }
  CHECK(tok.decode(std::vector<int32_t>{-5, 99999}, false).empty());
}

TEST_CASE("tokenizer: raw spells tokens in the byte-level alphabet") {
  const auto& tok = *golden_chat::real_tokenizer();
  CHECK(tok.raw(2058) == "\u0120world");
  CHECK(tok.bytes(2058) == " world");
  CHECK(tok.raw(201) == "\u010A");
  CHECK(tok.raw(128821) == "<think>");
}

TEST_CASE(
    "tokenizer: markers inside content are text when specials are not parsed there, and the renderer's still count") {
  const auto& tok = *golden_chat::real_tokenizer();
  rendered_prompt p;
  p.spans = {{"<\uFF5CUser\uFF5C>", true}, {"say </think> now", false}, {"<\uFF5CAssistant\uFF5C></think>", true}};
  const auto parsed = tok.encode(p, true, SIZE_MAX), plain = tok.encode(p, false, SIZE_MAX);
  CHECK(parsed == tok.encode(p.text()));
  CHECK(std::count(parsed.begin(), parsed.end(), 128822) == 2);
  CHECK(std::count(plain.begin(), plain.end(), 128822) == 1);
  CHECK(tok.decode(plain, false) == p.text());
  p.spans[1].text = "nothing special";
  CHECK(tok.encode(p, true, SIZE_MAX) == tok.encode(p, false, SIZE_MAX));
}

TEST_CASE("tokenizer: encoding stops once the limit is exceeded") {
  const auto& tok = *golden_chat::real_tokenizer();
  rendered_prompt p;
  std::string text;
  for (int i = 0; i < 10000; ++i) text += " word" + std::to_string(i);
  p.spans = {{text, false}};
  const auto ids = tok.encode(p, true, 100);
  CHECK(ids.size() > 100);
  CHECK(ids.size() < 120);
  rendered_prompt run;
  run.spans = {{std::string(std::size_t{1} << 24, 'a') + "<think>", true}};
  const auto start = std::chrono::steady_clock::now();
  CHECK(tok.encode(run, true, 100).size() > 100);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  CHECK(took.count() < 5.0); // one piece of 16 MB is read no further than the limit needs
  const auto all = tok.encode(p, true, SIZE_MAX);
  CHECK(tok.encode(p, true, all.size()) == all);
}

TEST_CASE("tokenizer: invalid UTF-8 is encoded as replacement characters") {
  const auto& tok = *golden_chat::real_tokenizer();
  CHECK(tok.encode("a\xF0\x9F\x98"
                   "b<think>\xFF") == tok.encode("a\uFFFD"
                                                 "b<think>\uFFFD"));
}

TEST_CASE("tokenizer: a long run without spaces is not quadratic") {
  const auto& tok = *golden_chat::real_tokenizer();
  std::mt19937 rng(1);
  std::string text;
  for (int i = 0; i < 1'000'000; ++i) text += static_cast<char>('a' + rng() % 26);
  const auto start = std::chrono::steady_clock::now();
  const auto ids = tok.encode(text);
  const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  CHECK(tok.decode(ids, false) == text);
  MESSAGE("1 MB of letters: " << s << " s");
  CHECK(s < 20.0); // the quadratic way takes an hour
}

TEST_CASE("tokenizer: short and long pieces merge alike") {
  // The same letters once as one long piece and once cut where the long result has a token border must agree.
  const auto& tok = *golden_chat::real_tokenizer();
  std::mt19937 rng(7);
  for (int k = 0; k < 200; ++k) {
    std::string text;
    for (size_t i = 0; i < 20 + rng() % 60; ++i) text += static_cast<char>('a' + rng() % 4);
    const auto ids = tok.encode(text);
    CHECK(tok.decode(ids, false) == text);
    CHECK(tok.encode(text + " " + text).size() >= ids.size());
  }
}

TEST_CASE("tokenizer: random texts survive encode and decode" * doctest::test_suite("slow")) {
  std::mt19937 rng(20260101);
  for (int k = 0; k < 10000; ++k) {
    const std::string text = random_text(rng, 1 + rng() % 40);
    for (const auto& tok : {golden_chat::real_tokenizer(), golden_chat::tiny_tokenizer()}) {
      const auto ids = tok->encode(text);
      REQUIRE(tok->decode(ids, false) == text);
      REQUIRE(tok->decode(tok->encode_plain(text), false) == text);
      for (const int32_t id : tok->encode_plain(text)) REQUIRE_FALSE(tok->is_added(id));
    }
  }
}

TEST_CASE("tokenizer: features that are not implemented are refused by name") {
  const std::string good = golden_chat::read_file(TROUPE_SOURCE_DIR "/etc/models/tiny/tokenizer.json");
  REQUIRE(error_of(good) == "");
  const auto refused = [&](const std::string& from, const std::string& to, const std::string& says) {
    const std::string error = error_of(replaced(good, from, to));
    CHECK_MESSAGE(error.find("x.json: ") == 0, error);
    CHECK_MESSAGE(error.find(says) != error.npos, error);
  };
  const bool spaced = good.find("\"truncation\": null") != good.npos;
  const std::string c = spaced ? "\": " : "\":";
  refused("\"truncation" + c + "null", "\"truncation\":{\"max_length\":5}", "truncation: expected null");
  refused("\"normalizers" + c + "[]", "\"normalizers\":[{\"type\":\"NFC\"}]",
          "normalizer.normalizers: expected an empty");
  refused("\"type" + c + "\"BPE\"", "\"type\":\"Unigram\"", "model.type: expected \"BPE\", found \"Unigram\"");
  refused("\"Isolated\"", "\"Removed\"", "behavior: expected \"Isolated\", found \"Removed\"");
  refused("\"invert" + c + "false", "\"invert\":true", "invert: expected false, found true");
  refused("\"byte_fallback" + c + "false", "\"byte_fallback\":true", "model.byte_fallback: expected false");
  refused("\"dropout" + c + "null", "\"dropout\":0.1", "model.dropout: expected null, found 0.1");
  refused("\"unk_token" + c + "null", "\"unk_token\":\"?\"", "model.unk_token: expected null");
  refused("\"lstrip" + c + "false", "\"lstrip\":true", "lstrip: expected false");
  refused("\"model" + c, "\"modell\":", "\"modell\"");
  refused("\\\\p{N}{1,3}", "\\\\w+(", "split 0: the escape \\w is not implemented");
  refused("\\\\p{N}{1,3}", "\\\\p{N}(", "pre_tokenizer: split 0: missing closing parenthesis");
  refused("\"id" + c + "2047", "\"id\":2047000000", "added_tokens: expected id 2047");
  refused("\"id" + c + "2047", "\"id\":\"x\"", "id: expected an integer, found \"x\"");
  CHECK(error_of(good.substr(0, good.size() / 2)).find("is not JSON") != std::string::npos);
  CHECK(error_of("<html>404</html>").find("it begins with '<html>404") != std::string::npos);
  CHECK(error_of("").find("is not JSON") != std::string::npos);
  CHECK(error_of("[]").find("top level: expected an object") != std::string::npos);
}

TEST_CASE("tokenizer: a missing file is named") {
  CHECK_THROWS_WITH(tokenizer::load("/nowhere/tokenizer.json"), "/nowhere/tokenizer.json: cannot be opened");
}

TEST_CASE("tokenizer: merges may be spelled as pairs") {
  std::string json = golden_chat::read_file(TROUPE_SOURCE_DIR "/etc/models/tiny/tokenizer.json");
  const std::string text = "the answer is 323, the end";
  const auto expected = tokenizer::parse(json, "x.json")->encode(text);
  json = replaced(json, "\"\u0120 t\"", "[\"\u0120\", \"t\"]");
  CHECK(tokenizer::parse(json, "x.json")->encode(text) == expected);
}
