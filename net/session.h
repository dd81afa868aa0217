// One accepted socket: reads requests one after the other, writes their answers, and keeps a read outstanding while a
// turn runs, so that a client that leaves is noticed at once (api.md 2.5). Included by server.cpp alone: Asio and
// Beast.
#pragma once

#include "net/connection.h"
#include "net/eof_reader.h"
#include "net/flush_queue.h"
#include "net/http_head.h"
#include "net/http_parser.h"
#include "net/outbox.h"
#include "net/service.h"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/flat_buffer.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace troupe {

class session : public std::enable_shared_from_this<session> {
public:
  using clock = std::chrono::steady_clock;
  // `socket` runs on a loop of one thread; everything below does. `shared` and `streams`, that loop's, outlive the
  // session. Requests whose body is large are read into values, and large answers written, on `desk`: other streams go
  // on.
  session(boost::asio::ip::tcp::socket socket, service& shared, boost::asio::thread_pool& desk, flush_queue& streams);
  // `ended` runs once, on the loop, when the socket is closed.
  void start(std::function<void()> ended);
  // The same for a connection beyond the limit: an answer that says so. `waits`: until it has surely arrived.
  void turn_away(bool waits, std::function<void()> ended);
  void stop(bool now);                          // any thread: close when idle; `now`: close at once
  bool is_over() const { return over_.load(); } // any thread

private:
  template <class T> using task = boost::asio::awaitable<T>;
  enum class read_result : uint8_t { request, closed, refused };
  enum class waited : uint8_t { nothing, finished, refused, answered, gone };
  class flight;

  task<void> run();
  task<void> say_broken();
  task<void> say_full(bool waits);
  void finish();
  task<void> serve_requests();
  task<bool> serve_one(); // false: close the connection
  task<read_result> read_head();
  task<read_result> read_body();
  task<void> read_first_bytes(boost::system::error_code&); // of a request, past blank lines
  task<void> at_desk(const std::function<void()>& work);   // runs it on desk_ and waits
  task<bool> write_reply(http_reply);                      // false: the socket failed
  task<void> write_text(std::string text);
  task<bool> run_turn(service::outcome);
  task<bool> run_question(service::outcome);
  task<void> wait_for_end();   // of the turn or question, or of the peer
  task<void> settle();         // ends the outstanding operations: before the socket is used again
  static void break_if_told(); // where a test makes the coroutine throw
  task<void> linger();         // lets the last answer arrive before the socket closes
  void prepare_answer(const request_head&);
  std::shared_ptr<turn_sink> make_sink(service::outcome&);
  outbox_wire make_wire(turn_id, std::shared_ptr<const engine_port>);
  write_state write_chunk(std::string& bytes, bool last);
  void watch();                   // the outstanding read
  void tick();                    // pings and the send deadline
  void arm(std::chrono::seconds); // read deadline: cancels the socket's operations
  void end_wait(waited);
  void peer_gone();
  void half_close(); // the peer sends no more; it may still read
  void abort_turn(turn_id);
  void lose_actor(); // it died
  const connection_actor& actor(const engine_port&, std::shared_ptr<const engine_port>);
  bool closes() const { return !answer_.keep_alive; }
  bool expects_continue() const; // Precondition: the head was read

  // What write_chunk looks at stands together, up to reader_: each write of each of hundreds of streams begins with it.
  std::span<const std::byte> touched() const {
    const auto *from = reinterpret_cast<const std::byte*>(this), *to = reinterpret_cast<const std::byte*>(&reader_);
    return {from, to};
  }

  boost::asio::ip::tcp::socket socket_;
  clock::time_point last_write_, write_began_;
  bool timed_out_ = false, watching_ = false, in_turn_ = false, writing_ = false, stopping_ = false, is_head_ = false,
       idle_ = false, logged_ = false, half_closed_ = false, has_spoken_ = false; // spoken: of the request's answer
  std::shared_ptr<body_claim> claim_; // of the request being served, shared with its collector
  std::string stream_head_;           // of a turn, until it is written
  answer_head answer_;
  eof_reader reader_;
  service& shared_;
  boost::asio::thread_pool& desk_;
  flush_queue& streams_;
  boost::asio::steady_timer deadline_, event_, ticker_;
  boost::beast::flat_buffer buffer_;
  std::optional<request_parser> parser_;
  route route_;
  connection_actor actor_;
  std::shared_ptr<outbox> outbox_;       // lent to fan_out for a turn
  std::shared_ptr<collector> collector_; // the same for an answer in one piece
  waited waited_ = waited::nothing;
  api_error refusal_;
  http_reply answered_;
  clock::time_point asked_at_, half_closed_at_;
  turn_id turn_{}; // in flight
  uint64_t deadline_round_ = 0;
  std::atomic<bool> over_{false};
  std::function<void()> ended_;
};

} // namespace troupe
