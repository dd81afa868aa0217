// A server with the whole runtime behind it on real threads, and a model that says lines of its own at once: what a
// client does meets everything that the product has but the arithmetic.
#pragma once

#include "actors/ring.h"
#include "actors/system.h"
#include "net/server.h"
#include "tests/actors/doubles.h"
#include "tests/net/raw_client.h"
#include "tests/sanitized.h"

#include <caf/all.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace troupe {

// Bytes say nothing under a sanitizer.
inline constexpr bool memory_is_plain = !test::is_sanitized;

struct live_engine {
  settings config;     // before start()
  batch_limits limits; // the same
  std::shared_ptr<counters> numbers = std::make_shared<counters>();
  std::unique_ptr<server> listener;
  // Prompts of so many tokens are answered with `canary`, all others with `others`.
  static constexpr int64_t canary_prompt_tokens = 77;
  static constexpr int64_t broken_prompt_tokens = 78; // the model breaks at the end of such a prompt
  std::string canary, others;
  std::chrono::microseconds step_time{0}; // a step takes at least so long

  live_engine();
  ~live_engine();
  void start();
  uint16_t port() const { return listener->port(); }
  // Nothing runs, waits, is prepared or read; every block is free or cached.
  bool is_idle() const;
  // Until then, or the deadline, which is below the read timeout: nothing that only that ends has a place here.
  bool wait_idle(std::chrono::seconds deadline = std::chrono::seconds(40)) const;
  bool wait_turns_end(std::chrono::seconds deadline = std::chrono::seconds(60)) const; // sockets may stay
  std::string describe() const;                                                        // what keeps it from being idle
  std::string metrics() const;                                                         // over HTTP
  double metric(std::string_view name) const;
  // Turns with a terminal record of any kind.
  int64_t n_ended() const;

private:
  struct caf_config : caf::actor_system_config {
    caf_config() { configure(*this); }
  };
  caf_config caf_config_;
  caf::actor_system system_{caf_config_};
  ring engine_;
  front parts_;
};

// POST /v1/completions with a prompt of `n_tokens` ids.
std::string post_ids(int64_t n_tokens, int64_t max_tokens, bool stream, const std::string& more = "");
// The text of a stream of completions or a chat: content of all its events. Chunk heads between them do not matter.
std::string text_of(std::string_view stream_body);
// Sum of a metric's samples in the text of /metrics; `name` ends with "{".
double metric_of(const std::string& text, std::string_view name);
// What the kernel says of this process.
int64_t open_files();
int64_t n_threads();
int64_t anonymous_bytes(); // RssAnon
double cpu_seconds_used();

} // namespace troupe
