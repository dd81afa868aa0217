// A stand-in for the runtime behind a server: a turn is handed to the test, which plays fan_out by pushing into its
// sink.
#pragma once

#include "net/engine_port.h"

#include <caf/all.hpp>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace troupe {

class scripted_engine {
public:
  struct turn {
    chat_request request;
    std::shared_ptr<turn_sink> sink;
    bool gone = false;
    request_actor actor;
  };
  // Runs for every turn as it starts; empty: the test drives the turn itself.
  std::function<void(turn&)> script;

  scripted_engine();
  ~scripted_engine();
  std::shared_ptr<const engine_port> port();
  std::shared_ptr<request_facts> facts; // before the first request

  // The n-th turn started since the beginning; waits for it. Null after the deadline.
  turn* wait_turn(size_t n, std::chrono::milliseconds deadline = std::chrono::seconds(5));
  bool wait_gone(const turn&, std::chrono::milliseconds deadline = std::chrono::seconds(5));
  bool wait_resumed(size_t n, std::chrono::milliseconds deadline = std::chrono::seconds(5));
  void end(turn&); // the request actor quits, as after turn_ended

private:
  request_actor start(chat_request, std::shared_ptr<turn_sink>);
  caf::actor_system_config config_;
  caf::actor_system system_;
  std::mutex mutex_; // guards the two below
  std::condition_variable changed_;
  std::deque<turn> turns_;
  size_t n_resumed_ = 0;
  prepare_actor prepare_;
};

// Pushes one delta to a sink.
turn_sink::state push_text(turn_sink&, std::string_view text, turn_delta::kind = turn_delta::kind::content,
                           int32_t choice = 0, int32_t call = 0);
turn_sink::state push_end(turn_sink&, finish_cause = finish_cause::stop, int32_t choice = 0, turn_usage = {},
                          std::string_view stop_string = {});

} // namespace troupe
