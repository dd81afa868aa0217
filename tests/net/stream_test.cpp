// Turns in flight over real sockets: disconnects, slow readers, errors, and every chunk's shape.
#include "net/json_tree.h"
#include "tests/net/test_server.h"

#include <doctest/doctest.h>

using namespace troupe;

namespace {

const std::string streaming = R"(,"stream":true)";

std::string post_stream(const std::string& more) { return http_post("/v1/chat/completions", chat_body(more)); }

} // namespace

TEST_CASE("session: G01, a client that leaves while its answer streams is noticed at once") {
  test_server s;
  s.start();
  for (int way = 0; way < 3; way++) {
    CAPTURE(way);
    raw_client c(s.port());
    c.send(post_stream(streaming));
    auto* t = s.engine.wait_turn(static_cast<size_t>(way));
    REQUIRE(t);
    t->sink->open({});
    push_text(*t->sink, "x");
    REQUIRE(c.read_text("\"x\""));
    if (way == 0) c.close();
    if (way == 1) c.reset();
    if (way == 2) c.shutdown_write(); // a half-close looks like a killed client: api.md 2.5
    CHECK(s.engine.wait_gone(*t));
    CHECK(push_text(*t->sink, "y") == turn_sink::state::closed);
    s.engine.end(*t);
  }
}

TEST_CASE("session: G02, a client that leaves before the first token is noticed at once") {
  test_server s;
  s.start();
  size_t n = 0;
  for (const std::string& more : {std::string(), streaming}) {
    raw_client c(s.port());
    c.send(post_stream(more));
    auto* t = s.engine.wait_turn(n++);
    REQUIRE(t);
    c.close();
    CHECK(s.engine.wait_gone(*t));
    s.engine.end(*t);
  }
}

TEST_CASE("session: a pipelined request does not hide that the client left") {
  test_server s;
  s.start();
  raw_client c(s.port());
  c.send(post_stream(streaming) + http_get("/version"));
  auto* t = s.engine.wait_turn(0);
  REQUIRE(t);
  c.close();
  CHECK(s.engine.wait_gone(*t));
  s.engine.end(*t);
}

TEST_CASE("session: a slow reader fills its own queue only, and resumes") {
  test_server s;
  s.config.outbox_bytes = 16 << 10;
  s.start();
  raw_client c(s.port(), 4096);
  c.send(post_stream(streaming));
  auto* t = s.engine.wait_turn(0);
  REQUIRE(t);
  t->sink->open({});
  const std::string piece(8 << 10, 'a');
  int n_full = 0, n_pushed = 0;
  for (; n_full == 0 && n_pushed < 10000; n_pushed++) n_full += push_text(*t->sink, piece) == turn_sink::state::full;
  CHECK(n_full == 1);
  CHECK(s.ask(http_get("/version")).status == 200);
  CHECK(c.read_until([&](std::string_view all) { return all.size() > piece.size() * static_cast<size_t>(n_pushed); }));
  CHECK(s.engine.wait_resumed(1));
  push_end(*t->sink);
  CHECK(c.read_text("[DONE]"));
  s.engine.end(*t);
}

TEST_CASE("session: a client that never reads is ended at the send deadline" * doctest::test_suite("slow")) {
  test_server s;
  s.config.send_timeout_s = 1;
  s.start();
  raw_client c(s.port(), 4096);
  c.send(post_stream(streaming));
  auto* t = s.engine.wait_turn(0);
  REQUIRE(t);
  t->sink->open({});
  const std::string piece(64 << 10, 'a');
  for (int i = 0; i < 200; i++) push_text(*t->sink, piece);
  CHECK(s.engine.wait_gone(*t, std::chrono::seconds(10)));
  s.engine.end(*t);
}

TEST_CASE("session: a quiet stream is kept open by comments" * doctest::test_suite("slow")) {
  test_server s;
  s.config.ping_interval_s = 1;
  s.start();
  raw_client c(s.port());
  c.send(post_stream(streaming));
  auto* t = s.engine.wait_turn(0);
  REQUIRE(t);
  t->sink->open({});
  CHECK(c.read_text(": ping\n\n", 10000));
  push_end(*t->sink);
  CHECK(c.read_text("[DONE]"));
  s.engine.end(*t);
}

TEST_CASE("session: a refusal before the stream opens is an HTTP error, after it an event") {
  test_server s;
  s.start();
  const api_error busy{429, "RateLimitError", "queue full", "", 3},
      broken{500, "InternalServerError", "engine restarted", "", 0};
  size_t n = 0;
  for (const std::string& more : {std::string(), streaming}) {
    raw_client c(s.port());
    c.send(post_stream(more));
    auto* t = s.engine.wait_turn(n++);
    REQUIRE(t);
    t->sink->fail(busy);
    const auto r = c.response();
    CHECK(r.status == 429);
    CHECK(r.header("retry-after") == "3");
    s.engine.end(*t);
    c.send(http_get("/version"));
    CHECK(c.response().status == 200); // the connection goes on
  }
  raw_client c(s.port());
  c.send(post_stream(streaming));
  auto* t = s.engine.wait_turn(n);
  REQUIRE(t);
  t->sink->open({});
  push_text(*t->sink, "par");
  t->sink->fail(broken);
  const auto events = events_of(c.response().body);
  REQUIRE(events.size() == 4);
  CHECK(events[2] ==
        R"({"error":{"message":"engine restarted","type":"InternalServerError","param":null,"code":500}})");
  CHECK(events[3] == "[DONE]");
  s.engine.end(*t);
}

TEST_CASE("session: a request actor that dies without a word gives a 500, not silence") {
  test_server s;
  s.start();
  raw_client c(s.port());
  c.send(post_stream(""));
  auto* t = s.engine.wait_turn(0);
  REQUIRE(t);
  caf::anon_send_exit(t->actor, caf::exit_reason::kill);
  CHECK(c.response().status == 500);
}

TEST_CASE("session: a response format in the prompt is marked as a hint") {
  test_server s;
  s.engine.script = [](scripted_engine::turn& t) {
    t.sink->open({});
    push_end(*t.sink);
  };
  s.start();
  for (const std::string& more : {std::string(), streaming}) {
    const auto r = s.ask(post_stream(more + R"(,"response_format":{"type":"json_object"})"));
    CHECK(r.status == 200);
    CHECK(r.header("x-troupe-response-format") == "hint");
    CHECK(s.ask(post_stream(more)).header("x-troupe-response-format").empty());
  }
}

TEST_CASE("server: ids of 5000 characters pass through, an unfit request id is replaced") {
  test_server s;
  s.engine.script = [](scripted_engine::turn& t) {
    t.sink->open({});
    push_end(*t.sink);
  };
  s.start();
  const std::string id(5000, 'i');
  const auto r = s.ask(http_post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":")" + id +
          R"(","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":")" + id +
          R"(","content":"r"}]})",
      "X-Request-Id: " + id + "\r\n"));
  CHECK(r.status == 200);
  CHECK(r.header("x-request-id").size() == 32);
  CHECK(s.engine.wait_turn(0)->request.chat.messages[1].calls[0].id == id);
  CHECK(s.ask(http_post("/v1/chat/completions", chat_body(R"(,"request_id":"body-id")"))).header("x-request-id") ==
        "body-id");
}
