// UTF-8 stream: golden cases with the real tokenizer's bytes, and every split of random bytes.
#include "model/utf8_stream.h"

#include "tests/model/golden_chat.h"

#include <doctest/doctest.h>
#include <random>

using namespace troupe;

TEST_CASE("utf8_stream: golden cases release their text token by token") {
  golden_chat::document doc("utf8_stream_cases.json");
  const tokenizer& tok = *golden_chat::real_tokenizer();
  int n = 0;
  for (const auto c : golden_chat::cases(doc)) {
    CAPTURE(golden_chat::text(c["id"]));
    const auto ids = golden_chat::ids(c["ids"]);
    const auto bytes = golden_chat::list(c["bytes"]), emit = golden_chat::list(c["emit"]);
    utf8_stream stream;
    for (size_t k = 0; k < ids.size(); ++k) {
      std::string hex;
      for (const char b : tok.bytes(ids[k]))
        for (const int shift : {4, 0}) hex += "0123456789abcdef"[static_cast<uint8_t>(b) >> shift & 15];
      CHECK(hex == golden_chat::text(bytes[k]));
      std::string out;
      if (tok.is_added(ids[k])) stream.finish(out);
      stream.push(tok.bytes(ids[k]), out);
      CHECK(out == golden_chat::text(emit[k]));
    }
    CHECK(stream.finish() == golden_chat::text(c["final"]));
    ++n;
  }
  CHECK(n == 23);
}

TEST_CASE("utf8_stream: the result is valid and does not depend on how the bytes were cut") {
  std::mt19937 rng(4036);
  const std::string_view alphabet = "a\x80\xBF\xC2\xE0\xA0\xED\xF0\x9F\x98\x80\xF4\xFF\xE2\x82";
  for (int k = 0; k < 20000; ++k) {
    std::string bytes;
    for (unsigned n = rng() % 12; n-- > 0;) bytes += alphabet[rng() % alphabet.size()];
    utf8_stream whole, parts;
    std::string want = whole.push(bytes);
    whole.finish(want);
    std::string got;
    for (size_t at = 0; at < bytes.size();) {
      const size_t n = 1 + rng() % 3;
      const std::string out = parts.push(std::string_view(bytes).substr(at, n));
      REQUIRE(is_utf8(out));
      got += out;
      at += n;
    }
    got += parts.finish();
    REQUIRE(got == want);
    REQUIRE(is_utf8(want));
    if (is_utf8(bytes)) REQUIRE(want == bytes);
  }
}

TEST_CASE("utf8_stream: characters at the borders of the ranges pass, their neighbours do not") {
  for (const char* good : {"\u0080", "\u07FF", "\u0800", "\uD7FF", "\uE000", "\uFFFF", "\U00010000", "\U0010FFFF"})
    CHECK(is_utf8(good));
  for (const char* bad :
       {"\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5", "\xC2"})
    CHECK_FALSE(is_utf8(bad));
}
