// The crew of prepare: who is next, what is refused, and what the death of one of the crew costs.
#include "actors/prepare_queue.h"
#include "actors/queue_limit.h"
#include "actors/request.h"
#include "storage/check.h"
#include "tests/actors/world.h"

#include <doctest/doctest.h>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

// A desk with two of a crew, none detached: nobody works until the test says so.
struct crew_of_two {
  explicit crew_of_two(int32_t max_queue = 4) {
    prepare_config c;
    c.values.max_queue = max_queue;
    c.values.max_running = 1;
    c.info.vocabulary = tiny_text()->words()->size();
    c.max_context = 1 << 20;
    c.numbers = numbers;
    actor = w.own(spawn_prepare(w.system(), c, tiny_text(), 2, false));
    w.run();
    w.seen.clear();
  }
  ~crew_of_two() { fault::disarm_all(); }

  void ask(uint64_t turn, size_t n_bytes) {
    chat_request r;
    r.turn = turn_id{turn};
    r.is_chat = false;
    r.prompts = {std::string(n_bytes, 'x')};
    r.max_tokens = 1;
    pending.emplace_back(turn, w.self->request(actor, caf::infinite, turn_prepare{std::move(r)}));
  }
  void ask_text(uint64_t turn, size_t n_bytes) {
    text_question q;
    q.what = text_question::kind::tokenize_text;
    q.request.turn = turn_id{turn};
    q.text.assign(n_bytes, 'x');
    questions.emplace_back(turn, w.self->request(actor, caf::infinite, std::move(q)));
  }
  // The turns in the order in which they were answered, with the status of each failure.
  std::map<uint64_t, api_error> answers() {
    std::map<uint64_t, api_error> out;
    const auto broken = [](const caf::error&) { FAIL("no answer"); };
    for (auto& [turn, p] : pending) p.receive([&, id = turn](const turn_prepared& a) { out[id] = a.failure; }, broken);
    for (auto& [turn, p] : questions) p.receive([&, id = turn](const text_answer& a) { out[id] = a.failure; }, broken);
    pending.clear();
    questions.clear();
    return out;
  }

  world w;
  std::shared_ptr<counters> numbers = std::make_shared<counters>();
  prepare_actor actor;
  using turn_answer = decltype(w.self->request(actor, caf::infinite, turn_prepare{}));
  using question_answer = decltype(w.self->request(actor, caf::infinite, text_question{}));
  std::vector<std::pair<uint64_t, turn_answer>> pending;
  std::vector<std::pair<uint64_t, question_answer>> questions;
};

} // namespace

TEST_CASE("prepare_queue: short before long, and a long one waits for what came in its own time only") {
  prepare_queue q;
  const auto now = prepare_queue::time{} + 1h;
  const auto huge = q.push(turn_id{1}, 8 << 20, now); // about two seconds of work
  const auto first = q.push(turn_id{2}, 100, now + 1ms), second = q.push(turn_id{3}, 100, now + 2ms);
  const auto late = q.push(turn_id{4}, 100, now + 10s);
  CHECK(q.next(false) == first);
  CHECK(q.next(true) == second);
  CHECK(q.next(false) == huge);
  CHECK(q.next(false) == late);
  CHECK_FALSE(q.next(false));
}

TEST_CASE("prepare_queue: what is long stays where only the short may go; what is taken out is gone") {
  prepare_queue q;
  const auto now = prepare_queue::time{} + 1h;
  const auto huge = q.push(turn_id{1}, 8 << 20, now);
  CHECK_FALSE(q.next(true));
  q.push(turn_id{2}, 100, now);
  CHECK(q.erase(turn_id{2}));
  CHECK_FALSE(q.erase(turn_id{2}));
  CHECK_FALSE(q.next(true));
  CHECK(q.next(false) == huge);
  CHECK(q.size() == 0);
}

TEST_CASE("queue_limit: what is on the way counts, what may start at once has room, the 429 says position and wait") {
  counters n;
  CHECK_FALSE(refuse_early(n, 11, 8, 4)); // four may run, eight may wait
  CHECK(refuse_early(n, 12, 8, 4));
  n.running = 4;
  n.waiting = 3;
  n.preparing = 2;
  n.turn_us = 20'000'000;
  CHECK_FALSE(refuse_early(n, 2, 8, 4));
  const auto full = refuse_early(n, 3, 8, 4);
  REQUIRE(full);
  CHECK(full->status == 429);
  CHECK(full->queue_position == 9);
  CHECK(full->retry_after_s == 45); // nine turns of 20 s, four at a time
  CHECK(full->message == "The queue is full: 8 requests are waiting (limit 8). Yours would be at position 9, expected "
                         "wait about 45 s.");
}

TEST_CASE("prepare: a huge text holds up one of the crew, and chats behind it go on") {
  crew_of_two c;
  c.w.held = "prepare"; // the crew is at the first one until all have come
  for (uint64_t huge = 1; huge <= 3; ++huge) c.ask_text(huge, 1 << 20);
  c.w.run();
  c.ask(4, 10);
  c.ask(5, 10);
  c.w.run();
  CHECK(c.w.count<turn_prepare>("prepare_desk") == 2);
  c.w.held.clear();
  // The first huge text is with one of the crew, the two others wait for it though the other one is idle.
  c.w.run_until([&] { return c.w.count<turn_prepare>("prepare") == 2; });
  CHECK(c.w.count<text_question>("prepare") <= 1);
  c.w.run();
  for (const auto& [turn, failure] : c.answers()) CHECK(failure.status == 0);
  CHECK(c.numbers->preparing == 0);
}

TEST_CASE("prepare: one of the crew that dies costs its request a 500, and the next ones are answered") {
  crew_of_two c;
  for (int round = 0; round < 3; ++round) {
    fault::arm("prepare.dies");
    for (uint64_t t = 1; t <= 3; ++t) c.ask(t, 10);
    c.ask_text(4, 10);
    c.w.run();
    int n_failed = 0, n_good = 0;
    for (const auto& [turn, failure] : c.answers()) {
      n_failed += failure.status == 500;
      n_good += failure.status == 0;
    }
    CHECK(n_failed == 1);
    CHECK(n_good == 3);
    CHECK(c.numbers->preparing == 0);
  }
}

TEST_CASE("prepare: turns that are being prepared count, and one too many gets 429 before any work") {
  crew_of_two c(4); // one may run, four may wait
  for (uint64_t t = 1; t <= 7; ++t) c.ask(t, 10);
  for (uint64_t t = 11; t <= 17; ++t) c.ask_text(t, 10);
  c.w.run_until(
      [&] { return c.w.count<turn_prepare>("prepare_desk") == 7 && c.w.count<text_question>("prepare_desk") == 7; });
  c.w.run();
  const auto all = c.answers();
  int n_refused = 0;
  for (uint64_t t = 1; t <= 7; ++t) n_refused += all.at(t).status == 429;
  CHECK(n_refused == 2);
  CHECK(c.numbers->refused == 2);
  CHECK(c.w.count<turn_prepare>("prepare") == 5);
  CHECK(all.at(17).status == 429);
  CHECK(all.at(17).retry_after_s >= 1);
  CHECK(c.w.count<text_question>("prepare") == 6); // the crew of two and four that wait
}

TEST_CASE("prepare: a turn whose client left while it waited is not worked on") {
  crew_of_two c;
  c.w.held = "prepare"; // nobody works
  for (uint64_t t = 1; t <= 4; ++t) c.ask(t, 10);
  c.w.run_until([&] { return c.w.count<turn_prepare>("prepare_desk") == 4; });
  caf::anon_send(c.actor, client_gone{turn_id{4}});
  caf::anon_send<caf::message_priority::high>(c.actor, client_gone{turn_id{3}});
  c.w.run_until([&] { return c.w.count<client_gone>("prepare_desk") == 2; });
  c.w.held.clear();
  c.w.run();
  const auto all = c.answers();
  CHECK(all.at(1).status == 0);
  CHECK(all.at(2).status == 0);
  CHECK(all.at(3).status + all.at(4).status >= 499);
  CHECK(c.w.count<turn_prepare>("prepare") <= 3);
  CHECK(c.numbers->preparing == 0);
}

TEST_CASE("prepare: a desk that dies costs what it held a 503, and the next one answers") {
  crew_of_two c;
  for (int round = 1; round <= 3; ++round) {
    CAPTURE(round);
    for (uint64_t t = 1; t <= 4; ++t) c.ask(t, 10); // two are worked on by then, one waits, one breaks it
    c.ask_text(5, 10);                              // and one has not been read
    fault::arm("prepare_desk.dies", 3);
    c.w.run();
    for (const auto& [turn, failure] : c.answers()) {
      CHECK(failure.status == 503);
      CHECK(failure.retry_after_s == 1);
    }
    CHECK(c.numbers->preparing == 0);
    CHECK(c.numbers->restarts == round);
    c.ask(6, 10); // the first time there is another at once, then after a while
    c.w.run();
    CHECK(c.answers().at(6).status == (round == 1 ? 0 : 503));
    c.w.advance(1s);
    c.ask(7, 10);
    c.ask_text(8, 10);
    c.w.run();
    for (const auto& [turn, failure] : c.answers()) CHECK(failure.status == 0);
  }
}

TEST_CASE("prepare: a desk that dies again and again is tried again a minute later") {
  crew_of_two c;
  for (int death = 0; death < 6; ++death) {
    fault::arm("prepare_desk.dies");
    c.ask(1, 10);
    c.w.run();
    CHECK(c.answers().at(1).status == 503);
    if (death < 5) c.w.advance(5s);
  }
  c.w.advance(30s);
  c.ask(2, 10);
  c.w.run();
  CHECK(c.answers().at(2).status == 503);
  c.w.advance(31s);
  c.ask(3, 10);
  c.w.run();
  CHECK(c.answers().at(3).status == 0);
}
