// The verbs smoke and status: questions to a running server over HTTP.
#include "net/client.h"
#include "net/json_tree.h"
#include "net/verbs.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace troupe {
namespace {

constexpr auto smoke_deadline = std::chrono::seconds(120);
constexpr auto status_deadline = std::chrono::seconds(5);

std::string url_of(const settings& s) {
  const std::string host = s.host == "0.0.0.0" ? "127.0.0.1" : s.host == "::" ? "[::1]" : s.host;
  return fmt::format("http://{}:{}", host, s.port);
}

std::string key_of(const settings& s) { return s.api_keys.empty() ? std::string() : s.api_keys.front(); }

// The text of the first choice; empty if the body has another shape.
std::string content_of(const std::string& body) {
  json_document doc;
  if (!doc.parse(body)) return {};
  const json_value* choices = doc.root().find("choices");
  const json_value* message = choices && !choices->items.empty() ? choices->items[0].find("message") : nullptr;
  const json_value* content = message ? message->find("content") : nullptr;
  return content ? std::string(content->text) : std::string();
}

// Sum of a metric's samples; -1 if it is not there.
double metric(const std::string& text, std::string_view name) {
  double sum = -1;
  for (size_t at = 0; (at = text.find(name, at)) != std::string::npos; at += name.size()) {
    const size_t line = text.rfind('\n', at) + 1; // npos + 1 is 0
    const size_t end = std::min(text.find('\n', at), text.size()), value = text.rfind(' ', end - 1);
    const char after = text[std::min(at + name.size(), text.size() - 1)];
    if (line != at || (after != '{' && after != ' ')) continue;
    sum = std::max(sum, 0.0) + std::strtod(text.c_str() + value, nullptr);
  }
  return sum;
}

} // namespace

int run_smoke(const settings& s, std::string url) {
  if (url.empty()) url = url_of(s);
  const std::string body = R"({"messages":[{"role":"user","content":"What is 17*19? Reply with the integer only."}],)"
                           R"("temperature":0,"max_tokens":16,"chat_template_kwargs":{"thinking":false}})";
  const auto start = std::chrono::steady_clock::now();
  try {
    const auto answer = http_post(url, "/v1/chat/completions", body, key_of(s), smoke_deadline);
    const auto ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    if (answer.status != 200) {
      std::fprintf(stderr, "smoke: %s answered %d: %s\n", url.c_str(), answer.status, answer.body.c_str());
      return 1;
    }
    const auto content = content_of(answer.body);
    const bool right = content == "323";
    fmt::print("smoke: {} answered '{}' in {:.0f} ms: {}\n", url, content, ms, right ? "right" : "expected 323");
    return right ? 0 : 1;
  } catch (const std::runtime_error& e) {
    std::fprintf(stderr, "smoke: %s\n", e.what());
    return 1;
  }
}

int run_status(const settings& s, std::string url) {
  if (url.empty()) url = url_of(s);
  try {
    const auto version = http_get(url, "/version", key_of(s), status_deadline);
    const auto ready = http_get(url, "/ready", key_of(s), status_deadline);
    const auto m = http_get(url, "/metrics", key_of(s), status_deadline).body;
    fmt::print("{}  {}  {}\n", url, version.body, ready.body);
    struct row {
      const char *label, *name;
    };
    constexpr row rows[] = {{"running", "vllm:num_requests_running"},
                            {"waiting", "vllm:num_requests_waiting"},
                            {"KV blocks used", "troupe_kv_blocks_used"},
                            {"KV blocks", "troupe_kv_blocks"},
                            {"steps", "troupe_steps_total"},
                            {"prompt tokens", "vllm:prompt_tokens_total"},
                            {"generated tokens", "vllm:generation_tokens_total"},
                            {"turns ended", "vllm:request_success_total"},
                            {"turns refused", "troupe_queue_rejects_total"},
                            {"resident bytes", "process_resident_memory_bytes"}};
    for (const auto& r : rows) fmt::print("  {:<18}{:.0f}\n", r.label, metric(m, r.name));
    return ready.status == 200 ? 0 : 1;
  } catch (const std::runtime_error& e) {
    std::fprintf(stderr, "status: %s\n", e.what());
    return 1;
  }
}

} // namespace troupe
