// What every session of a server shares, and the decision for one request: an answer at once, a turn to run, or a
// question to the prepare actor. No sockets here; the HTTP fuzz target calls the same functions.
#pragma once

#include "actors/counters.h"
#include "actors/settings.h"
#include "net/access.h"
#include "net/engine_port.h"
#include "net/http_counts.h"
#include "net/http_reply.h"
#include "net/openai_request.h"
#include "net/routes.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace troupe {

class service {
public:
  // `numbers` are the process's, read by /metrics and /ready. `version`: of the program.
  service(settings, std::shared_ptr<counters> numbers, std::string version);

  struct outcome {
    enum class kind : uint8_t { reply, turn, question };
    kind what = kind::reply;
    http_reply reply;
    parsed_request turn;    // to run
    text_question question; // to ask
    endpoint asked = endpoint::none;
    std::shared_ptr<const engine_port> port; // for turn and question: kept until they end
  };
  // After the head, before the body is read: an answer that needs no body (refusals, OPTIONS), or nothing.
  std::optional<http_reply> answer_head(const route&, const request_head&) const;
  // With the whole body. `request_id`: from the header, if it was fit; empty otherwise.
  outcome answer(const route&, const request_head&, std::string_view body, std::string_view request_id);
  // The body of a question's answer.
  http_reply answer_question(const outcome& asked, const text_answer&) const;

  void attach(std::shared_ptr<const engine_port> port);
  std::shared_ptr<const engine_port> port() const; // null while loading
  void begin_drain() { draining_ = true; }
  bool is_draining() const { return draining_ || numbers_->now == phase::draining; }
  http_reply refuse(const api_error& e) const { return to_reply(e, config_.error_style == "openai"); }
  const settings& config() const { return config_; }
  counters& numbers() const { return *numbers_; }
  turn_id new_turn() { return turn_id{++last_turn_}; }
  http_counts& counts() { return counts_; }
  std::string metrics_text() const;

private:
  std::string page_text() const;
  http_reply answer_plain(const route&) const;
  std::optional<api_error> unready() const;

  settings config_;
  std::string version_;
  std::shared_ptr<counters> numbers_; // also held by the runtime
  key_guard guard_;
  mutable std::mutex port_mutex_; // guards port_
  std::shared_ptr<const engine_port> port_;
  std::atomic<bool> draining_{false};
  std::atomic<uint64_t> last_turn_{0};
  http_counts counts_;
};

} // namespace troupe
