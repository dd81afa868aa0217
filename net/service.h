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
#include "net/running_turns.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// Bytes of request bodies being read or prepared, over all connections.
struct body_budget {
  std::atomic<int64_t> used_bytes{0};
  int64_t limit_bytes = 0;
};

class service {
public:
  // `numbers` are the process's, read by /metrics and /ready. `version`: of the program.
  service(settings, std::shared_ptr<counters> numbers, std::string version);

  struct outcome {
    enum class kind : uint8_t { reply, turn, question };
    kind what = kind::reply;
    http_reply reply;
    parsed_request turn;             // to run
    text_question question;          // to ask
    std::vector<size_t> image_sizes; // bytes of the question's images; the question itself is moved on
    endpoint asked = endpoint::none;
    std::shared_ptr<const engine_port> port; // for turn and question: kept until they end
  };
  // After the head, before the body is read: an answer that needs no body (refusals, OPTIONS), or nothing.
  // A turn that finds the queue full is refused here, before its body is read.
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
  bool has_room(int64_t n_bytes) const { return bodies_->used_bytes + n_bytes <= bodies_->limit_bytes; }
  const std::shared_ptr<body_budget>& bodies() const { return bodies_; }
  std::atomic<int64_t>& arriving() { return arriving_; }
  turn_id new_turn() { return turn_id{++last_turn_}; }
  http_counts& counts() { return counts_; }
  running_turns& turns() { return turns_; }
  std::string metrics_text() const;

private:
  std::string page_text() const;
  http_reply answer_plain(const route&) const;
  http_reply answer_abort(std::string_view body);
  std::optional<api_error> unready() const;

  settings config_;
  std::string version_;
  std::shared_ptr<counters> numbers_; // also held by the runtime
  key_guard guard_;
  mutable std::mutex port_mutex_; // guards port_
  std::shared_ptr<const engine_port> port_;
  std::atomic<bool> draining_{false};
  std::atomic<uint64_t> last_turn_{0};
  std::shared_ptr<body_budget> bodies_; // shared with the claims: a sink may outlive the server
  std::atomic<int64_t> arriving_{0};    // turns whose bodies are being read
  http_counts counts_;
  running_turns turns_;
};

// A part of the budget for bodies, given back when the turn's prompt is prepared, or with the last reference. Shared by
// the session and the sink of its turn.
class body_claim {
public:
  explicit body_claim(std::shared_ptr<body_budget> from) : from_(std::move(from)) {}
  ~body_claim() { release(); }
  body_claim(const body_claim&) = delete;
  // Up to `n_bytes` in all; false: refused, nothing changes. One thread.
  bool grow_to(int64_t n_bytes);
  void release() { from_->used_bytes -= held_.exchange(0); } // any thread

private:
  std::shared_ptr<body_budget> from_; // shared: the claim may outlive the server
  std::atomic<int64_t> held_{0};
};

} // namespace troupe
