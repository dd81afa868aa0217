// The server over real sockets, a scripted engine behind it: transport rules of api.md section 0 and the plain
// endpoints.
#include "net/service.h"
#include "tests/net/test_server.h"

#include <doctest/doctest.h>

#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <future>
#include <sstream>
#include <system_error>

using namespace troupe;

TEST_CASE("server: binds first and answers loading with the phase until a runtime is attached") {
  test_server s;
  s.numbers->now = phase::weights;
  s.numbers->progress = 0.42;
  s.start(false);
  const auto ready = s.ask(http_get("/ready"));
  CHECK(ready.status == 503);
  CHECK(ready.body == R"({"status":"loading","phase":"weights","progress":0.42})");
  CHECK(s.ask(http_get("/health")).status == 503);
  const auto chat = s.ask(http_post("/v1/chat/completions", chat_body()));
  CHECK(chat.status == 503);
  CHECK(chat.header("retry-after") == "30");
  CHECK(field(chat.body, {"error", "type"}) == "ServiceUnavailableError");
  s.numbers->now = phase::ready;
  s.listener->attach(s.engine.port());
  CHECK(s.ask(http_get("/ready")).body == R"({"status":"ready"})");
  CHECK(s.ask(http_get("/health")).status == 200);
}

TEST_CASE("server: health follows the step in the ring, not the time since the last one") {
  test_server s;
  s.numbers->now = phase::ready;
  s.numbers->running = 1; // a paused stream, or a request that came after an idle hour
  s.numbers->last_step_us = 1;
  s.start(false);
  s.listener->attach(s.engine.port());
  CHECK(s.ask(http_get("/health")).status == 200);
  s.numbers->step_sent_us = 1; // sent when the machine started and never back
  CHECK(s.ask(http_get("/health")).status == 503);
  s.numbers->step_sent_us = 0;
  CHECK(s.ask(http_get("/health")).status == 200);
}

TEST_CASE("server: kernels that the self-check parked are told") {
  test_server s;
  s.numbers->parked_linears = 1U << 6 | 1U << 5;
  s.numbers->parked_experts = 1U << 6;
  s.numbers->parked_attention = true;
  s.start();
  CHECK(s.ask(http_get("/ready")).body ==
        R"({"status":"ready","parked_kernels":["linear EXL3 mul1 K=2.5","linear EXL3 mul1 K=3",)"
        R"("experts EXL3 mul1 K=3","attention of 512 dims"]})");
  const auto metrics = s.ask(http_get("/metrics")).body;
  CHECK(metrics.find("troupe_kernel_parked{model_name=\"tiny\",engine=\"0\",kernel=\"experts EXL3 mul1 K=3\"} 1") !=
        std::string::npos);
}

TEST_CASE("server: O43, features 6.14: steps outside of graphs and a drafter that does not fit are alarms") {
  test_server s;
  s.start();
  CHECK(s.ask(http_get("/ready")).body == R"({"status":"ready"})");
  s.numbers->graph_misses = 7;
  s.numbers->weak_drafts = true;
  CHECK(s.ask(http_get("/ready")).body ==
        R"({"status":"ready","alarms":["7 steps ran outside of the CUDA graphs that were captured",)"
        R"("drafts are right less than half as often as the drafter believes"]})");
  const auto metrics = s.ask(http_get("/metrics")).body;
  CHECK(metrics.find("troupe_weak_drafts{model_name=\"tiny\",engine=\"0\"} 1") != std::string::npos);
  CHECK(metrics.find("troupe_graph_misses_total{model_name=\"tiny\",engine=\"0\"} 7") != std::string::npos);
}

TEST_CASE("server: a busy port is refused at once, by name") {
  test_server s;
  s.start(false);
  settings second = s.config;
  second.port = s.port();
  try {
    server other(second, s.numbers, "1");
    FAIL("bound twice");
  } catch (const std::system_error& e) {
    CHECK(std::string(e.what()).find("127.0.0.1 port " + std::to_string(s.port())) != std::string::npos);
    CHECK(e.code() == std::errc::address_in_use);
  }
}

TEST_CASE("server: drain refuses new work and says so") {
  test_server s;
  s.start();
  s.listener->begin_drain();
  CHECK(s.ask(http_get("/ready")).body == R"({"status":"draining"})");
  const auto r = s.ask(http_post("/v1/chat/completions", chat_body()));
  CHECK(r.status == 503);
  CHECK(r.header("retry-after") == "5");
}

TEST_CASE("server: plain endpoints") {
  test_server s;
  s.start();
  CHECK(s.ask(http_get("/version")).body == R"({"version":"1.2.3"})");
  CHECK(s.ask(http_get("/load")).body == R"({"server_load":0})");
  CHECK(s.ask(http_get("/ping")).status == 200);
  CHECK(s.ask(http_get("/")).body.find("troupe 1.2.3") == 0);
  const auto models = s.ask(http_get("/v1/models"));
  CHECK(field(models.body, {"object"}) == "list");
  CHECK(models.body.find("\"max_model_len\":4096") != std::string::npos);
  CHECK(s.ask(http_get("/v1/models/alias/of-tiny")).status == 200);
  CHECK(s.ask(http_get("/v1/models/alias%2Fof-tiny")).status == 200);
  CHECK(s.ask(http_get("/v1/models/other")).status == 404);
  CHECK(field(s.ask(http_post("/tokenize", R"({"prompt":"ab"})")).body, {"count"}) == "2");
  CHECK(s.ask(http_post("/tokenize", R"({"prompt":"ab","return_token_strs":true})"))
            .body.find(R"("token_strs":["a","b"])") != std::string::npos);
  CHECK(s.ask(http_post("/detokenize", R"({"tokens":[104,105]})")).body == R"({"prompt":"hi"})");
  CHECK(s.ask(http_post("/detokenize", R"({"tokens":[129280]})")).status == 400);
  CHECK(field(s.ask(http_post("/v1/chat/completions/render", chat_body())).body, {"prompt"}) == "rendered");
  const auto metrics = s.ask(http_get("/metrics"));
  CHECK(metrics.header("content-type") == "text/plain; version=0.0.4; charset=utf-8");
  CHECK(metrics.body.find("vllm:num_requests_running{model_name=\"tiny\",engine=\"0\"} 0") != std::string::npos);
  for (const std::string name :
       {"vllm:num_requests_waiting_by_reason{model_name=\"tiny\",engine=\"0\",reason=\"capacity\"} 0",
        "vllm:request_time_per_output_token_seconds_count", "vllm:request_inference_time_seconds_count",
        "vllm:request_max_num_generation_tokens_count", "vllm:request_params_max_tokens_count",
        "vllm:request_params_n_count", "vllm:cache_config_info{model_name=\"tiny\",engine=\"0\",block_size=\"0\""})
    CHECK_MESSAGE(metrics.body.find(name) != std::string::npos, name);
  CHECK(metrics.body.find(
            "http_requests_total{model_name=\"tiny\",engine=\"0\",handler=\"/version\",status=\"200\"} 1") !=
        std::string::npos);
}

TEST_CASE("server: an answer in one piece and the same as a stream") {
  test_server s;
  s.engine.script = answer_hello;
  s.start();
  const auto whole = s.ask(http_post("/v1/chat/completions", chat_body(), "X-Request-Id: my.id-1\r\n"));
  CHECK(whole.status == 200);
  CHECK(whole.header("x-request-id") == "my.id-1");
  CHECK(field(whole.body, {"id"}) == "chatcmpl-my.id-1");
  CHECK(field(whole.body, {"object"}) == "chat.completion");
  CHECK(field(whole.body, {"model"}) == "tiny");
  CHECK(field(whole.body, {"usage", "total_tokens"}) == "10");
  CHECK(
      whole.body.find(
          R"("message":{"role":"assistant","content":"Hello","refusal":null,"reasoning_content":null,"reasoning":null},"logprobs":null,"finish_reason":"stop","stop_reason":null)") !=
      std::string::npos);
  const auto stream = s.ask(http_post("/v1/chat/completions", chat_body(R"(,"stream":true)")));
  CHECK(stream.status == 200);
  CHECK(stream.header("content-type") == "text/event-stream; charset=utf-8");
  CHECK(stream.header("x-accel-buffering") == "no");
  CHECK(stream.header("content-length").empty());
  const auto events = events_of(stream.body);
  REQUIRE(events.size() == 5);
  CHECK(events[4] == "[DONE]");
  CHECK(
      events[0].find(
          R"("choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]})") !=
      std::string::npos);
}

TEST_CASE("server: keep-alive and pipelined requests are answered in order") {
  test_server s;
  s.engine.script = answer_hello;
  s.start();
  raw_client c(s.port());
  c.send(http_get("/version") + http_post("/v1/chat/completions", chat_body(R"(,"stream":true)")) +
         http_post("/v1/chat/completions", chat_body()) + http_get("/load"));
  CHECK(c.response().body == R"({"version":"1.2.3"})");
  CHECK(events_of(c.response().body).size() == 5);
  CHECK(field(c.response().body, {"object"}) == "chat.completion");
  CHECK(c.response().body == R"({"server_load":0})");
  c.send(http_get("/version", "Connection: close\r\n"));
  CHECK(c.response().header("connection") == "close");
  CHECK(c.reads_end());
}

TEST_CASE("server: HTTP/1.0 gets an unchunked stream and a closed connection") {
  test_server s;
  s.engine.script = answer_hello;
  s.start();
  raw_client c(s.port());
  const auto body = chat_body(R"(,"stream":true)");
  c.send("POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body);
  CHECK(c.reads_end());
  CHECK(c.pending().find("Transfer-Encoding") == std::string::npos);
  CHECK(c.pending().ends_with("data: [DONE]\n\n"));
}

TEST_CASE("server: Expect: 100-continue is answered before the body is sent") {
  test_server s;
  s.engine.script = answer_hello;
  s.start();
  raw_client c(s.port());
  const auto all = http_post("/v1/chat/completions", chat_body(), "Expect: 100-continue\r\n");
  const auto split = all.find("\r\n\r\n") + 4;
  c.send(all.substr(0, split));
  REQUIRE(c.read_text("100 Continue\r\n\r\n"));
  c.send(all.substr(split));
  CHECK(c.response().status == 200);
}

TEST_CASE("server: one byte at a time gives the same answer") {
  test_server s;
  s.engine.script = answer_hello;
  s.start();
  raw_client c(s.port());
  for (const char b : http_post("/v1/chat/completions", chat_body())) c.send({&b, 1});
  CHECK(field(c.response().body, {"usage", "total_tokens"}) == "10");
}

TEST_CASE("server: malformed HTTP gets the right status and the server lives") {
  test_server s;
  s.config.max_body_bytes = 1000;
  s.start();
  struct row {
    std::string bytes;
    int status;
  };
  const std::string json = "Content-Type: application/json\r\n";
  const row rows[] = {
      {"GARBAGE\r\n\r\n", 400},
      {"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 400},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost x\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: x\r\n bad: fold\x01\r\n\r\n", 400},
      {"GET /no/such HTTP/1.1\r\nHost: x\r\n\r\n", 404},
      {"GET /V1/models HTTP/1.1\r\nHost: x\r\n\r\n", 404},
      {"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", 404},
      {"DELETE /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 405},
      {"GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n", 405},
      {"BREW /version HTTP/1.1\r\nHost: x\r\n\r\n", 405},
      {"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 415},
      {"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 415},
      {"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: Application/JSON; "
       "charset=utf-8\r\nContent-Length: 2\r\n\r\n{}",
       400},
      {"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + json + "Content-Length: 1001\r\n\r\n", 413},
      {"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + json + "Content-Length: -1\r\n\r\n", 400},
      {"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + json + "Content-Length: 99999999999999999999\r\n\r\n",
       400},
      {"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + json + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + json + "Transfer-Encoding: chunked\r\n\r\n" + "500\r\n" +
           std::string(0x500, 'a') + "\r\n0\r\n\r\n",
       413},
      {"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + json + "Content-Length: 0\r\n\r\n", 400},
      {"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + json + "Transfer-Encoding: gzip\r\n\r\n", 501},
      {"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + json + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
       501},
      {"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + json +
           "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
       415},
      {"GET / HTTP/1.1\r\nHost: x\r\nX: " + std::string(70000, 'a') + "\r\n\r\n", 431},
      {"GET /" + std::string(9000, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n", 414},
  };
  for (const auto& r : rows) {
    CAPTURE(r.bytes.substr(0, 200));
    const auto answer = s.ask(r.bytes);
    CHECK(answer.status == r.status);
    CHECK(field(answer.body, {"error", "code"}) == std::to_string(r.status));
    CHECK(!answer.header("x-request-id").empty());
  }
  CHECK(s.ask(http_get("/version")).status == 200);
}

TEST_CASE("server: blank lines in front of a request are skipped") {
  test_server s;
  s.start();
  raw_client c(s.port());
  c.send("\r\n\r\n" + http_get("/version") + "\r\n" + http_get("/load"));
  CHECK(c.response().status == 200);
  CHECK(c.response().body == R"({"server_load":0})");
  c.send("\r");
  c.send("\n" + http_get("/version"));
  CHECK(c.response().status == 200);
}

TEST_CASE("server: bodies of all connections together stay under their budget") {
  test_server s;
  s.config.max_bodies_bytes = 100000;
  s.start();
  const auto body = [](size_t n) { return "{\"prompt\":\"" + std::string(n, 'a') + "\"}"; };
  const auto big = s.ask(http_post("/tokenize", body(200000)));
  CHECK(big.status == 503);
  CHECK(big.header("retry-after") == "2");
  CHECK(field(s.ask(http_post("/tokenize", body(90000))).body, {"count"}) == "90000");
  const std::string chunked = "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                              "Transfer-Encoding: chunked\r\n\r\n";
  CHECK(s.ask(chunked + "30d40\r\n" + std::string(200000, ' ') + "\r\n0\r\n\r\n").status == 503);
}

TEST_CASE("server: a body that is half there keeps its part of the budget, and gives it back once") {
  settings config;
  config.max_bodies_bytes = 100;
  service shared(config, std::make_shared<counters>(), "1");
  body_claim half(shared.bodies());
  CHECK(half.grow_to(80));
  CHECK(half.grow_to(40)); // it has more already
  CHECK(!shared.has_room(30));
  {
    body_claim other(shared.bodies());
    CHECK(!other.grow_to(30));
    CHECK(other.grow_to(20));
    CHECK(!half.grow_to(90));
  }
  CHECK(half.grow_to(100));
  half.release();
  half.release();
  CHECK(shared.has_room(100));
  CHECK(!shared.has_room(101));
}

TEST_CASE("server: a large body is read off the thread that serves the sockets") {
  test_server s;
  s.engine.script = answer_hello;
  std::promise<void> go;
  auto gone = go.get_future().share();
  s.engine.facts->encode = [gone](std::string_view) {
    gone.wait();
    return std::vector<int32_t>{1};
  };
  s.start(); // one thread
  raw_client large(s.port());
  large.send(
      http_post("/v1/chat/completions", chat_body(R"(,"bad_words":["x"],"user":")" + std::string(70000, 'u') + "\"")));
  CHECK(s.ask(http_get("/version")).status == 200);
  CHECK(s.ask(http_post("/v1/chat/completions", chat_body())).status == 200);
  go.set_value();
  CHECK(large.response().status == 200);
}

TEST_CASE("server: a refused request leaves one line in the log") {
  test_server s;
  s.engine.script = [](scripted_engine::turn& t) { t.sink->fail({400, "BadRequestError", "no", "prompt", 0}); };
  s.start();
  std::ostringstream text;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("one", std::make_shared<spdlog::sinks::ostream_sink_mt>(text)));
  spdlog::set_level(spdlog::level::info);
  const auto n_lines = [&] {
    const auto all = text.str();
    return std::count(all.begin(), all.end(), '\n');
  };
  CHECK(s.ask(http_post("/v1/chat/completions", "{}")).status == 400);
  CHECK(n_lines() == 1);
  CHECK(s.ask(http_post("/v1/chat/completions", chat_body())).status == 400); // the request's actor writes that line
  CHECK(n_lines() == 1);
  spdlog::set_default_logger(before);
  spdlog::set_level(spdlog::level::off);
}

TEST_CASE("server: a host that cannot be resolved is refused in the resolver's words") {
  test_server s;
  s.start(false);
  settings other = s.config;
  other.host = std::string(300, 'x'); // no name is so long: no server is asked
  try {
    server listener(other, s.numbers, "1");
    FAIL("bound");
  } catch (const std::system_error& e) {
    const std::string what = e.what();
    CHECK(what.find("cannot listen on xxx") == 0);
    CHECK(what.find("Operation not permitted") == std::string::npos);
    CHECK(what.find(e.code().message()) != std::string::npos);
    CHECK(e.code().category() != std::system_category());
  }
}

TEST_CASE("server: a head that stops half-way is answered with 408, an idle connection is just closed") {
  test_server s;
  s.config.read_timeout_s = 1;
  s.start();
  raw_client idle(s.port()), half(s.port()), body(s.port());
  half.send("GET /version HT");
  body.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{");
  CHECK(half.response().status == 408);
  CHECK(body.response().status == 408);
  CHECK(idle.reads_end());
  CHECK(idle.pending().empty());
}
