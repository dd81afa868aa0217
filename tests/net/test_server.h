// A server with a scripted engine behind it, on a free port.
#pragma once

#include "net/json_tree.h"
#include "net/server.h"
#include "storage/log.h"
#include "tests/net/raw_client.h"
#include "tests/net/scripted_engine.h"

#include <memory>
#include <string>

namespace troupe {

struct test_server {
  settings config;
  std::shared_ptr<counters> numbers = std::make_shared<counters>();
  scripted_engine engine;
  std::unique_ptr<server> listener;

  // Loaded and ready unless `attach` is false.
  void start(bool attach = true) {
    spdlog::set_level(spdlog::level::off); // refusals are the point of many tests
    config.port = 0;
    config.host = "127.0.0.1";
    engine.facts->config = config;
    listener = std::make_unique<server>(config, numbers, "1.2.3");
    if (!attach) return;
    numbers->now = phase::ready;
    listener->attach(engine.port());
  }
  uint16_t port() const { return listener->port(); }
  // One request on a connection of its own.
  raw_response ask(const std::string& bytes) {
    raw_client c(port());
    c.send(bytes);
    return c.response();
  }
  ~test_server() { listener.reset(); } // before the engine
};

// {"messages":[one user message]} plus `more`, which starts with a comma or is empty.
inline std::string chat_body(const std::string& more = "") {
  return R"({"messages":[{"role":"user","content":"hi"}])" + more + "}";
}

// The text of one value of a JSON body; "absent", "null" or "no JSON: ..".
inline std::string field(const std::string& body, std::initializer_list<std::string_view> path) {
  json_document doc;
  if (!doc.parse(body)) return "no JSON: " + body;
  const json_value* v = &doc.root();
  for (const auto key : path)
    if (!(v = v->find(key))) return "absent";
  return v->is(json_kind::null) ? "null" : std::string(v->text);
}

// "Hel", "lo", the end.
inline void answer_hello(scripted_engine::turn& t) {
  t.sink->open({});
  push_text(*t.sink, "Hel");
  push_text(*t.sink, "lo");
  push_end(*t.sink, finish_cause::stop, 0, {7, 3, 0, 0});
}

} // namespace troupe
