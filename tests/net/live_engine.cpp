// The ring with a canned model, wired as system.cpp does it.
#include "tests/net/live_engine.h"

#include "net/engine_port.h"
#include "net/json_tree.h"
#include "storage/log.h"

#include <dirent.h>
#include <sys/resource.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>

namespace troupe {
namespace {

class canned_model : public model {
public:
  canned_model(const live_engine& e, const tokenizer& words)
      : canary_(words.encode(e.canary)), others_(words.encode(e.others)), step_time_(e.step_time) {
    info_.vocabulary = words.size();
    info_.block_tokens = e.limits.block_tokens;
  }
  const model_info& info() const override { return info_; }
  std::span<const float> forward(std::span<const sequence_rows> rows, record_source&) override {
    const auto until = std::chrono::steady_clock::now() + step_time_;
    size_t n_logits = 0;
    for (const auto& r : rows) n_logits += static_cast<size_t>(r.n_logits);
    logits_.assign(n_logits * static_cast<size_t>(info_.vocabulary), 0.0F);
    auto* row = logits_.data();
    for (const auto& r : rows)
      for (int32_t i = r.n_logits; i-- > 0; row += info_.vocabulary) {
        const auto at = static_cast<size_t>(r.start + static_cast<int64_t>(r.tokens.size()) - i - r.n_prompt);
        const auto& said = r.n_prompt == live_engine::canary_prompt_tokens ? canary_ : others_;
        row[at < said.size() ? said[at] : 1] = 10;
        if (r.n_prompt == live_engine::broken_prompt_tokens) row[3] = NAN;
      }
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield(); // a step that computes
    return logits_;
  }
  int32_t take_image(planned_image) override { return 1; }
  void drop_image(int32_t) override {}

private:
  std::vector<int32_t> canary_, others_;
  std::chrono::microseconds step_time_;
  model_info info_;
  std::vector<float> logits_;
};

int64_t status_value(const char* name) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(name)) return std::stoll(line.substr(std::strlen(name) + 1));
  return -1;
}

} // namespace

live_engine::live_engine() {
  limits.max_running = 4;
  limits.max_queue = 64;
  limits.chunk_tokens = 64;
  limits.n_blocks = 2048;
  limits.block_tokens = 8;
  limits.eos = 1;
  config.host = "127.0.0.1";
  config.port = 0;
  for (int i = 0; i < 400; ++i) canary += " c" + std::to_string(i);
  for (int i = 0; i < 200; ++i) others += " other words";
}

void live_engine::start() {
  spdlog::set_level(spdlog::level::off);
  config.max_running = limits.max_running;
  config.max_queue = limits.max_queue;
  const auto text = tiny_text();
  ring_config r;
  r.limits = limits;
  r.prefix.snapshot_bytes = 1;
  r.prefix.snapshot_memory_bytes = 64;
  r.prefix.snapshot_interval = 64;
  r.prefix.snapshot_slack = 1;
  r.make_rank = [this, text](int32_t) {
    rank_parts p;
    p.weights = std::make_unique<canned_model>(*this, *text->words());
    return p;
  };
  engine_ = spawn_ring(system_, r, text, numbers);
  caf::scoped_actor self{system_};
  const auto ignore = [](const caf::error&) {};
  for (const auto& who : engine_.ranks)
    self->request(who, std::chrono::seconds(60), load_atom_v).receive([](bool) {}, ignore);
  for (const auto& who : engine_.engram_fetches)
    self->request(who, std::chrono::seconds(60), load_atom_v).receive([](bool) {}, ignore);
  wire(engine_);
  parts_.config = config;
  parts_.info.name = "canned";
  parts_.info.vocabulary = text->words()->size();
  parts_.info.block_tokens = limits.block_tokens;
  parts_.max_context = 8192;
  parts_.text = text;
  parts_.numbers = numbers;
  parts_.journal = engine_.journal;
  parts_.prepare = spawn_prepare(system_, {config, parts_.info, parts_.max_context, numbers}, text, 2);
  numbers->now = phase::ready;
  listener = std::make_unique<server>(config, numbers, "1");
  listener->attach(to_engine_port(system_, parts_));
}

live_engine::~live_engine() {
  listener.reset();
  for (const auto& a : engine_.all()) caf::anon_send_exit(a, caf::exit_reason::user_shutdown);
  caf::anon_send_exit(parts_.prepare, caf::exit_reason::user_shutdown);
  engine_ = {};
  parts_ = {};
}

std::string live_engine::metrics() const {
  raw_client c(port());
  c.send(http_get("/metrics"));
  return c.response(false, 20000).body;
}

double live_engine::metric(std::string_view name) const { return metric_of(metrics(), name); }

double metric_of(const std::string& text, std::string_view name) {
  double sum = 0;
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    if (at > 0 && text[at - 1] != '\n') continue;
    const size_t end = text.find('\n', at), value = text.rfind(' ', end);
    sum += std::stod(text.substr(value, end - value));
  }
  return sum;
}

int64_t live_engine::n_ended() const {
  const auto& n = *numbers;
  return n.ended_stop + n.ended_length + n.ended_abort + n.ended_error + n.ended_refused;
}

bool live_engine::is_idle() const {
  const auto& n = *numbers;
  return n.running == 0 && n.waiting == 0 && n.paused == 0 && n.preparing == 0 && n.blocks_used == 0 &&
         n.turns == n_ended();
}

bool live_engine::wait_idle(std::chrono::seconds deadline) const {
  const auto until = std::chrono::steady_clock::now() + deadline;
  while (std::chrono::steady_clock::now() < until) {
    // The scrape's own connection is the one that is open, and passing through the server lets time go by.
    if (is_idle() && metric("troupe_http_in_flight{") == 0 && metric("troupe_bodies_bytes{") == 0 &&
        metric("troupe_connections{") == 1)
      return true;
  }
  return false;
}

bool live_engine::wait_turns_end(std::chrono::seconds deadline) const {
  const auto until = std::chrono::steady_clock::now() + deadline;
  while (!is_idle() && std::chrono::steady_clock::now() < until) metrics();
  return is_idle();
}

std::string live_engine::describe() const {
  const auto& n = *numbers;
  return "running " + std::to_string(n.running) + ", waiting " + std::to_string(n.waiting) + ", paused " +
         std::to_string(n.paused) + ", preparing " + std::to_string(n.preparing) + ", blocks " +
         std::to_string(n.blocks_used) + ", in flight " + std::to_string(metric("troupe_http_in_flight{")) +
         ", connections " + std::to_string(metric("troupe_connections{")) + ", bodies " +
         std::to_string(metric("troupe_bodies_bytes{")) + ", turns " + std::to_string(n.turns) + ", ended " +
         std::to_string(n_ended());
}

std::string post_ids(int64_t n_tokens, int64_t max_tokens, bool stream, const std::string& more) {
  std::string body = R"({"temperature":0,"max_tokens":)" + std::to_string(max_tokens) + ",\"prompt\":[";
  for (int64_t i = 0; i < n_tokens; ++i) body += (i ? "," : "") + std::to_string(300 + i % 700);
  return http_post("/v1/completions", body + "]" + (stream ? R"(,"stream":true)" : "") + more + "}");
}

std::string text_of(std::string_view stream_body) {
  std::string out;
  for (size_t at = 0; (at = stream_body.find("data: {", at)) != std::string_view::npos;) {
    at += 6;
    const size_t end = std::min(stream_body.find("\n\n", at), stream_body.size());
    json_document doc;
    if (!doc.parse(stream_body.substr(at, end - at))) continue;
    const json_value* choices = doc.root().find("choices");
    if (!choices || choices->items.empty()) continue;
    const auto& choice = choices->items[0];
    if (const json_value* delta = choice.find("delta")) {
      if (const json_value* content = delta->find("content")) out += content->text;
    } else if (const json_value* text = choice.find("text")) {
      out += text->text;
    }
  }
  return out;
}

int64_t open_files() {
  int64_t n = -3; // "." and "..", and the folder itself
  DIR* d = ::opendir("/proc/self/fd");
  while (::readdir(d)) ++n;
  ::closedir(d);
  return n;
}

int64_t n_threads() { return status_value("Threads:"); }
int64_t anonymous_bytes() { return status_value("RssAnon:") * 1024; }

double cpu_seconds_used() {
  rusage u{};
  ::getrusage(RUSAGE_SELF, &u);
  const auto s = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6; };
  return s(u.ru_utime) + s(u.ru_stime);
}

} // namespace troupe
