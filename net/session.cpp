// Reading requests and writing whole answers; what happens while a turn runs is in session_turn.cpp.
#include "net/session.h"

#include "net/openai_request.h"
#include "storage/check.h"
#include "storage/log.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/read.hpp>
#include <caf/all.hpp>

#include <algorithm>
#include <exception>
#include <limits>
#include <stdexcept>
#include <utility>

// GCC 12 takes Asio's frame allocator for a mismatched pair; both sides are Asio's own.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

namespace troupe {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

// A body no larger is read to its end even when the request is refused, so that the connection can go on.
constexpr uint64_t small_body_bytes = 64 << 10;
constexpr auto linger_time = std::chrono::seconds(2);
constexpr int32_t full_retry_s = 2;
constexpr size_t kept_buffer_bytes = 16 << 10; // of a connection between its requests

bool is_header_list(std::string_view s) { // what a browser may ask for, safe to echo
  for (const char c : s)
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
          c == ',' || c == ' '))
      return false;
  return s.size() <= 2000;
}

// What the parser lets through and this server does not speak; status 0: nothing.
api_error check_codings(const request_parser& parser) {
  const auto& r = parser.get();
  const auto is = [](std::string_view found, std::string_view word) {
    return boost::beast::iequals({found.data(), found.size()}, {word.data(), word.size()});
  };
  api_error none;
  none.status = 0;
  for (const auto& f : r) {
    if (f.name() == http::field::transfer_encoding && !is(to_view(f.value()), "chunked"))
      return make_error(501, "Transfer-Encoding: only chunked is supported");
    if (f.name() == http::field::content_encoding && !is(to_view(f.value()), "identity"))
      return make_error(415, "Content-Encoding: request bodies are not decoded here, send them plain");
  }
  return none;
}

// Counts a turn whose body is on its way.
class arrival {
public:
  explicit arrival(std::atomic<int64_t>& all) : all_(all) { ++all_; }
  ~arrival() { --all_; }
  arrival(const arrival&) = delete;

private:
  std::atomic<int64_t>& all_;
};

api_error no_room() { return make_error(503, "The server holds as many request bodies as it may, try again", {}, 2); }

} // namespace

session::session(asio::ip::tcp::socket socket, service& shared, asio::thread_pool& desk, flush_queue& streams)
    : socket_(std::move(socket)), reader_(socket_), shared_(shared), desk_(desk), streams_(streams),
      deadline_(socket_.get_executor()), event_(socket_.get_executor()), ticker_(socket_.get_executor()) {
  event_.expires_at(clock::time_point::max());
}

void session::start(std::function<void()> ended) {
  ended_ = std::move(ended);
  error_code ignored;
  socket_.non_blocking(true, ignored); // write_some of a stream returns at once
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  // The kernel would let its own queue of a slow reader grow to megabytes.
  const auto most = std::min<int64_t>(shared_.config().outbox_bytes, std::numeric_limits<int>::max());
  socket_.set_option(asio::socket_base::send_buffer_size(static_cast<int>(most)), ignored);
  asio::co_spawn(
      socket_.get_executor(), [self = shared_from_this()] { return self->run(); }, asio::detached);
}

void session::turn_away(bool waits, std::function<void()> ended) {
  ended_ = std::move(ended);
  asio::co_spawn(
      socket_.get_executor(), [self = shared_from_this(), waits] { return self->say_full(waits); }, asio::detached);
}

session::task<void> session::say_full(bool waits) {
  try {
    answer_.keep_alive = false;
    answer_.request_id = new_request_id();
    asked_at_ = clock::now();
    http_reply reply = shared_.refuse(make_error(
        503, "The server has as many connections open as it may (max_connections), try again later", {}, full_retry_s));
    if (co_await write_reply(std::move(reply)) && waits) co_await linger();
  } catch (const std::exception& e) { spdlog::error("connection: {}", e.what()); }
  finish();
}

void session::stop(bool now) {
  asio::post(socket_.get_executor(), [self = shared_from_this(), now] {
    self->stopping_ = true;
    if (!now && !self->idle_) return;
    error_code ignored;
    self->socket_.close(ignored);
  });
}

void session::break_if_told() {
  if (fault::at("session.dies")) throw std::runtime_error("session.dies");
}

session::task<void> session::run() {
  bool is_broken = false;
  try {
    co_await serve_requests();
  } catch (const std::exception& e) { // the boundary of a connection: nothing of it reaches another
    spdlog::error("connection: {}", e.what());
    is_broken = true;
  }
  if (is_broken) co_await say_broken();
  finish();
}

// The request at hand cannot be answered any more: its client reads that, or, behind the beginning of an answer, the
// end of the connection.
session::task<void> session::say_broken() {
  if (has_spoken_ || idle_) co_return;
  try {
    co_await settle();
    answer_.keep_alive = false;
    answer_.extra.clear();
    if (co_await write_reply(shared_.refuse(make_error(500, "The request failed inside the server"))))
      co_await linger();
  } catch (const std::exception& e) { spdlog::error("connection: {}", e.what()); }
}

void session::finish() {
  if (actor_) caf::anon_send(actor_, socket_closed{});
  actor_ = nullptr;
  claim_.reset();
  deadline_.cancel();
  ticker_.cancel();
  error_code ignored;
  socket_.close(ignored);
  over_ = true;
  if (const auto ended = std::exchange(ended_, {})) ended();
}

session::task<void> session::serve_requests() {
  bool more = true;
  while (more && !stopping_) { // the wait stands alone: GCC 12 miscompiles it inside the condition
    more = co_await serve_one();
  }
}

void session::arm(std::chrono::seconds after) {
  timed_out_ = false;
  deadline_.expires_after(after);
  deadline_.async_wait([self = shared_from_this(), round = ++deadline_round_](error_code ec) {
    if (ec || round != self->deadline_round_) return;
    self->timed_out_ = true;
    error_code ignored;
    self->socket_.cancel(ignored);
  });
}

void session::prepare_answer(const request_head& head) {
  const auto& request = parser_->get();
  answer_ = {};
  answer_.request_id = accepted_request_id(head.request_id);
  if (answer_.request_id.empty()) answer_.request_id = new_request_id();
  answer_.origin = allowed_origin(shared_.config(), head.origin);
  if (const auto asked = to_view(request["Access-Control-Request-Headers"]); is_header_list(asked))
    answer_.cors_headers = asked;
  answer_.is_http_1_0 = request.version() == 10;
  answer_.keep_alive = request.keep_alive() && !stopping_ && !shared_.is_draining();
  is_head_ = head.method == "HEAD";
}

// Blank lines in front of a request line are skipped (RFC 9112 section 2.2).
session::task<void> session::read_first_bytes(error_code& ec) {
  while (!ec) {
    const auto bytes = buffer_.data();
    const std::string_view seen(static_cast<const char*>(bytes.data()), bytes.size());
    if (seen.starts_with("\r\n")) {
      buffer_.consume(2);
      continue;
    }
    if (!seen.empty() && seen != "\r") co_return;
    const size_t n =
        co_await reader_.async_read_some(buffer_.prepare(4096), asio::redirect_error(asio::use_awaitable, ec));
    buffer_.commit(n);
    idle_ = idle_ && n == 0;
  }
}

// The session does nothing else meanwhile, so `work` may use what is its own.
session::task<void> session::at_desk(const std::function<void()>& work) {
  bool done = false;
  std::exception_ptr failure;
  asio::post(desk_, [self = shared_from_this(), &work, &done, &failure] {
    try {
      work();
    } catch (...) { // goes on in the session
      failure = std::current_exception();
    }
    asio::post(self->socket_.get_executor(), [self, &done] {
      done = true;
      self->event_.cancel();
    });
  });
  error_code ignored;
  while (!done) co_await event_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  if (failure) std::rethrow_exception(failure);
}

session::task<session::read_result> session::read_head() {
  parser_.emplace();
  set_limits(*parser_, shared_.config().max_body_bytes);
  answer_ = {};
  answer_.keep_alive = false; // for refusals below
  answer_.request_id = new_request_id();
  route_ = {};
  is_head_ = false;
  error_code ec;
  arm(std::chrono::seconds(shared_.config().read_timeout_s));
  idle_ = buffer_.size() == 0;
  co_await read_first_bytes(ec);
  if (!ec) co_await http::async_read_header(reader_, buffer_, *parser_, asio::redirect_error(asio::use_awaitable, ec));
  idle_ = false;
  deadline_round_++;
  asked_at_ = clock::now();
  if (!ec) co_return read_result::request;
  const bool began = parser_->got_some() || buffer_.size() > 0;
  refusal_ = timed_out_ && began ? make_error(408, "The request head did not arrive in time")
                                 : to_error(ec, shared_.config().max_body_bytes);
  co_return refusal_.status == 0 ? read_result::closed : read_result::refused;
}

// Each piece of the body has the read deadline: it limits silence, not the whole.
session::task<session::read_result> session::read_body() {
  error_code ec;
  while (!parser_->is_done()) {
    arm(std::chrono::seconds(shared_.config().read_timeout_s));
    co_await http::async_read_some(reader_, buffer_, *parser_, asio::redirect_error(asio::use_awaitable, ec));
    deadline_round_++;
    if (ec) {
      answer_.keep_alive = false;
      refusal_ = timed_out_ ? make_error(408, "The request body did not arrive in time")
                            : to_error(ec, shared_.config().max_body_bytes);
      co_return refusal_.status == 0 ? read_result::closed : read_result::refused;
    }
    if (!claim_->grow_to(static_cast<int64_t>(parser_->get().body().size()))) {
      answer_.keep_alive = false;
      refusal_ = no_room();
      co_return read_result::refused;
    }
  }
  co_return read_result::request;
}

bool session::expects_continue() const {
  return http::token_list(parser_->get()[http::field::expect]).exists("100-continue");
}

session::task<bool> session::serve_one() {
  logged_ = has_spoken_ = false;
  claim_ = std::make_shared<body_claim>(shared_.bodies());
  auto read = co_await read_head();
  if (read == read_result::closed) co_return false;
  break_if_told();
  std::optional<http_reply> reply;
  std::optional<arrival> counted;
  if (read == read_result::refused) reply = shared_.refuse(refusal_);
  request_head head;
  if (!reply) {
    head = to_head(*parser_);
    prepare_answer(head);
    auto e = check_head(*parser_);
    if (e.status == 0) e = check_codings(*parser_);
    if (e.status != 0) {
      answer_.keep_alive = false;
      reply = shared_.refuse(e);
    } else {
      route_ = find_route(head.target, shared_.config().enable_render);
      reply = shared_.answer_head(route_, head);
    }
    const auto length = parser_->content_length();
    // A refused body is not worth waiting for: unless it is small and on its way, the connection closes.
    if (reply && head.has_body && (expects_continue() || !length || *length > small_body_bytes))
      answer_.keep_alive = false;
    if (!reply && length && *length <= static_cast<uint64_t>(shared_.config().max_body_bytes) &&
        !shared_.has_room(static_cast<int64_t>(*length))) {
      answer_.keep_alive = false;
      reply = shared_.refuse(no_room());
    }
    if (!reply && length && *length > static_cast<uint64_t>(shared_.config().max_body_bytes)) {
      answer_.keep_alive = false;
      reply = shared_.refuse(to_error(http::make_error_code(http::error::body_limit), shared_.config().max_body_bytes));
    }
  }
  if (answer_.keep_alive || !reply) {
    if (!reply && is_turn(route_.to)) counted.emplace(shared_.arriving());
    if (head.has_body && expects_continue()) co_await write_text("HTTP/1.1 100 Continue\r\n\r\n");
    read = co_await read_body();
    if (read == read_result::closed) co_return false;
    if (read == read_result::refused) reply = shared_.refuse(refusal_);
  }
  bool good;
  if (reply) {
    good = co_await write_reply(std::move(*reply));
  } else {
    service::outcome out;
    const std::function<void()> decide = [this, &out, &head] {
      try {
        out = shared_.answer(route_, head, parser_->get().body(), accepted_request_id(head.request_id));
      } catch (const std::exception& e) { // one bad request never takes the connection with it
        spdlog::error("request {}: {}", answer_.request_id, e.what());
        out.reply = shared_.refuse(make_error(500, "The request failed inside the server"));
      }
      parser_->get().body() = {}; // an image body may be large, and the turn long
    };
    if (parser_->get().body().size() > small_body_bytes)
      co_await at_desk(decide);
    else
      decide();
    counted.reset();
    if (out.what == service::outcome::kind::turn)
      good = co_await run_turn(std::move(out));
    else if (out.what == service::outcome::kind::question)
      good = co_await run_question(std::move(out));
    else
      good = co_await write_reply(std::move(out.reply));
  }
  parser_.reset();
  claim_.reset();
  if (buffer_.size() == 0 && buffer_.capacity() > kept_buffer_bytes) buffer_.shrink_to_fit();
  if (good && closes()) co_await linger();
  co_return good && !closes();
}

session::task<bool> session::write_reply(http_reply reply) {
  const std::string head = reply_head(reply, answer_);
  if (is_head_) reply.body.clear();
  const std::array<asio::const_buffer, 2> both{asio::buffer(head), asio::buffer(reply.body)};
  if (reply.status >= 400 && !logged_ && route_.to != endpoint::none && route_.to != endpoint::health)
    spdlog::info("request {}: {} {}", answer_.request_id, handler_name(route_.to), reply.status);
  break_if_told();
  error_code ec;
  writing_ = has_spoken_ = true;
  arm(std::chrono::seconds(shared_.config().send_timeout_s));
  co_await asio::async_write(socket_, both, asio::redirect_error(asio::use_awaitable, ec));
  deadline_round_++;
  writing_ = false;
  shared_.counts().add(route_.to, ec ? 499 : reply.status);
  shared_.counts().duration.observe(std::chrono::duration<double>(clock::now() - asked_at_).count());
  co_return !ec;
}

session::task<void> session::write_text(std::string text) {
  error_code ignored; // a failed socket shows in the read that follows
  co_await asio::async_write(socket_, asio::buffer(text), asio::redirect_error(asio::use_awaitable, ignored));
}

// Closing with unread bytes makes the kernel reset the connection, which can throw the answer away at the client.
session::task<void> session::linger() {
  error_code ec;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ec);
  arm(linger_time);
  std::array<char, 16384> sink;
  while (!ec && !timed_out_)
    co_await reader_.async_read_some(asio::buffer(sink), asio::redirect_error(asio::use_awaitable, ec));
  deadline_round_++;
}

} // namespace troupe
