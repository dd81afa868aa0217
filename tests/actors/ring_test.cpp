// The whole ring over a scripted model: stages, batching, cancellation, failures, two ranks.
#include "actors/request.h"
#include "tests/actors/world.h"

#include <doctest/doctest.h>

#include <set>

using namespace troupe;

TEST_CASE("ring: one request passes every stage, one message a step") {
  world w;
  scripted_ring r(w);
  r.say(" one two three");
  const auto out = sink();
  r.start(r.completion("Hello there"), out);
  w.run();
  const int n_answer = static_cast<int>(r.rank().answer.size()) + 1; // and the end token
  REQUIRE(out->choices.size() == 1);
  CHECK(out->choices[0].content == " one two three");
  CHECK(out->choices[0].cause == finish_cause::stop);
  CHECK(out->usage.completion_tokens == n_answer);
  CHECK(out->n_opens == 1);
  // Actors and messages of style.md section 3; a stage that is left out has no messages and fails here.
  CHECK(w.count<turn_prepare>("prepare") == 1);
  CHECK(w.count<turn_prepared>("request") == 1);
  CHECK(w.count<turn_begin>("journal") == 1);
  CHECK(w.count<turn_open>("fan_out") == 1);
  CHECK(w.count<turn_admit>("scheduler") == 1);
  CHECK(w.count<turn_queued>("request") == 1);
  CHECK(w.count<turn_queued>("fan_out") == 1);
  const int n_steps = w.count<step_plan>("kv_cache");
  CHECK(n_steps == n_answer + 1); // the prompt is one chunk, and a last plan says that the sequence ended
  CHECK(w.count<step_placed>("engram_fetch") == n_steps);
  CHECK(w.count<step_ready>("rank") == n_steps);
  CHECK(w.count<step_result>("scheduler") == n_steps);
  CHECK(w.count<tokens_accepted>("fan_out") == n_answer);
  CHECK(w.count<tokens_accepted>("journal") == n_answer + 1); // the first says what it found cached
  // Nobody else takes part.
  std::set<std::string> actors;
  for (const auto& [key, n] : w.seen) actors.insert(key.first);
  CHECK(actors == std::set<std::string>{"engram_fetch", "fan_out", "journal", "kv_cache", "prepare", "rank", "request",
                                        "scheduler"});
  CHECK(r.numbers->step_sent_us == 0);
  CHECK(w.count<turn_ended>("request") == 1);
  CHECK(r.tables->n_rows == r.numbers->rows);
  CHECK(r.is_idle());
}

TEST_CASE("ring: two requests advance together in one step") {
  world w;
  scripted_ring r(w);
  r.say(" a b c d e f g h");
  const auto one = sink(), two = sink();
  r.start(r.completion("First"), one);
  r.start(r.completion("Second"), two);
  w.run();
  CHECK(one->choices.at(0).content == two->choices.at(0).content);
  size_t n_shared = 0;
  for (const auto& step : r.rank().steps) n_shared += step.size() == 2;
  CHECK(n_shared >= r.rank().answer.size());
}

TEST_CASE("ring: a long prompt goes in chunks beside a decoding sequence, and only its last row samples") {
  world w;
  scripted_ring r(w);
  r.say(std::string(40, 'x'));
  const auto one = sink(), two = sink();
  r.start(r.completion("Go", 200), one);
  w.run_until([&] { return one->n_pushes > 0; });
  std::string prompt;
  for (int i = 0; i < 30; ++i) prompt += " word" + std::to_string(i);
  const size_t before = r.rank().steps.size();
  auto request = r.completion(prompt, 1);
  request.wants_prompt_ids = true;
  r.start(request, two);
  w.run();
  int64_t n_prompt = 0;
  for (size_t i = before; i < r.rank().steps.size(); ++i)
    for (const auto& row : r.rank().steps[i]) {
      if (row.slot == 0) continue;
      CHECK(row.start == n_prompt);
      n_prompt += row.n_tokens;
      CHECK(row.samples == (n_prompt == static_cast<int64_t>(two->prompt_ids.size())));
      CHECK(r.rank().steps[i].size() == 2); // the first goes on
    }
  CHECK(n_prompt == static_cast<int64_t>(two->prompt_ids.size()));
  CHECK(two->usage.prompt_tokens == n_prompt);
  CHECK(two->choices.at(0).cause == finish_cause::length);
}

TEST_CASE("ring: a client that leaves frees its slot and blocks within one step, in every phase") {
  world w;
  auto limits = scripted_ring::small_limits();
  limits.max_running = 1;
  scripted_ring r(w, limits);
  r.say(std::string(60, 'y'));
  const auto leave = [&](const request_actor& a, uint64_t turn) { caf::anon_send(a, client_gone{turn_id{turn}}); };

  SUBCASE("decode") {
    const auto out = sink();
    const auto a = r.start(r.completion("Hi", 100), out);
    w.run_until([&] { return out->n_pushes == 3; });
    const auto steps = r.rank().steps.size();
    leave(a, 1);
    w.run();
    CHECK(r.rank().steps.size() <= steps + 1);
    CHECK(r.is_idle());
    CHECK(r.numbers->ended_abort == 1);
  }
  SUBCASE("prefill") {
    std::string prompt;
    for (int i = 0; i < 60; ++i) prompt += " word" + std::to_string(i);
    const auto out = sink();
    const auto a = r.start(r.completion(prompt, 10), out);
    w.run_until([&] { return r.rank().steps.size() == 2; });
    leave(a, 1);
    w.run();
    CHECK(r.rank().steps.size() <= 3);
    CHECK(out->n_pushes == 0);
    CHECK(r.is_idle());
  }
  SUBCASE("queued") {
    const auto first = sink(), second = sink();
    const auto a = r.start(r.completion("Hi", 30), first);
    const auto b = r.start(r.completion("Ho", 30), second);
    w.run_until([&] { return first->n_pushes == 2; });
    leave(b, 2);
    w.run();
    CHECK(first->has_ended());
    CHECK(second->n_pushes == 0);
    for (const auto& step : r.rank().steps) CHECK(step.size() == 1);
    CHECK(r.is_idle());
    CHECK(r.numbers->ended_abort == 1);
  }
  SUBCASE("preparing") {
    const auto out = sink();
    const auto a = r.start(r.completion("Hi", 30), out);
    leave(a, 1);
    w.run();
    CHECK(r.is_idle());
    CHECK(out->n_pushes <= 1);
  }
}

TEST_CASE("ring: a request that dies without a word frees its slot and blocks too") {
  world w;
  scripted_ring r(w);
  r.say(std::string(60, 'y'));
  const auto out = sink();
  const auto a = r.start(r.completion("Hi", 100), out);
  w.run_until([&] { return out->n_pushes == 3; });
  const auto steps = r.rank().steps.size();
  caf::anon_send_exit(a, caf::exit_reason::kill);
  w.run();
  CHECK(r.rank().steps.size() <= steps + 2);
  CHECK(r.is_idle());
}

TEST_CASE("ring: a closed sink ends its turn, a full one pauses it until it is drained") {
  world w;
  scripted_ring r(w);
  r.say(std::string(30, 'z'));
  const auto out = sink();
  r.start(r.completion("Hi", 20), out);
  w.run_until([&] { return out->n_pushes == 2; });
  SUBCASE("closed") {
    out->next_state = turn_sink::state::closed;
    w.run();
    CHECK(out->n_pushes == 3);
    CHECK(r.numbers->sink_closed == 1);
    CHECK(r.numbers->ended_abort == 1);
  }
  SUBCASE("full") {
    out->next_state = turn_sink::state::full;
    w.run();
    CHECK(out->n_pushes <= 4); // what was on the way when it filled
    CHECK_FALSE(out->has_ended());
    CHECK(r.numbers->paused == 1);
    out->next_state = turn_sink::state::ok;
    caf::anon_send(r.engine.journal, stream_resumed{turn_id{1}});
    w.run();
    CHECK(out->has_ended());
    CHECK(out->usage.completion_tokens == 20);
  }
  CHECK(r.is_idle());
}

TEST_CASE("ring: the queue is bounded and says position and wait") {
  world w;
  auto limits = scripted_ring::small_limits();
  limits.max_running = 1;
  limits.max_queue = 2;
  scripted_ring r(w, limits);
  r.say(std::string(30, 'q'));
  std::vector<std::shared_ptr<recording_sink>> sinks;
  for (int i = 0; i < 4; ++i) {
    sinks.push_back(sink());
    r.start(r.completion("Hi", 10), sinks.back());
    w.run_until([&] { return w.count<turn_admit>("scheduler") == i + 1; });
  }
  w.run();
  CHECK(sinks[3]->n_failures == 1);
  CHECK(sinks[3]->n_opens == 0);
  CHECK(sinks[3]->error.status == 429);
  CHECK(sinks[3]->error.type == "RateLimitError");
  CHECK(sinks[3]->error.retry_after_s >= 1);
  CHECK(sinks[3]->error.message.find("position 3") != std::string::npos);
  for (int i = 0; i < 3; ++i) CHECK(sinks[static_cast<size_t>(i)]->has_ended());
  CHECK(r.numbers->refused == 1);
  CHECK(r.is_idle());
}

TEST_CASE("ring: a stop string ends the choice, and what came after it is neither sent nor counted") {
  world w;
  scripted_ring r(w);
  r.say("alpha beta STOP gamma delta");
  const auto out = sink();
  auto request = r.completion("Hi", 60);
  request.stop = {"STOP"};
  r.start(request, out);
  w.run();
  const auto& c = out->choices.at(0);
  CHECK(c.content == "alpha beta ");
  CHECK(c.stop_string == "STOP");
  CHECK(c.cause == finish_cause::stop);
  CHECK(out->usage.completion_tokens == static_cast<int64_t>(c.ids.size()));
  CHECK(c.ids.size() < r.rank().answer.size());
  CHECK(r.is_idle());
}

TEST_CASE("ring: n choices are admitted together and counted together") {
  world w;
  scripted_ring r(w);
  r.say(" yes no");
  const auto out = sink();
  r.start(r.completion("Hi", 50, 3), out);
  w.run();
  REQUIRE(out->choices.size() == 3);
  for (const auto& c : out->choices) CHECK(c.content == " yes no");
  CHECK(out->usage.completion_tokens == 3 * (static_cast<int64_t>(r.rank().answer.size()) + 1));
  CHECK(r.rank().steps.at(0).size() == 3);
  CHECK(out->n_pushes <= static_cast<int>(r.rank().steps.size()));
  const auto more = sink();
  r.start(r.completion("Hi", 50, 5), more);
  w.run();
  CHECK(more->error.status == 400);
}

TEST_CASE("ring: NaN logits end their own sequence only") {
  world w;
  scripted_ring r(w);
  r.say(" one two three four");
  r.scripts[0]->nan_at = 2;
  const auto bad = sink(), good = sink();
  r.start(r.completion("Hi", 10), bad);
  r.start(r.completion("Hi", 2), good);
  w.run();
  CHECK(bad->error.status == 500);
  CHECK(good->choices.at(0).cause == finish_cause::length);
  CHECK(r.is_idle());
}

TEST_CASE("ring: two ranks get the same steps and only rank 0 answers") {
  world w;
  scripted_ring r(w, scripted_ring::small_limits(), 2);
  r.say(" both of us");
  const auto out = sink();
  r.start(r.completion("Hi"), out);
  w.run();
  CHECK(out->choices.at(0).content == " both of us");
  CHECK(r.rank(0).steps.size() == r.rank(1).steps.size());
  const int n_steps = w.count<step_plan>("kv_cache");
  CHECK(w.count<step_ready>("rank") == 2 * n_steps);
  CHECK(w.count<step_result>("scheduler") == n_steps);
}

TEST_CASE("ring: what an older epoch sent is dropped and counted") {
  world w;
  scripted_ring r(w);
  r.say(" ok");
  caf::anon_send(r.engine.scheduler, step_result{0, 7, {}, 0});
  step_plan plan;
  plan.epoch = 9;
  caf::anon_send(r.engine.kv_cache, plan);
  step_placed placed;
  placed.plan = plan;
  caf::anon_send(r.engine.engram_fetches[0], placed);
  step_ready ready;
  ready.placed = placed;
  caf::anon_send(r.engine.ranks[0], ready);
  w.run();
  CHECK(r.numbers->dropped_messages == 4);
  const auto out = sink();
  r.start(r.completion("Hi"), out);
  w.run();
  CHECK(out->choices.at(0).content == " ok");
}

TEST_CASE("ring: steps wait for a fan_out that falls behind, so that a full sink is seen in time") {
  world w;
  scripted_ring r(w);
  const auto out = sink();
  auto long_one = r.completion("Hi", 500);
  long_one.sampling.ignore_eos = true;
  r.start(long_one, out);
  w.held = "fan_out";
  for (const int n_left : {2, 1, 0}) {
    CAPTURE(n_left);
    const auto n_before = w.count<step_result>("scheduler");
    w.run();
    const auto n_steps = w.count<step_result>("scheduler") - n_before;
    CHECK(n_steps > 4); // it may fall behind by some
    CHECK(n_steps <= static_cast<int>(most_steps_ahead));
    // It takes what there is, and no more before the scheduler has run.
    w.held = n_left > 0 ? "scheduler" : "";
    w.run();
    if (n_left > 0) w.held = "fan_out";
  }
  CHECK(out->choices.at(0).cause == finish_cause::length);
  CHECK(r.numbers->generated_tokens == 500);
  CHECK(r.is_idle());
}

TEST_CASE("ring: drain refuses newcomers, lets the running finish, and `now` ends them with an error") {
  world w;
  scripted_ring r(w);
  r.say(std::string(30, 'd'));
  const auto running = sink(), late = sink();
  r.start(r.completion("Hi", 10), running);
  w.run_until([&] { return running->n_pushes == 1; });
  SUBCASE("in time") {
    CHECK(*w.ask<bool>(r.engine.scheduler, drain_begin{}));
    CHECK(running->choices.at(0).n_ends == 1);
    r.start(r.completion("Hi", 10), late);
    w.run();
    CHECK(late->error.status == 503);
    CHECK(late->error.retry_after_s == 5);
  }
  SUBCASE("now") {
    CHECK(*w.ask<bool>(r.engine.scheduler, drain_begin{true, {}}));
    CHECK(running->error.status == 503);
    CHECK(running->error.message == "server stopping");
  }
  CHECK(r.is_idle());
}

TEST_CASE("ring: images reach every rank before their step, once for all choices, and go with the last") {
  world w;
  scripted_ring r(w, scripted_ring::small_limits(), 2);
  r.parts.info.has_vision = true;
  r.parts.prepare = w.own(spawn_prepare(w.system(), {r.parts.config, r.parts.info, r.parts.max_context}, r.text, 0));
  r.say(" seen");
  chat_request request = r.completion("", 20, 2);
  request.is_chat = true;
  request.prompts.clear();
  request.chat.thinking = false;
  auto& m = request.chat.messages.emplace_back();
  m.parts.push_back({"look", -1});
  m.parts.push_back({"", 0});
  request.image_files = {"1234567"};
  const auto out = sink();
  r.start(request, out);
  w.run();
  REQUIRE(out->choices.size() == 2);
  CHECK(out->choices[0].content == " seen");
  for (size_t rank = 0; rank < 2; ++rank) {
    CHECK(r.rank(rank).image_bytes == std::vector<int64_t>{7 * 14 * 14 * 3});
    CHECK(r.rank(rank).n_dropped == 1);
    CHECK(r.rank(rank).steps.at(0).at(0).n_images == 1);
  }
}

TEST_CASE("ring: a request past its deadline ends with 408") {
  world w;
  scripted_ring r(w);
  r.say(std::string(30, 't'));
  r.parts.config.request_timeout_s = 5;
  const auto out = sink();
  auto request = r.completion("Hi", 20);
  r.start(request, out);
  out->next_state = turn_sink::state::full; // it stands still
  w.run();
  CHECK_FALSE(out->has_ended());
  w.advance(std::chrono::seconds(6));
  CHECK(out->error.status == 408);
  CHECK(r.is_idle());
}
