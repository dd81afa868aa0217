// Five thousand connections, many of them slow readers: memory bounded by the connection, others served as ever; and
// what a newcomer is told when the house is full.
#include "tests/net/live_engine.h"
#include "tests/net/test_server.h"
#include "tests/served.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>

using namespace troupe;

namespace {

int64_t anonymous_bytes_of(int pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  return -1;
}

// The limit of open files, as high as it may be.
int64_t raise_open_files() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int64_t>(limit.rlim_cur);
}

std::string endless() {
  return http_post("/v1/completions", R"({"prompt":[300,301],"max_tokens":2000,"ignore_eos":true,"stream":true})");
}

} // namespace

TEST_CASE("server: one connection too many is told 503 and closed, and room comes back") {
  test_server s;
  s.config.max_connections = 2;
  s.start();
  auto first = std::make_unique<raw_client>(s.port());
  raw_client second(s.port());
  for (auto* c : {first.get(), &second}) {
    c->send(http_get("/version"));
    CHECK(c->response().status == 200);
  }
  for (int i = 0; i < 100; ++i) { // more than are waited for
    raw_client third(s.port());
    third.send(http_get("/version"));
    const auto r = third.response();
    CHECK(r.status == 503);
    CHECK(r.header("connection") == "close");
    CHECK(r.header("retry-after") == "2");
    CHECK(r.body.find("max_connections") != std::string::npos);
    CHECK(third.reads_end());
  }
  first.reset();
  int status = 0;
  for (int i = 0; i < 1000 && status != 200; ++i) {
    raw_client next(s.port());
    next.send(http_get("/version"));
    status = next.response().status;
  }
  CHECK(status == 200);
  second.send(http_get("/metrics")); // those inside go on
  CHECK(second.response().body.find("troupe_connections_refused_total") != std::string::npos);
}

TEST_CASE("server: a turn that finds the queue full gets 429 with position and wait before its body is read") {
  test_server s;
  s.config.max_queue = 8;
  s.config.max_running = 2;
  s.engine.script = answer_hello;
  s.start();
  s.numbers->running = 2;
  s.numbers->waiting = 5;
  s.numbers->preparing = 3;
  s.numbers->turn_us = 3'000'000;
  raw_client c(s.port());
  c.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
         "Content-Length: 100000\r\n\r\n"); // and nothing of the body
  const auto r = c.response();
  CHECK(r.status == 429);
  CHECK(r.header("retry-after") == "14"); // nine turns of three seconds, two at a time
  CHECK(r.header("x-queue-position") == "9");
  CHECK(field(r.body, {"error", "type"}) == "RateLimitError");
  CHECK(field(r.body, {"error", "message"}).find("position 9, expected wait about 14 s") != std::string::npos);
  s.numbers->waiting = 3;
  const auto whole = http_post("/v1/chat/completions", chat_body());
  const auto ask_until = [&](int wanted) { // what other sockets have brought is seen a moment later
    int status = 0;
    for (int i = 0; i < 1000 && status != wanted; ++i) status = s.ask(whole).status;
    return status;
  };
  {
    raw_client uploading(s.port()), another(s.port());
    for (auto* u : {&uploading, &another}) u->send(whole.substr(0, whole.size() - 1)); // bodies on their way count
    CHECK(ask_until(429) == 429);
  }
  CHECK(ask_until(200) == 200);
}

TEST_CASE(
    "server: 5,000 connections, a thousand of them slow readers, cost a bounded memory each and slow nobody down" *
    doctest::test_suite("slow")) {
  const int64_t files = raise_open_files();
  const auto n_wanted = static_cast<int>(std::min<int64_t>(5000, files - 500));
  MESSAGE("connections: " << n_wanted << " of 5000 (this process may open " << files << " files)");
  constexpr int n_readers = 8, n_rounds = 5, n_tokens = 80, rate = 50;
  // A thousand streams that were not paused would gain 50,000 tokens a second, more than this in each round.
  constexpr int64_t max_growth_bytes = 4 << 20;
  test::served child({"--backend", "null", "--null-tokens-per-s", std::to_string(rate), "--max-running", "1100",
                      "--max-queue", "4096", "--kv-memory-mb", "65536", "--outbox-kb", "4"});
  const auto port = static_cast<uint16_t>(child.port());
  const auto ask = [&](const std::string& bytes) {
    raw_client c(port);
    c.send(bytes);
    return c.response(false, 60000);
  };
  CHECK(ask(http_get("/version")).status == 200);
  const int64_t bytes_before = anonymous_bytes_of(child.pid());
  std::vector<std::unique_ptr<raw_client>> slow;
  for (int i = 0; i < n_wanted; ++i) {
    slow.push_back(std::make_unique<raw_client>(port, 2048));
    if (i % 5 == 0) slow.back()->send(endless()); // the others say nothing at all
  }
  const auto deadline = [] { return std::chrono::steady_clock::now() + std::chrono::seconds(60); };
  const int n_streams = (n_wanted + 4) / 5;
  double n_paused = 0; // all of them, in the end: their queues are full
  for (const auto until = deadline(); n_paused < n_streams && std::chrono::steady_clock::now() < until;)
    n_paused = metric_of(ask(http_get("/metrics")).body, "troupe_streams_paused{");
  CHECK(n_paused == n_streams);
  CHECK(metric_of(ask(http_get("/metrics")).body, "troupe_stream_pauses_total{") >= n_streams);
  // While they stay, others read: of what each round of those makes the server hold, nothing stays.
  std::vector<int64_t> bytes;
  double seconds = 0;
  for (int round = 0; round < n_rounds; ++round) {
    std::vector<std::unique_ptr<raw_client>> readers;
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < n_readers; ++i) {
      readers.push_back(std::make_unique<raw_client>(port));
      readers.back()->send(http_post("/v1/completions", R"({"prompt":[300],"max_tokens":)" + std::to_string(n_tokens) +
                                                            R"(,"stream":true})"));
    }
    for (auto& r : readers) {
      const auto answer = r->response(false, 120000);
      CHECK(answer.status == 200);
      CHECK(events_of(answer.body).size() > n_tokens / 2);
    }
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    bytes.push_back(anonymous_bytes_of(child.pid()));
  }
  const double per_connection = static_cast<double>(bytes.back() - bytes_before) / n_wanted;
  MESSAGE(n_readers << " readers took " << seconds << " s for " << n_rounds << " times " << n_tokens << " tokens at "
                    << rate << "/s; " << per_connection / 1024 << " KiB a connection, "
                    << (bytes.back() - bytes.front()) / 1024 << " KiB more in the end than after the first time");
  CHECK(seconds < 10.0 * n_rounds * n_tokens / rate);
  if (memory_is_plain) {
    CHECK(per_connection < 64 << 10);
    for (const auto b : bytes) CHECK(b < bytes.front() + max_growth_bytes);
  }
  CHECK(ask(http_get("/health")).status == 200);
  slow.clear();
  bool is_idle = false;
  for (const auto until = deadline(); !is_idle && std::chrono::steady_clock::now() < until;) {
    const auto m = ask(http_get("/metrics")).body;
    is_idle = metric_of(m, "troupe_connections{") == 1 && metric_of(m, "vllm:num_requests_running{") == 0 &&
              metric_of(m, "vllm:num_requests_waiting{") == 0 && metric_of(m, "troupe_kv_blocks_used{") == 0;
  }
  CHECK(is_idle);
  CHECK(child.stop(SIGTERM) == 0);
}
