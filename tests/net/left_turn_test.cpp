// What a cancelled or refused request leaves behind in a real server with the shipped model: nothing.
#include "net/json_text.h"
#include "tests/net/live_engine.h"
#include "tests/net/test_server.h"
#include "tests/served.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>

using namespace troupe;

namespace {

std::string ask(const test::served& s, const std::string& bytes) {
  raw_client c(static_cast<uint16_t>(s.port()));
  c.send(bytes);
  return c.response(false, 120000).body;
}

std::string left_chat(const std::string& messages, const std::string& more = "") {
  return http_post("/v1/chat/completions",
                   R"({"messages":[)" + messages +
                       R"(],"temperature":0,"max_tokens":24,"chat_template_kwargs":{"thinking":)"
                       R"(false})" +
                       more + "}");
}

std::string content(const std::string& body) {
  const size_t from = body.find("\"message\":"), to = body.find("\"logprobs\":", from);
  return from == std::string::npos ? "no answer: " + body : body.substr(from, to - from);
}

double cpu_seconds(int pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

int64_t anonymous_bytes(int pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  return -1;
}

} // namespace

TEST_CASE("troupe: O27, a cancelled turn does not touch the next one of its conversation, with its text or without" *
          doctest::test_suite("slow")) {
  const std::string question = R"({"role":"user","content":"Count from one to twenty in words."})";
  std::string partial, with_text, without;
  {
    const test::served s({});
    raw_client c(static_cast<uint16_t>(s.port()));
    c.send(left_chat(question, R"(,"stream":true)"));
    REQUIRE(c.read_until([](std::string_view all) { return text_of(all).size() >= 8; }, 120000));
    partial = text_of(c.pending());
    c.close();
    std::string quoted;
    append_json_string(quoted, partial);
    const auto next =
        question + R"(,{"role":"assistant","content":)" + quoted + R"(},{"role":"user","content":"Go on."})";
    with_text = content(ask(s, left_chat(next)));
    without = content(ask(s, left_chat(question)));
    const test::served fresh({}), another({});
    CHECK(content(ask(fresh, left_chat(next))) == with_text);
    CHECK(content(ask(another, left_chat(question))) == without);
  }
  CHECK(with_text.find("\"content\":") != std::string::npos);
}

TEST_CASE("troupe: O28, a prompt that is too long is refused a hundred times, and the server is idle and no larger" *
          doctest::test_suite("slow")) {
  const test::served s({"--max-context", "256"});
  const auto too_long = post_ids(257, 1, false);
  const auto refuse = [&](int n) {
    raw_client c(static_cast<uint16_t>(s.port()));
    for (int i = 0; i < n; ++i) {
      c.send(too_long);
      const auto r = c.response();
      CHECK(r.status == 400);
      CHECK(r.body.find("maximum context length is 256 tokens") != std::string::npos);
      CHECK(r.body.find("contains 257 input tokens") != std::string::npos);
    }
  };
  refuse(20);
  const auto bytes = anonymous_bytes(s.pid());
  refuse(100);
  if (!test::is_sanitized) CHECK(anonymous_bytes(s.pid()) < bytes + (2 << 20));
  const double before = cpu_seconds(s.pid());
  raw_client quiet(static_cast<uint16_t>(s.port()));
  quiet.read_text("nothing comes", 1000);
  CHECK(cpu_seconds(s.pid()) - before < (test::is_sanitized ? 2 : 0.2));
}
