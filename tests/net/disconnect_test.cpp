// Ten thousand clients that leave at any moment over real sockets: nothing of them stays, and nobody else notices.
#include "storage/log.h"
#include "tests/net/live_engine.h"
#include "tests/net/rude_client.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <spdlog/sinks/ostream_sink.h>

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

using namespace troupe;

namespace {

constexpr size_t n_at_once = 32;

// A tool call in the middle of what the model says, so that some clients leave inside it.
std::string with_call() {
  const std::string bar = "\uFF5C", tag = "<" + bar + "DSML" + bar, end = "</" + bar + "DSML" + bar;
  std::string x;
  for (int i = 0; i < 200; ++i) x += " argument";
  return "</think> I call a function.\n\n" + tag + " calls>\n" + tag + " invoke name=\"f\">\n" + tag +
         " parameter name=\"x\" string=\"true\">" + x + end + " parameter>\n" + end + " invoke>\n" + end + " calls>";
}

// A well-behaved stream that is there all the time: each answer must be what it is alone.
class canary {
public:
  canary(uint16_t port, std::string expected) : port_(port), expected_(std::move(expected)) {}
  void step() {
    if (!client_) {
      client_ = std::make_unique<raw_client>(port_);
      client_->send(post_ids(live_engine::canary_prompt_tokens, 3000, true));
    }
    if (!client_->has_come("data: [DONE]\n\n\r\n0\r\n\r\n")) return;
    const auto answer = client_->response();
    n_sung++;
    n_wrong += answer.status != 200 || text_of(answer.body) != expected_;
    client_.reset();
  }
  // The one in flight, to its end.
  void finish() {
    if (!client_) return; // a new one would be left alone, its connection open
    client_->read_text("data: [DONE]\n\n\r\n0\r\n\r\n", 60000);
    step();
  }
  int n_sung = 0, n_wrong = 0;

private:
  uint16_t port_;
  std::string expected_;
  std::unique_ptr<raw_client> client_;
};

void disconnect(
    live_engine& e, canary* bird, uint64_t seed, size_t n_clients, const std::function<void()>& each_round = [] {}) {
  std::mt19937_64 random(seed);
  std::vector<std::unique_ptr<rude_client>> clients;
  for (size_t n_begun = 0; n_begun < n_clients || !clients.empty();) {
    for (; clients.size() < n_at_once && n_begun < n_clients; ++n_begun)
      clients.push_back(std::make_unique<rude_client>(e.port(), any_plan(random())));
    if (bird) bird->step();
    std::erase_if(clients, [](const auto& c) { return !c->step(); });
    each_round();
    std::vector<pollfd> sockets;
    for (const auto& c : clients) sockets.push_back({c->fd(), POLLIN, 0});
    ::poll(sockets.data(), sockets.size(), 1); // a round is up to a millisecond, so that plans last long enough
  }
}

std::string sing_alone(live_engine& e) {
  raw_client c(e.port());
  c.send(post_ids(live_engine::canary_prompt_tokens, 3000, true));
  return text_of(c.response(false, 60000).body);
}

} // namespace

TEST_CASE("session: 10,000 clients that leave at any moment leave nothing, and a stream beside them hears nothing" *
          doctest::test_suite("slow")) {
  live_engine e;
  e.others = with_call();
  e.step_time = std::chrono::microseconds(50);
  e.limits.max_queue = 1000; // nobody is refused
  e.start();
  const auto song = sing_alone(e);
  REQUIRE((song == e.canary)); // in brackets: it is long
  canary bird(e.port(), song);
  disconnect(e, &bird, 1, 3000);
  bird.finish();
  REQUIRE_MESSAGE(e.wait_idle(), e.describe());
  const auto files = open_files(), threads = n_threads(), bytes = anonymous_bytes();
  disconnect(e, &bird, 2, 10000);
  bird.finish();
  for (uint64_t seed = 100; bird.n_sung < 3; ++seed) { // where clients come and go faster than it sings
    disconnect(e, &bird, seed, 1000);
    bird.finish();
  }
  REQUIRE_MESSAGE(e.wait_idle(), e.describe());
  CHECK(bird.n_wrong == 0);
  CHECK(open_files() <= files + 2); // the last scrape and its client may be closing
  CHECK(n_threads() == threads);
  if (memory_is_plain) CHECK(anonymous_bytes() < bytes + (8 << 20));
  CHECK(e.numbers->ended_abort > 1000);
  CHECK(e.numbers->turns == e.n_ended());
  MESSAGE("turns " << e.numbers->turns.load() << ", aborted " << e.numbers->ended_abort.load() << ", songs "
                   << bird.n_sung << ", memory grew by " << (anonymous_bytes() - bytes) / 1024 << " KiB");
  CHECK(sing_alone(e) == song);
}

TEST_CASE("session: O48, no gauge is ever negative while clients come and leave, and the sums close" *
          doctest::test_suite("slow")) {
  live_engine e;
  e.others = with_call();
  e.step_time = std::chrono::microseconds(50);
  e.limits.max_queue = 1000; // nobody is refused
  e.start();
  canary bird(e.port(), sing_alone(e));
  auto next = std::chrono::steady_clock::now();
  int n_scrapes = 0;
  disconnect(e, &bird, 3, 2000, [&] {
    if (std::chrono::steady_clock::now() < next) return;
    next += std::chrono::milliseconds(50);
    const auto text = e.metrics();
    ++n_scrapes;
    CHECK(text.find("} -") == std::string::npos);
    CHECK(text.find("nan") == std::string::npos);
    const auto running = static_cast<double>(e.limits.max_running);
    CHECK(e.metric("vllm:num_requests_running{") <= running);
  });
  bird.finish();
  REQUIRE_MESSAGE(e.wait_idle(), e.describe());
  CHECK(n_scrapes >= 10);
  CHECK(bird.n_wrong == 0);
  CHECK(e.metric("troupe_turns_total{") ==
        e.metric("vllm:request_success_total{") + e.metric("troupe_turns_refused_total{"));
  CHECK(e.metric("vllm:num_requests_running{") == 0);
  CHECK(e.metric("vllm:num_requests_waiting{") == 0);
}

TEST_CASE("request: O26, a thousand requests with every kind of end leave one record each, and the sums are the "
          "counters" *
          doctest::test_suite("slow")) {
  live_engine e;
  e.others = with_call();
  e.limits.max_queue = 1000;
  e.config.request_timeout_s = 2;
  e.config.outbox_bytes = 4096;
  e.start();
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("records", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  spdlog::set_level(spdlog::level::info);
  {
    raw_client late(e.port(), 2048), aborted(e.port(), 2048); // both stop reading, so their turns pause
    late.send(post_ids(10, 3000, true, R"(,"ignore_eos":true,"request_id":"late")"));
    aborted.send(post_ids(10, 3000, true, R"(,"ignore_eos":true,"request_id":"by-an-operator")"));
    CHECK(late.read_text("data:"));
    CHECK(aborted.read_text("data:"));
    raw_client c(e.port());
    c.send(http_post("/abort", R"({"request_id":"by-an-operator"})"));
    CHECK(c.response().status == 200);
    c.send(post_ids(live_engine::broken_prompt_tokens, 10, false, R"(,"request_id":"broken")"));
    CHECK(c.response().status == 500);
    c.send(post_ids(9000, 10, false, R"(,"request_id":"too-long")"));
    CHECK(c.response().status == 400);
    c.send(post_ids(10, 5, false));
    CHECK(c.response(false, 60000).status == 200); // ends by its length
    c.send(http_post("/v1/completions", R"({"prompt":[300],"temperature":0,"max_tokens":2000})"));
    CHECK(c.response(false, 60000).status == 200); // ends by itself
    disconnect(e, nullptr, 26, 994);
    CHECK(e.wait_turns_end());
    CHECK(e.numbers->ended_error >= 2); // broken, and late by its deadline
  }
  REQUIRE_MESSAGE(e.wait_idle(), e.describe());
  spdlog::set_default_logger(before);
  spdlog::set_level(spdlog::level::off);
  std::map<std::string, int64_t> causes;
  std::map<std::string, int> of_id;
  const auto text = log.str();
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const size_t id = line.find("request "), tokens = line.find(" prompt tokens"), cause = line.rfind("; ");
    if (id == std::string::npos || tokens == std::string::npos || cause == std::string::npos) continue;
    ++of_id[line.substr(id + 8, line.find(':', id) - id - 8)];
    ++causes[line.substr(cause + 2, line.find_first_of(" :", cause + 2) - cause - 2)];
  }
  const auto& n = *e.numbers;
  for (const auto& [id, n_records] : of_id) CHECK(n_records == 1);
  CHECK(static_cast<int64_t>(of_id.size()) == n.turns);
  CHECK(causes["abort"] == n.ended_abort);
  CHECK(causes["length"] == n.ended_length);
  CHECK(causes["stop"] + causes["tool_calls"] == n.ended_stop);
  CHECK(causes["error"] == n.ended_error);
  CHECK(causes["refused"] == n.ended_refused);
  for (const auto n_of : {&n.ended_abort, &n.ended_length, &n.ended_stop, &n.ended_error, &n.ended_refused})
    CHECK(*n_of > 0);
}
