// outbox and collector by themselves, with plain threads: these are the tests that ThreadSanitizer sees through.
#include "net/flush_queue.h"
#include "net/outbox.h"
#include "tests/net/scripted_engine.h"
#include "tests/net/test_facts.h"

#include <doctest/doctest.h>

#include <condition_variable>
#include <deque>
#include <thread>

using namespace troupe;

namespace {

// A loop and a socket: one thread runs what is posted; writes complete when the test lets them.
class fake_socket {
public:
  bool holds_writes = false;
  bool fails_writes = false;
  std::string written; // loop only; read after join
  size_t n_writes = 0, n_resumed = 0;
  bool finished = false, finished_ok = false;
  std::optional<api_error> refused;

  outbox_wire wire() {
    outbox_wire w;
    w.post = [this](std::function<void()> f) { post(std::move(f)); };
    w.kick = [this](std::shared_ptr<outbox> box) {
      if (holds_writes) writer_ = box; // such tests have one thread
      streams_.add(std::move(box));
    };
    w.write = [this](std::string& bytes, bool) {
      if (fails_writes) return write_state::failed;
      written += bytes;
      n_writes++;
      is_held_ = holds_writes;
      return holds_writes ? write_state::later : write_state::done;
    };
    w.refused = [this](const api_error& e) { refused = e; };
    w.finished = [this](bool ok) { finished = true, finished_ok = ok; };
    w.resumed = [this] { n_resumed++; };
    return w;
  }
  // Runs what has been posted so far, on the caller's thread.
  void run() {
    for (;;) {
      std::function<void()> f;
      {
        std::lock_guard lock(mutex_);
        if (posted_.empty()) return;
        f = std::move(posted_.front());
        posted_.pop_front();
      }
      f();
    }
  }
  void run_until_finished() {
    while (!finished) {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::seconds(5), [this] { return !posted_.empty(); });
      lock.unlock();
      run();
    }
  }
  // The write that is held ends; what follows it is begun.
  void release() {
    if (!std::exchange(is_held_, false)) return;
    if (const auto box = writer_.lock()) box->written(true);
    run();
  }

  size_t n_posted() const { return n_posted_; } // so far

private:
  void post(std::function<void()> f) {
    std::lock_guard lock(mutex_);
    posted_.push_back(std::move(f));
    n_posted_++;
    changed_.notify_one();
  }

  std::mutex mutex_; // guards posted_ and n_posted_
  std::condition_variable changed_;
  std::deque<std::function<void()>> posted_;
  size_t n_posted_ = 0;
  bool is_held_ = false;
  std::weak_ptr<outbox> writer_;
  flush_queue streams_{[this](std::function<void()> f) { post(std::move(f)); }};
};

answer_style streaming_style() {
  answer_style style;
  style.stream = true;
  style.id = "chatcmpl-1";
  style.model = "m";
  return style;
}

std::shared_ptr<outbox> make_outbox(fake_socket& s, size_t limit = 1 << 20) {
  return std::make_shared<outbox>(openai_stream(streaming_style(), make_test_facts()), s.wire(), limit, false);
}

} // namespace

TEST_CASE("outbox: what arrives during a write leaves with the next one") {
  fake_socket s;
  s.holds_writes = true;
  auto box = make_outbox(s);
  box->open({});
  s.run();
  CHECK(s.n_writes == 1);
  for (int i = 0; i < 100; i++) CHECK(push_text(*box, "a") == turn_sink::state::ok);
  s.run();
  CHECK(s.n_writes == 1);
  s.release();
  CHECK(s.n_writes == 2);
  push_end(*box);
  s.release();
  CHECK(s.n_writes == 3);
  CHECK(!s.finished);
  s.release();
  CHECK(s.finished_ok);
  CHECK(s.written.ends_with("data: [DONE]\n\n"));
}

TEST_CASE("flush_queue: what many streams have to write in one step is one wake-up of the loop") {
  fake_socket s;
  std::vector<std::shared_ptr<outbox>> boxes;
  for (int i = 0; i < 10; i++) boxes.push_back(make_outbox(s));
  for (const auto& box : boxes) box->open({});
  CHECK(s.n_posted() == 1);
  s.run();
  CHECK(s.n_writes == 10);
  for (const auto& box : boxes) push_text(*box, "a");
  for (const auto& box : boxes) push_text(*box, "b");
  CHECK(s.n_posted() == 2);
  s.run();
  CHECK(s.n_writes == 20);
}

TEST_CASE("outbox: full is told once the queue is over its limit, resumed when it is taken over") {
  fake_socket s;
  s.holds_writes = true;
  auto box = make_outbox(s, 1000);
  box->open({});
  s.run();
  int n = 0;
  while (push_text(*box, "abcdefgh") == turn_sink::state::ok) n++;
  CHECK(n < 10);
  CHECK(s.n_resumed == 0);
  s.release();
  CHECK(s.n_resumed == 1);
  CHECK(push_text(*box, "x") == turn_sink::state::ok);
}

TEST_CASE("outbox: closed, failed and ended sinks take nothing more") {
  fake_socket s;
  auto box = make_outbox(s);
  box->open({});
  box->close();
  CHECK(push_text(*box, "x") == turn_sink::state::closed);
  fake_socket ended;
  auto done = make_outbox(ended);
  done->open({});
  push_end(*done);
  CHECK(push_text(*done, "x") == turn_sink::state::closed);
  done->fail({500, "", "late", "", 0});
  ended.run();
  CHECK(ended.written.find("late") == std::string::npos);
  fake_socket broken;
  broken.fails_writes = true;
  auto lost = make_outbox(broken);
  lost->open({});
  broken.run();
  CHECK(broken.finished);
  CHECK(!broken.finished_ok);
  CHECK(push_text(*lost, "x") == turn_sink::state::closed);
}

TEST_CASE("outbox: failing before it opened writes nothing, after it an error event") {
  fake_socket early;
  auto box = make_outbox(early);
  box->fail({429, "RateLimitError", "full", "", 1});
  early.run();
  REQUIRE(early.refused);
  CHECK(early.refused->status == 429);
  CHECK(early.written.empty());
  fake_socket late;
  auto open = make_outbox(late);
  open->open({});
  open->fail({500, "InternalServerError", "x", "", 0});
  late.run();
  CHECK(late.finished_ok);
  CHECK(late.written.find("\"code\":500}}\n\ndata: [DONE]\n\n") != std::string::npos);
}

TEST_CASE("outbox: pushes from one thread, writes on another, a close from a third") {
  for (int round = 0; round < 50; round++) {
    fake_socket s;
    auto box = make_outbox(s, 4000);
    std::thread engine([&] {
      box->open({});
      for (int i = 0; i < 200; i++)
        if (push_text(*box, "token") == turn_sink::state::closed) break;
      push_end(*box);
    });
    const bool closes = round % 2 == 1;
    std::thread closer([&] {
      if (closes) box->close();
    });
    if (!closes) s.run_until_finished();
    engine.join();
    closer.join();
    s.run();
    if (!closes) CHECK(s.written.ends_with("data: [DONE]\n\n"));
    CHECK(push_text(*box, "x") == turn_sink::state::closed);
  }
}

TEST_CASE("collector: answers once, fails once, and not after a close") {
  int n = 0;
  collector::result last;
  const auto take = [&](collector::result r) { n++, last = std::move(r); };
  auto style = streaming_style();
  collector c(openai_answer(style, make_test_facts()), take);
  c.open({});
  CHECK(push_text(c, "hi") == turn_sink::state::ok);
  CHECK(push_end(c) == turn_sink::state::ok);
  CHECK(push_end(c) == turn_sink::state::closed);
  c.fail({500, "", "", "", 0});
  CHECK(n == 1);
  CHECK(last.failure.status == 0);
  CHECK(last.body.find("\"content\":\"hi\"") != std::string::npos);
  collector gone(openai_answer(style, make_test_facts()), take);
  gone.close();
  CHECK(push_text(gone, "x") == turn_sink::state::closed);
  gone.fail({500, "", "", "", 0});
  CHECK(n == 1);
}

TEST_CASE("outbox: a sink that outlives its socket holds nothing of it") {
  const auto socket = std::make_shared<int>(1); // stands for what the wire's functions hold
  const auto wire = [&](fake_socket& s) {
    auto w = s.wire();
    w.resumed = [socket] {};
    return w;
  };
  for (int way = 0; way < 4; way++) {
    CAPTURE(way);
    fake_socket s;
    auto box = std::make_shared<outbox>(openai_stream(streaming_style(), make_test_facts()), wire(s), 1000, false);
    CHECK(socket.use_count() == 2);
    if (way > 0) box->open({});
    if (way == 0) box->fail({429, "", "x", "", 0}); // refused
    if (way == 1) push_end(*box);                   // written to its end
    if (way == 2) box->close();                     // the client left
    if (way == 3) s.fails_writes = true;            // the write failed
    s.run();
    CHECK(socket.use_count() == 1);
    CHECK(push_text(*box, "x") == turn_sink::state::closed);
  }
}
