// What a client with a real socket reads when something dies behind its stream: a ring actor, its request, the actor of
// its connection, the desk of prepare.
#include "net/engine_port.h"
#include "storage/check.h"
#include "tests/net/live_engine.h"
#include "tests/net/socket_world.h"
#include "tests/net/test_server.h"

#include <doctest/doctest.h>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

const std::string restart_comment = ": the engine was restarted, the answer goes on\n\n";
const std::string restart_answer = " one two three four five six seven eight nine ten";

size_t count_of(std::string_view text, std::string_view part) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size()) ++n;
  return n;
}

// Without the time of its making, which is all that may differ between two runs.
std::string timeless(std::string text) {
  const std::string_view key = "\"created\":";
  for (size_t at = 0; (at = text.find(key, at)) != std::string::npos;) {
    at += key.size();
    text.erase(at, text.find_first_not_of("0123456789", at) - at);
  }
  return text;
}

std::string ask_restart(bool is_chat, bool stream) {
  const std::string more = std::string(R"("temperature":0,"max_tokens":32)") + (stream ? R"(,"stream":true)" : "");
  return is_chat
             ? http_post("/v1/chat/completions",
                         R"({"messages":[{"role":"user","content":"hi"}],"chat_template_kwargs":{"thinking":false},)" +
                             more + "}",
                         "X-Request-Id: same\r\n")
             : http_post("/v1/completions",
                         R"({"prompt":"Count","stream_options":{"include_usage":true},)" + more + "}",
                         "X-Request-Id: same\r\n");
}

caf::strong_actor_ptr victim(const wiring& w, const std::string& kind) {
  return kind == "scheduler"      ? w.scheduler
         : kind == "kv_cache"     ? w.kv_cache
         : kind == "fan_out"      ? w.fan_out
         : kind == "engram_fetch" ? w.engram_fetches.back()
                                  : w.rank_actors.back();
}

// One answer; `kind` dies when `n_events` of its stream have come, or `n_steps` have run. Empty: nobody dies.
raw_response run_restart(const std::string& request, const std::string& kind, size_t n_events, size_t n_steps = 0) {
  socket_world s;
  s.r.say(restart_answer);
  s.r.supervise();
  const auto first = s.r.who();
  const auto c = s.send(request);
  if (!kind.empty()) {
    REQUIRE(s.run_until([&] {
      c->has_come("nothing"); // reads what is there
      return count_of(c->pending(), "data: {") >= n_events && s.n_steps() >= n_steps;
    }));
    REQUIRE(c->pending().find("[DONE]") == std::string::npos);
    caf::anon_send_exit(victim(first, kind), caf::exit_reason::kill);
  }
  s.run();
  const auto answer = c->response();
  CHECK(s.r.numbers->restarts == (kind.empty() ? 0 : 1));
  CHECK(s.is_idle());
  return answer;
}

struct fault_guard {
  ~fault_guard() { fault::disarm_all(); }
};

} // namespace

TEST_CASE("restart: whichever ring actor dies, a stream over a socket has its bytes as ever, and one comment") {
  for (const bool is_chat : {true, false}) {
    CAPTURE(is_chat);
    const auto request = ask_restart(is_chat, true);
    const auto plain = run_restart(request, "", 0);
    REQUIRE(plain.status == 200);
    CHECK(text_of(plain.body) == restart_answer);
    CHECK(count_of(plain.body, "restarted") == 0);
    CHECK(plain.body.ends_with("data: [DONE]\n\n"));
    for (const std::string kind : {"scheduler", "kv_cache", "fan_out", "engram_fetch", "rank"})
      for (const size_t n_events : {1, 2, 4, 9}) {
        CAPTURE(kind);
        CAPTURE(n_events);
        auto answer = run_restart(request, kind, n_events);
        CHECK(answer.status == 200);
        const size_t n_comments = kind == "engram_fetch" ? 0 : 1; // that one costs a retry of its step only
        CHECK(count_of(answer.body, restart_comment) == n_comments);
        if (n_comments == 1) answer.body.erase(answer.body.find(restart_comment), restart_comment.size());
        CHECK(timeless(answer.body) == timeless(plain.body));
      }
  }
}

TEST_CASE("restart: an answer in one piece is the same, and says nothing of a restart") {
  const auto request = ask_restart(true, false);
  const auto plain = run_restart(request, "", 0);
  REQUIRE(plain.status == 200);
  for (const std::string kind : {"scheduler", "kv_cache", "fan_out", "engram_fetch", "rank"}) {
    CAPTURE(kind);
    const auto answer = run_restart(request, kind, 0, 5);
    CHECK(answer.status == 200);
    CHECK(timeless(answer.body) == timeless(plain.body));
  }
}

TEST_CASE("restart: a request that dies costs its own stream, whose place is free at once") {
  socket_world s;
  s.r.say(restart_answer);
  auto port = std::make_shared<engine_port>(*to_engine_port(s.w.system(), s.r.parts));
  std::vector<request_actor> requests;
  port->start = [&, start = port->start](chat_request r, std::shared_ptr<turn_sink> sink) {
    return requests.emplace_back(start(std::move(r), std::move(sink)));
  };
  s.shared.attach(port);
  const auto request = ask_restart(true, true);
  const auto dies = s.send(request);
  REQUIRE(s.run_until([&] { return dies->has_come("one"); }));
  const auto lives = s.send(request);
  REQUIRE(s.run_until([&] { return lives->has_come("one"); }));
  REQUIRE(dies->pending().find("[DONE]") == std::string::npos);
  caf::anon_send_exit(requests.front(), caf::exit_reason::kill);
  REQUIRE(s.run_until([&] { return s.r.numbers->running == 1; }));
  CHECK_FALSE(lives->has_come("[DONE]"));
  s.run();
  const auto broken = dies->response(), whole = lives->response();
  CHECK(count_of(broken.body, "\"code\":500") == 1);
  CHECK(count_of(whole.body, "error") == 0);
  CHECK(text_of(whole.body) == restart_answer);
  CHECK(s.is_idle());
  requests.clear();
}

TEST_CASE("restart: the actor of a connection that dies costs its request a 500, and no other connection anything") {
  const fault_guard guard;
  socket_world s;
  s.r.say(restart_answer);
  const auto other = s.send(ask_restart(true, true));
  REQUIRE(s.run_until([&] { return other->has_come("one"); }));
  for (const bool stream : {true, false}) {
    CAPTURE(stream);
    fault::arm("connection.dies");
    const auto c = s.send(ask_restart(true, stream));
    s.run();
    CHECK(c->response().status == 500);
    c->send(http_post("/tokenize", R"({"prompt":"Count"})")); // the connection goes on, with another actor
    s.run();
    CHECK(c->response().status == 200);
    fault::arm("connection.dies");
    c->send(http_post("/tokenize", R"({"prompt":"Count"})"));
    s.run();
    CHECK(c->response().status == 500);
    c->send(ask_restart(true, stream));
    s.run();
    CHECK(c->response().status == 200);
  }
  CHECK(text_of(other->response().body) == restart_answer);
  CHECK(s.is_idle());
  CHECK(s.shared.counts().in_flight == 0);
}

TEST_CASE("restart: an exception in a session costs its request a 500, and nobody else anything") {
  const fault_guard guard;
  const auto tokenize = http_post("/tokenize", R"({"prompt":"Count"})");
  for (const auto& request : {ask_restart(true, true), ask_restart(false, true), ask_restart(true, false), tokenize}) {
    CAPTURE(request);
    int n_refused = 0;
    for (uint64_t n_passed = 0; n_passed < 6; ++n_passed) {
      CAPTURE(n_passed);
      socket_world s;
      s.r.say(restart_answer);
      const auto other = s.send(ask_restart(true, true)); // it can throw behind its answer alone
      REQUIRE(s.run_until([&] { return other->has_come("one"); }));
      fault::arm("session.dies", n_passed);
      const auto c = s.send(request);
      s.run();
      fault::disarm_all();
      const auto answer = c->response(), whole = other->response();
      CHECK(text_of(whole.body) == restart_answer);
      CHECK((answer.status == 200 || answer.status == 500));
      if (answer.status == 500) CHECK(answer.body.find("The request failed inside the server") != std::string::npos);
      n_refused += answer.status == 500;
      CHECK(s.is_idle());
      CHECK(s.shared.counts().in_flight == 0);
      CHECK(s.shared.turns().abort("same") == 0);
      c->close();
      other->close();
      CHECK(s.run_until([&] { return s.n_open == 0; }));
      CHECK(s.r.numbers->turns == s.r.numbers->ended_stop + s.r.numbers->ended_length + s.r.numbers->ended_abort);
    }
    CHECK(n_refused >= 2);
  }
}

TEST_CASE("restart: the desk of prepare that dies costs those whose prompt it had a 503, and streams nothing") {
  const fault_guard guard;
  live_engine e;
  e.start();
  raw_client streaming(e.port());
  streaming.send(post_ids(live_engine::canary_prompt_tokens, 300, true));
  REQUIRE(streaming.read_text("data: {", 20000));
  fault::arm("prepare_desk.dies");
  raw_client turn(e.port());
  turn.send(post_ids(5, 4, true));
  const auto refused = turn.response(false, 20000);
  CHECK(refused.status == 503);
  CHECK(refused.header("retry-after") == "1");
  turn.send(post_ids(5, 4, true)); // the first restart comes at once
  CHECK(turn.response(false, 20000).status == 200);
  CHECK(streaming.response(false, 60000).status == 200);
  turn.close();
  streaming.close();
  CHECK(e.wait_idle());
  CHECK(e.numbers->ended_error == 0);
  CHECK(e.metric("troupe_restarts_total{") == 1);
}
