// A turn or a question in flight: the sink lent to the engine, the outstanding read, pings and the send deadline.
#include "net/session.h"

#include "net/api_errors.h"
#include "storage/log.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <caf/all.hpp>

#include <charconv>
#include <optional>
#include <utility>

// GCC 12 takes Asio's frame allocator for a mismatched pair; both sides are Asio's own.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

namespace troupe {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// Pipelined requests may wait in the buffer up to this size; a client that sends more is not read until it is their
// turn.
constexpr size_t max_pipelined_bytes = 1 << 20;
// An answer above these sizes is written at the desk.
constexpr size_t max_quick_ids = 8192, max_quick_bytes = 1 << 16;
constexpr auto tick_time = std::chrono::seconds(1);

// Hands the answer of the prepare actor to a session's loop.
class strand_answer final : public answer_sink {
public:
  explicit strand_answer(std::function<void(text_answer)> take) : take_(std::move(take)) {}
  void answer(text_answer a) override { take_(std::move(a)); }

private:
  std::function<void(text_answer)> take_;
};

} // namespace

const connection_actor& session::actor(const engine_port& port, std::shared_ptr<const engine_port> shared) {
  if (actor_) return actor_;
  actor_ = spawn_connection(*port.system, std::move(shared));
  caf::actor_cast<caf::actor>(actor_)->attach_functor([weak = weak_from_this()](const caf::error&) {
    if (const auto self = weak.lock()) asio::post(self->socket_.get_executor(), [self] { self->lose_actor(); });
  });
  return actor_;
}

// What was to come by way of it may not come any more. The next request gets another one.
void session::lose_actor() {
  if (!std::exchange(actor_, nullptr) || !in_turn_) return; // it ended in order, or idle
  spdlog::error("request {}: the actor of its connection died", answer_.request_id);
  const api_error e = make_error(500, "The request failed inside the server.");
  if (outbox_) return outbox_->fail(e);
  if (collector_) return collector_->fail(e);
  refusal_ = e;
  end_wait(waited::refused);
}

void session::end_wait(waited w) {
  if (waited_ == waited::nothing) waited_ = w;
  event_.cancel();
}

void session::peer_gone() {
  if (!in_turn_) return;
  if (outbox_) outbox_->close();
  if (collector_) collector_->close();
  end_wait(waited::gone);
}

// As an operator wishes: the client gets an error, the engine is told as if the client had left.
void session::abort_turn(turn_id turn) {
  if (!in_turn_ || turn != turn_) return;
  caf::anon_send(actor_, client_gone{turn}); // behind its turn_start
  const api_error e = make_error(499, "The request was aborted by an operator.");
  if (outbox_) outbox_->fail(e);
  if (collector_) collector_->fail(e);
}

// A peer that is gone sends a FIN just like one that only has nothing more to say. What is written to it shows the
// difference: the one that is gone answers with a reset, which ends the wait for an error.
void session::half_close() {
  half_closed_ = true;
  half_closed_at_ = clock::now();
  if (outbox_) outbox_->ping();
  watching_ = true;
  socket_.async_wait(asio::ip::tcp::socket::wait_error, [self = shared_from_this()](error_code ec) {
    self->watching_ = false;
    if (!ec) self->peer_gone();
    self->event_.cancel();
  });
}

void session::watch() {
  if (watching_ || half_closed_ || !in_turn_ || buffer_.size() >= max_pipelined_bytes) return;
  watching_ = true;
  reader_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](error_code ec, size_t n) {
    self->watching_ = false;
    self->buffer_.commit(n);
    if (ec == asio::error::eof && self->in_turn_ && self->shared_.config().half_close_grace_s > 0)
      self->half_close();
    else if (ec && ec != asio::error::operation_aborted)
      self->peer_gone();
    else if (!ec)
      self->watch();
    self->event_.cancel();
  });
}

void session::tick() {
  ticker_.expires_after(tick_time);
  ticker_.async_wait([self = shared_from_this()](error_code ec) {
    if (ec || !self->in_turn_) return;
    const auto now = clock::now();
    const auto& config = self->shared_.config();
    if (self->writing_ && now - self->write_began_ > std::chrono::seconds(config.send_timeout_s)) {
      spdlog::info("request {}: the client did not read for {} s", self->answer_.request_id, config.send_timeout_s);
      self->shared_.counts().stalled++;
      self->peer_gone();
      error_code ignored;
      self->socket_.cancel(ignored);
      return;
    }
    const bool is_due = self->half_closed_ || now - self->last_write_ >= std::chrono::seconds(config.ping_interval_s);
    const bool is_open = self->outbox_ && is_due && self->outbox_->ping();
    if (self->half_closed_ && !is_open &&
        now - self->half_closed_at_ >= std::chrono::seconds(config.half_close_grace_s))
      self->peer_gone();
    self->tick();
  });
}

session::task<void> session::wait_for_end() {
  error_code ignored;
  half_closed_ ? half_close() : watch();
  break_if_told();
  while (waited_ == waited::nothing) co_await event_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  in_turn_ = false;
  ticker_.cancel();
  co_await settle();
  break_if_told();
}

session::task<void> session::settle() {
  error_code ignored;
  if (watching_ || writing_) socket_.cancel(ignored);
  while (watching_ || writing_) co_await event_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

// Nearly always the kernel takes all at once; what it does not take is written as it finds room.
write_state session::write_chunk(std::string& bytes, bool last) {
  if (claim_) claim_->release(); // the turn was admitted, so its prompt is ready
  if (!answer_.is_http_1_0) {
    if (!bytes.empty()) {
      char head[20];
      char* end = std::to_chars(head, head + sizeof head - 2, bytes.size(), 16).ptr;
      *end++ = '\r';
      *end++ = '\n';
      bytes.insert(0, head, static_cast<size_t>(end - head));
      bytes += "\r\n";
    }
    if (last) bytes += "0\r\n\r\n";
  }
  if (!stream_head_.empty()) bytes.insert(0, std::exchange(stream_head_, {}));
  error_code ec;
  has_spoken_ = true;
  last_write_ = clock::now();
  const size_t n = socket_.write_some(asio::buffer(bytes), ec);
  if (ec && ec != asio::error::would_block) return write_state::failed;
  if (n == bytes.size()) return write_state::done;
  writing_ = true;
  write_began_ = last_write_;
  const auto written = [self = shared_from_this(), box = outbox_](error_code failed, size_t) { // the box has the bytes
    self->writing_ = false;
    self->last_write_ = clock::now();
    if (box) box->written(!failed);
    if (!self->in_turn_) self->event_.cancel();
  };
  asio::async_write(socket_, asio::buffer(bytes) + n, written);
  return write_state::later;
}

outbox_wire session::make_wire(turn_id turn, std::shared_ptr<const engine_port> port) {
  outbox_wire wire;
  const auto self = shared_from_this();
  wire.post = [executor = socket_.get_executor()](std::function<void()> f) { asio::post(executor, std::move(f)); };
  wire.kick = [&streams = streams_](std::shared_ptr<outbox> box) { streams.add(std::move(box)); };
  wire.write = [self](std::string& bytes, bool last) {
    return self->in_turn_ ? self->write_chunk(bytes, last) : write_state::failed;
  };
  wire.refused = [self](const api_error& e) {
    self->refusal_ = e;
    self->end_wait(waited::refused);
  };
  wire.finished = [self](bool ok) { ok ? self->end_wait(waited::finished) : self->peer_gone(); };
  wire.touched = touched();
  wire.resumed = [turn, port = std::move(port)] { port->resume(turn); };
  return wire;
}

std::shared_ptr<turn_sink> session::make_sink(service::outcome& out) {
  const auto facts = out.port->facts;
  if (out.turn.style.stream) {
    if (answer_.is_http_1_0) answer_.keep_alive = false;
    stream_head_ = stream_head(answer_);
    outbox_ = std::make_shared<outbox>(
        openai_stream(std::move(out.turn.style), facts), make_wire(out.turn.request.turn, out.port),
        static_cast<size_t>(shared_.config().outbox_bytes), shared_.config().error_style == "openai");
    return outbox_;
  }
  collector_ = std::make_shared<collector>(
      openai_answer(std::move(out.turn.style), facts),
      [self = shared_from_this()](collector::result r) {
        asio::post(self->socket_.get_executor(), [self, r = std::move(r)]() mutable {
          self->refusal_ = r.failure;
          self->answered_ = {};
          self->answered_.body = std::move(r.body);
          self->end_wait(r.failure.status == 0 ? waited::answered : waited::refused);
        });
      },
      [claim = claim_] { claim->release(); });
  return collector_;
}

// A turn or a question that the engine knows of. However it is left, nothing of it stays here, and what has not ended
// is withdrawn.
class session::flight {
public:
  explicit flight(session& s) : s_(s) {
    s_.turn_ = s_.shared_.new_turn();
    s_.waited_ = waited::nothing;
    s_.in_turn_ = true;
    s_.shared_.counts().in_flight++;
  }
  flight(flight&&) = delete;
  ~flight() {
    s_.in_turn_ = false;
    s_.ticker_.cancel();
    s_.shared_.turns().remove(place_);
    s_.shared_.counts().in_flight--;
    if (s_.waited_ == waited::nothing && s_.actor_) // a question's may come before it was read: in order
      caf::anon_send(s_.actor_, client_gone{s_.turn_});
    if (s_.outbox_) s_.outbox_->close();
    if (s_.collector_) s_.collector_->close();
    s_.outbox_.reset();
    s_.collector_.reset();
    s_.stream_head_.clear();
  }
  void can_be_aborted(std::string request_id) {
    place_ = s_.shared_.turns().add(std::move(request_id), [weak = s_.weak_from_this(), turn = s_.turn_] {
      if (const auto self = weak.lock())
        asio::post(self->socket_.get_executor(), [self, turn] { self->abort_turn(turn); });
    });
  }

private:
  session& s_;
  uint64_t place_ = 0; // none
};

session::task<bool> session::run_turn(service::outcome out) {
  std::optional<flight> turn_in_flight(std::in_place, *this);
  const turn_id turn = turn_;
  out.turn.request.turn = turn;
  // The id in the body follows the header; a `request_id` in the body counts when no header came.
  answer_.request_id = out.turn.request.id;
  if (out.turn.style.is_format_hint) answer_.extra = "X-Troupe-Response-Format: hint\r\n";
  last_write_ = clock::now();
  const auto sink = make_sink(out);
  caf::anon_send(actor(*out.port, out.port), turn_start{std::move(out.turn.request), sink});
  turn_in_flight->can_be_aborted(answer_.request_id);
  tick();
  co_await wait_for_end();
  const bool gone = waited_ == waited::gone, streamed = waited_ == waited::finished;
  if (gone) caf::anon_send<caf::message_priority::high>(actor_, client_gone{turn});
  turn_in_flight.reset();
  if (gone || streamed) {
    shared_.counts().add(route_.to, gone ? 499 : 200);
    shared_.counts().duration.observe(std::chrono::duration<double>(clock::now() - asked_at_).count());
    if (gone) spdlog::debug("request {}: client closed", answer_.request_id);
    co_return streamed;
  }
  if (waited_ == waited::refused) {
    answer_.extra.clear();
    logged_ = true; // by the request's actor
    co_return co_await write_reply(shared_.refuse(refusal_));
  }
  co_return co_await write_reply(std::move(answered_));
}

session::task<bool> session::run_question(service::outcome out) {
  text_answer answer; // outlives the flight, within which it is written to
  std::optional<flight> question_in_flight(std::in_place, *this);
  const turn_id turn = out.question.request.turn = turn_;
  // Weak: the asker may outlive the session.
  const auto sink = std::make_shared<strand_answer>([weak = weak_from_this(), &answer](text_answer a) {
    const auto self = weak.lock();
    if (!self) return;
    asio::post(self->socket_.get_executor(), [self, &answer, a = std::move(a)]() mutable {
      if (!self->in_turn_) return; // the peer has gone, and with it the place for the answer
      answer = std::move(a);
      self->end_wait(waited::answered);
    });
  });
  const auto keep = [&out](text_question asked) { // what the answer's writer looks at
    out.question.what = asked.what;
    out.question.wants_token_strings = asked.wants_token_strings;
    auto& r = out.question.request;
    r.n = asked.request.n;
    r.max_tokens = asked.request.max_tokens;
    r.default_max_tokens = asked.request.default_max_tokens;
    r.sampling = asked.request.sampling;
    r.stop = asked.request.stop;
    return asked;
  };
  caf::anon_send(actor(*out.port, out.port), question_start{keep(std::exchange(out.question, {})), sink});
  tick();
  co_await wait_for_end();
  question_in_flight.reset();
  if (waited_ == waited::refused) co_return co_await write_reply(shared_.refuse(refusal_));
  if (waited_ != waited::answered) {
    caf::anon_send(actor_, client_gone{turn}); // behind the question: it may not have been read yet
    shared_.counts().add(route_.to, 499);
    co_return false;
  }
  http_reply reply;
  const std::function<void()> write = [&] { reply = shared_.answer_question(out, answer); };
  if (answer.ids.size() > max_quick_ids || answer.text.size() > max_quick_bytes)
    co_await at_desk(write);
  else
    write();
  co_return co_await write_reply(std::move(reply));
}

} // namespace troupe
