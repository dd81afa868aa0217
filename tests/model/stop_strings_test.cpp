// Stop strings: golden cases at every cut, and agreement with a plain search.
#include "model/stop_strings.h"

#include "tests/model/golden_chat.h"

#include <doctest/doctest.h>
#include <random>

using namespace troupe;

namespace {

struct stop_outcome {
  std::string text, stop = "-";
  bool operator==(const stop_outcome&) const = default;
};

stop_outcome feed(const std::vector<std::string>& parts, const std::vector<std::string>& stops, bool include = false) {
  stop_strings matcher(stops, include);
  stop_outcome o;
  for (const std::string& part : parts) {
    const auto step = matcher.push(part);
    o.text += step.emit;
    if (step.matched) o.stop = *step.matched;
  }
  o.text += matcher.finish();
  return o;
}

// The rule of chat.md 5.4, read aloud.
stop_outcome plain_search(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string* longest = nullptr;
    for (const std::string& s : stops)
      if (text.substr(0, end).ends_with(s) && (longest == nullptr || s.size() > longest->size())) longest = &s;
    if (longest != nullptr) return {text.substr(0, end - longest->size()), *longest};
  }
  return {text, "-"};
}

} // namespace

TEST_CASE("stop_strings: golden cases at every cut into two and byte by byte") {
  golden_chat::document doc("stop_cases.json");
  int n = 0;
  for (const auto c : golden_chat::cases(doc)) {
    CAPTURE(golden_chat::text(c["id"]));
    const std::string text = golden_chat::text(c["text"]);
    std::vector<std::string> stops, bytes;
    for (const auto s : golden_chat::list(c["stop"])) stops.push_back(golden_chat::text(s));
    for (const char b : text) bytes.emplace_back(1, b);
    const stop_outcome want{golden_chat::text(c["content"]),
                            c["stop_reason"].is_null() ? "-" : golden_chat::text(c["stop_reason"])};
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      CHECK(feed({text.substr(0, cut), text.substr(cut)}, stops) == want);
      CHECK(feed({text.substr(0, cut), text.substr(cut)}, stops, true).text ==
            golden_chat::text(c["content_with_stop"]));
    }
    CHECK(feed(bytes, stops) == want);
    ++n;
  }
  CHECK(n == 18);
}

TEST_CASE("stop_strings: nothing is held that cannot begin a stop string") {
  stop_strings matcher({"a stop string of some forty characters!!"});
  for (const char* part : {"Hello", " world", "\n", "xyz"}) CHECK(matcher.push(part).emit == part);
  CHECK(matcher.push("say a st").emit == "say ");
  CHECK(matcher.push("ar").emit == "a star");
  CHECK(matcher.finish().empty());
}

TEST_CASE("stop_strings: after a match everything is discarded") {
  stop_strings matcher({"END"});
  CHECK(matcher.push("xENDyEND").emit == "x");
  CHECK(matcher.push("more").emit.empty());
  CHECK(matcher.finish().empty());
  CHECK(matcher.matched() == "END");
}

TEST_CASE("stop_strings: random texts agree with a plain search, however they are cut") {
  std::mt19937 rng(3574);
  for (int k = 0; k < 20000; ++k) {
    const auto random = [&](size_t longest) {
      std::string s;
      for (size_t n = 1 + rng() % longest; n-- > 0;) s += static_cast<char>('a' + rng() % 2);
      return s;
    };
    std::vector<std::string> stops, parts;
    for (size_t n = 1 + rng() % 4; n-- > 0;) stops.push_back(random(5));
    std::string text;
    for (size_t n = rng() % 6; n-- > 0;) text += parts.emplace_back(random(4));
    REQUIRE(feed(parts, stops) == plain_search(text, stops));
  }
}
