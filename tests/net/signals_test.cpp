// Signals to the program: which ones stop it, and that one wish to stop is not taken for two.
#include "tests/served.h"

#include <doctest/doctest.h>

#include <csignal>
#include <string>

using troupe::test::plain_client;
using troupe::test::served;

namespace {

const std::string short_story =
    R"({"messages":[{"role":"user","content":"Tell me a story."}],"stream":true,"ignore_eos":true,"max_tokens":40})";

void read_until(plain_client& c, std::string& all, const std::string& text) {
  while (all.find(text) == std::string::npos) {
    const auto piece = c.read_some();
    REQUIRE_MESSAGE(!piece.empty(), "the stream ended before '" << text << "'");
    all += piece;
  }
}

} // namespace

TEST_CASE("troupe: SIGUSR1 stops nothing; SIGTERM twice at once lets a stream finish" * doctest::test_suite("slow")) {
  served s({"--log-level", "off", "--backend", "null", "--null-tokens-per-s", "20"});
  ::kill(s.pid(), SIGUSR1);
  plain_client stream(s.port());
  stream.start_post("/v1/chat/completions", short_story);
  std::string all;
  read_until(stream, all, "content\":\"T");
  ::kill(s.pid(), SIGUSR1);
  plain_client other(s.port());
  CHECK(other.get("/ready").status == 200);
  ::kill(s.pid(), SIGTERM);
  ::kill(s.pid(), SIGUSR1);
  std::string body;
  while (body.find("draining") == std::string::npos) { // the first signal is taken
    plain_client again(s.port());
    body = again.get("/ready").body;
  }
  ::kill(s.pid(), SIGTERM);
  read_until(stream, all, "[DONE]");
  CHECK(all.find("\"error\"") == std::string::npos);
  CHECK(s.stop(0) == 0);
}
