// The path of style.md section 3 from the socket on, message by message, and clients that leave at each station of it.
#include "net/connection.h"
#include "net/engine_port.h"
#include "tests/net/live_engine.h"
#include "tests/net/socket_world.h"
#include "tests/net/test_server.h"

#include <doctest/doctest.h>

using namespace troupe;

namespace {

std::string words(int n, const std::string& word = " word") {
  std::string out;
  for (int i = 0; i < n; ++i) out += word;
  return out;
}

std::string call_of_f(const std::string& argument) {
  const std::string bar = "\uFF5C", tag = "<" + bar + "DSML" + bar, end = "</" + bar + "DSML" + bar;
  return "</think>I call.\n\n" + tag + " calls>\n" + tag + " invoke name=\"f\">\n" + tag +
         " parameter name=\"x\" string=\"true\">" + argument + end + " parameter>\n" + end + " invoke>\n" + end +
         " calls>";
}

std::string post_chat(const std::string& more) {
  return http_post("/v1/chat/completions", chat_body(R"(,"temperature":0)" + more));
}

const std::string path_tools = R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object",)"
                               R"("properties":{"x":{"type":"string"}}}}}])";

batch_limits limits(int64_t n_blocks, int32_t chunk = 16, int32_t max_queue = 8) {
  auto l = scripted_ring::small_limits();
  l.n_blocks = n_blocks;
  l.chunk_tokens = chunk;
  l.max_queue = max_queue;
  return l;
}

} // namespace

TEST_CASE("path: from the socket to the model and back, each station gets its messages and nobody any more") {
  socket_world s;
  s.r.say(" one two three");
  const auto c = s.send(post_ids(5, 32, true));
  s.run();
  const auto answer = c->response();
  CHECK(answer.status == 200);
  CHECK(text_of(answer.body) == " one two three");
  const int n_answer = static_cast<int>(s.r.rank().answer.size()) + 1; // and the end token
  const int n_steps = n_answer + 1;                                    // the last plan says that the sequence ended
  int n_expected = 0;
  const auto expect = [&](int found, int wanted) {
    CHECK(found == wanted);
    n_expected += wanted;
  };
  expect(s.w.count<turn_start>("connection"), 1);
  expect(s.w.count<turn_prepare>("prepare"), 1);
  expect(s.w.count<turn_prepared>("request"), 1);
  expect(s.w.count<turn_begin>("journal"), 1);
  expect(s.w.count<turn_open>("fan_out"), 1);
  expect(s.w.count<turn_admit>("scheduler"), 1);
  expect(s.w.count<turn_queued>("request"), 1);
  expect(s.w.count<turn_queued>("fan_out"), 1);
  expect(s.w.count<step_plan>("kv_cache"), n_steps);
  expect(s.w.count<step_placed>("engram_fetch"), n_steps);
  expect(s.w.count<step_ready>("rank"), n_steps);
  expect(s.w.count<step_result>("scheduler"), n_steps);
  expect(s.w.count<tokens_accepted>("fan_out"), n_answer);
  expect(s.w.count<tokens_accepted>("journal"), n_answer + 1); // the first says what it found cached
  expect(s.w.count<turn_ended>("request"), 1);
  const auto of_caf = [&](const char* actor) { return s.w.seen[{actor, nullptr}]; }; // its own types have no name
  expect(of_caf("connection"), 1);                                                   // the request's actor has ended
  expect(of_caf("journal"), 1);
  int n_all = 0;
  for (const auto& [key, n] : s.w.seen) n_all += n;
  CHECK(n_all == n_expected);
  c->close();
  s.run();
  CHECK(s.w.count<socket_closed>("connection") == 1);
  CHECK(s.n_open == 0);
  CHECK(s.is_idle());
}

TEST_CASE("path: O22, whatever a client was at when it left, no step is planned once the scheduler knows") {
  socket_world s(limits(512));
  s.r.say(call_of_f(words(100)));
  struct station {
    std::string name;
    std::string request;
    std::function<bool(socket_world&, raw_client&)> reached;
  };
  const auto after_steps = [](size_t n) {
    return [n](socket_world& world, raw_client&) { return world.n_steps() >= n; };
  };
  const auto has_read = [](std::string text) {
    return [text](socket_world&, raw_client& c) { return c.has_come(text); };
  };
  const station stations[] = {
      {"accepted", post_chat(R"(,"stream":true)"), [](socket_world&, raw_client&) { return true; }},
      {"prepared", post_chat(R"(,"stream":true)"),
       [](socket_world& world, raw_client&) {
         return world.r.numbers->preparing > 0 || world.w.count<turn_prepare>("prepare") > 0;
       }},
      {"prefill", post_ids(200, 100, true), after_steps(3)},
      {"between tokens", post_chat(R"(,"stream":true,"max_tokens":300)"), after_steps(8)},
      {"inside a tool call", post_chat(R"(,"stream":true,"max_tokens":300)" + path_tools), has_read("tool_calls")},
      {"not streaming", post_ids(8, 100, false), after_steps(12)},
  };
  int64_t n_left = 0;
  for (int round = 0; round < 4; ++round)
    for (const auto& at : stations) {
      CAPTURE(at.name);
      CAPTURE(round);
      s.w.seen.clear();
      s.r.scripts[0]->steps.clear();
      const auto c = s.send(at.request);
      const bool is_reached = s.run_until([&] { return at.reached(s, *c); });
      CAPTURE(c->pending());
      REQUIRE(is_reached);
      const size_t n_before = s.n_steps();
      s.w.held = round < 2 ? "" : "scheduler"; // it is busy: the step's result and the news wait for it together
      round % 2 ? c->reset() : c->close();
      s.run();
      s.w.held.clear();
      s.run();
      ++n_left;
      // The one in the ring; and one planned while the news was on its way, which here takes as long as a step.
      CHECK(s.n_steps() <= n_before + (round < 2 ? 2 : 1));
      CHECK(s.is_idle());
      CHECK(s.n_open == 0);
      CHECK(s.r.numbers->turns == s.r.numbers->ended_abort);
    }
  CHECK(s.r.numbers->ended_abort >= n_left - 4); // one that is accepted only may not have begun
}

TEST_CASE("path: O24, a client that leaves after ten chunks of a prompt saves the other ninety, and the ten are kept") {
  socket_world s(limits(1024), [](ring_config& c) {
    c.prefix.snapshot_bytes = 1;
    c.prefix.snapshot_memory_bytes = 64;
    c.prefix.snapshot_interval = 0;
    c.prefix.snapshot_slack = 1;
  });
  s.r.say(" yes");
  const auto c = s.send(post_ids(1600, 10, true));
  REQUIRE(s.run_until([&] { return s.n_steps() == 10; }));
  c->close();
  s.run();
  CHECK(s.n_steps() <= 11);
  CHECK(s.is_idle());
  const auto again = s.send(post_ids(1600, 10, false));
  s.run();
  const auto answer = again->response();
  CHECK(answer.status == 200);
  const auto cached = field(answer.body, {"usage", "prompt_tokens_details", "cached_tokens"});
  CHECK(std::stoi(cached) >= 10 * 16);
  CHECK(s.n_steps() <= 11 + 90 + 3);
}

TEST_CASE("path: O25, requests whose clients left while they were queued are never started") {
  socket_world s(limits(512));
  s.r.say(words(100));
  std::vector<std::unique_ptr<raw_client>> running, queued;
  for (int i = 0; i < 4; ++i) running.push_back(s.send(post_ids(3, 60, true)));
  REQUIRE(s.run_until([&] { return s.r.numbers->running == 4; }));
  for (int i = 0; i < 5; ++i) queued.push_back(s.send(post_ids(13, 60, i % 2 == 0)));
  REQUIRE(s.run_until([&] { return s.r.numbers->waiting == 5; }));
  for (auto& c : queued) c->close();
  s.run();
  for (const auto& step : s.r.rank().steps)
    for (const auto& row : step) CHECK(row.n_tokens != 13);
  CHECK(s.r.numbers->ended_abort == 5);
  for (auto& c : running) CHECK(text_of(c->response().body).size() > 50);
  CHECK(s.is_idle());
}

TEST_CASE("path: O47, an answer that is all reasoning ends by its length and says how much of it was reasoning") {
  socket_world s(limits(512));
  s.r.say(words(200));
  const auto c = s.send(post_chat(R"(,"max_tokens":64)"));
  s.run();
  const auto r = c->response();
  CHECK(r.body.find(R"("finish_reason":"length")") != std::string::npos);
  const size_t reasoning = r.body.find(R"("reasoning_content":")");
  REQUIRE(reasoning != std::string::npos);
  CHECK(r.body.find("word word", reasoning) < reasoning + 40);
  CHECK(r.body.find(R"("content":"")") != std::string::npos);
  CHECK(field(r.body, {"usage", "completion_tokens_details", "reasoning_tokens"}) == "64");
}

TEST_CASE(
    "path: with a grace, a client that has ended its sending side gets its answer, and one that is gone does not") {
  settings config;
  config.half_close_grace_s = 600;
  for (const bool stream : {false, true}) {
    CAPTURE(stream);
    socket_world s(limits(512), {}, config);
    s.r.say(words(40));
    const auto c = s.send(post_ids(5, 30, stream));
    REQUIRE(s.run_until([&] { return s.n_steps() >= 3; }));
    c->shutdown_write();
    s.run();
    const auto r = c->response();
    CHECK(r.status == 200);
    const auto text = stream ? text_of(r.body) : r.body;
    CHECK(text.find(words(30)) != std::string::npos);
    if (stream) CHECK(r.body.find(": ping\n\n") != std::string::npos);
    CHECK(s.n_open == 0); // nothing more can come
  }
  socket_world s(limits(512), {}, config);
  s.r.say(words(100));
  const auto c = s.send(post_ids(5, 90, true));
  REQUIRE(s.run_until([&] { return c->has_come("word"); }));
  c->close(); // the same FIN: only the answer to what is written tells
  s.run();
  CHECK(s.r.numbers->ended_abort == 1);
  CHECK(s.n_steps() < 90);
  CHECK(s.is_idle());
}

TEST_CASE("path: /abort ends the turn of a request, streamed or not, queued or running, and nobody else's") {
  socket_world s(limits(512));
  s.r.say(words(100));
  const auto named = [](const std::string& id, bool stream) {
    const auto body = post_ids(5, 90, stream);
    return "POST /v1/completions HTTP/1.1\r\nX-Request-Id: " + id + body.substr(body.find("\r\n"));
  };
  const auto other = s.send(named("other", true));
  const auto stream = s.send(named("stream", true)), whole = s.send(named("whole", false));
  REQUIRE(s.run_until([&] { return s.n_steps() >= 5; }));
  const auto abort = [&](const std::string& id) {
    const auto c = s.send(http_post("/abort", R"({"request_id":")" + id + "\"}"));
    s.run_until([&] { return c->has_come("\r\n\r\n{"); });
    return c->response();
  };
  CHECK(abort("nobody").status == 404);
  const auto done = abort("cmpl-stream");
  CHECK(done.status == 200);
  CHECK(done.body == R"({"request_id":"cmpl-stream","aborted":1})");
  CHECK(abort("whole").status == 200);
  s.run();
  CHECK(stream->response().body.find("The request was aborted by an operator.") != std::string::npos);
  CHECK(whole->response().status == 499);
  CHECK(text_of(other->response().body) == words(90));
  CHECK(s.r.numbers->ended_abort == 2);
  CHECK(s.is_idle());
  CHECK(abort("other").status == 404); // it has ended
}
