// The program as an operator runs it: verbs, exit codes and the drain.
#include "tests/served.h"

#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <sys/wait.h>

using troupe::test::plain_client;
using troupe::test::served;

namespace {

struct run_result {
  int code = -1;
  std::string output;
};

run_result run(const std::string& command) {
  run_result r;
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe);
  char piece[4096];
  while (const size_t n = std::fread(piece, 1, sizeof piece, pipe)) r.output.append(piece, n);
  const int status = ::pclose(pipe);
  r.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return r;
}

const std::string program = TROUPE_BINARY_DIR "/troupe";

std::string url_of(const served& s) { return "http://127.0.0.1:" + std::to_string(s.port()); }

const std::string long_stream =
    R"({"messages":[{"role":"user","content":"Tell me a story."}],"stream":true,"ignore_eos":true,"max_tokens":2000,)"
    R"("stream_options":{"include_usage":true},"temperature":0})";

// Reads until the stream holds `text`.
void read_to(plain_client& c, std::string& all, const std::string& text) {
  while (all.find(text) == std::string::npos) {
    const auto piece = c.read_some();
    REQUIRE_MESSAGE(!piece.empty(), "the stream ended before '" << text << "'");
    all += piece;
  }
}

} // namespace

TEST_CASE("troupe: smoke and status ask a running server" * doctest::test_suite("slow")) {
  served s({"--log-level", "warn"});
  const auto smoke = run(program + " smoke " + url_of(s));
  CHECK(smoke.code == 0);
  CHECK(smoke.output.find("answered '323'") != std::string::npos);
  const auto status = run(program + " status " + url_of(s));
  CHECK(status.code == 0);
  CHECK(status.output.find("turns ended       1") != std::string::npos);
  CHECK(s.stop(SIGTERM) == 0);
  CHECK(run(program + " smoke " + url_of(s)).code == 1);
  CHECK(run(program + " status " + url_of(s)).code == 1);
}

TEST_CASE("troupe: SIGTERM lets a running stream finish, refuses new work and ends with 0" *
          doctest::test_suite("slow")) {
  served s({"--log-level", "warn"});
  plain_client stream(s.port()), other(s.port());
  CHECK(other.get("/ready").status == 200);
  stream.start_post("/v1/chat/completions", long_stream);
  std::string all;
  read_to(stream, all, "\"content\"");
  ::kill(s.pid(), SIGTERM);
  std::string body = other.get("/ready").body; // the signal needs a moment to be taken
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (body.find("draining") == std::string::npos && std::chrono::steady_clock::now() < until) {
    plain_client again(s.port());
    body = again.get("/ready").body;
  }
  CHECK(body == "{\"status\":\"draining\"}");
  plain_client late(s.port());
  const auto refused = late.post("/v1/chat/completions", long_stream);
  CHECK(refused.status == 503);
  CHECK(refused.headers.at("retry-after") == "5");
  read_to(stream, all, "[DONE]");
  CHECK(all.find("\"completion_tokens\":2000") != std::string::npos);
  CHECK(s.stop(0) == 0);
}

TEST_CASE("troupe: a drain that is too short cuts the stream with an error event and ends with 3" *
          doctest::test_suite("slow")) {
  served s({"--log-level", "off", "--drain-timeout", "0", "--backend", "null", "--null-tokens-per-s", "20"});
  plain_client stream(s.port());
  stream.start_post("/v1/chat/completions", long_stream);
  std::string all;
  read_to(stream, all, "content\":\"T");
  ::kill(s.pid(), SIGTERM);
  read_to(stream, all, "[DONE]");
  CHECK(all.find("data: {\"error\":{") != std::string::npos);
  CHECK(s.stop(0) == 3);
}

TEST_CASE("troupe: what cannot start says why and ends with 2" * doctest::test_suite("slow")) {
  served s({"--log-level", "warn"});
  const auto start = std::chrono::steady_clock::now();
  const auto busy = run(program + " serve --port " + std::to_string(s.port()));
  CHECK(busy.code == 2);
  CHECK(busy.output.find("cannot listen on 127.0.0.1 port " + std::to_string(s.port())) != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(2));
  for (const std::string& arguments : std::vector<std::string>{
           "serve extra", "frobnicate", "config", "--no-such-setting 1", "serve --port x", "verify /nowhere", "synth",
           "synth /nowhere/x --layers 40", "--model /nowhere --port 0"}) {
    CAPTURE(arguments);
    const auto r = run(program + " " + arguments);
    CHECK(r.code == 2);
    CHECK(r.output.find("troupe: ") != std::string::npos);
  }
  CHECK(run(program + " --help").code == 0);
  CHECK(run(program + " --version").output.find("troupe ") == 0);
  CHECK(run(program + " verify").code == 0);
  const auto shown = run("TROUPE_PORT=9001 TROUPE_API_KEY=hush " + program + " config show --host 127.0.0.2");
  CHECK(shown.code == 0);
  CHECK(shown.output.find("environment TROUPE_PORT") != std::string::npos);
  CHECK(shown.output.find("flag --host") != std::string::npos);
  CHECK(shown.output.find("hush") == std::string::npos);
}
