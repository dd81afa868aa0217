// Typed doubles of request and prepare.
#include "tests/net/scripted_engine.h"

#include "tests/net/test_facts.h"

namespace troupe {
namespace {

caf::actor_system_config& sharing(caf::actor_system_config& c) {
  c.set("scheduler.policy", caf::atom("sharing"));
  c.set("scheduler.max-threads", size_t{2});
  return c;
}

text_answer answer_text(const text_question& q) {
  text_answer a;
  a.failure.status = 0;
  switch (q.what) {
  case text_question::kind::detokenize:
    for (const auto id : q.ids) a.text += static_cast<char>(id);
    break;
  case text_question::kind::tokenize_text:
    for (const char c : q.text) {
      a.ids.push_back(static_cast<unsigned char>(c));
      a.token_strings.push_back(std::string(1, c));
    }
    break;
  default: a.text = "rendered"; a.ids = {1, 2, 3};
  }
  return a;
}

} // namespace

scripted_engine::scripted_engine() : facts(make_test_facts()), system_(sharing(config_)) {
  prepare_ = system_.spawn([](prepare_actor::pointer) -> prepare_actor::behavior_type {
    return {[](const text_question& q) { return answer_text(q); }, [](const turn_prepare&) { return turn_prepared{}; },
            [](const client_gone&) {}};
  });
}

scripted_engine::~scripted_engine() {
  std::lock_guard lock(mutex_);
  for (auto& t : turns_) caf::anon_send_exit(t.actor, caf::exit_reason::user_shutdown);
  turns_.clear();
  caf::anon_send_exit(prepare_, caf::exit_reason::user_shutdown);
  prepare_ = nullptr;
}

std::shared_ptr<const engine_port> scripted_engine::port() {
  auto p = std::make_shared<engine_port>();
  p->system = &system_;
  p->facts = facts;
  p->prepare = prepare_;
  p->start = [this](chat_request r, std::shared_ptr<turn_sink> s) { return start(std::move(r), std::move(s)); };
  p->resume = [this](turn_id) {
    std::lock_guard lock(mutex_);
    n_resumed_++;
    changed_.notify_all();
  };
  return p;
}

request_actor scripted_engine::start(chat_request request, std::shared_ptr<turn_sink> sink) {
  const turn_id id = request.turn;
  auto actor = system_.spawn([this, id](request_actor::pointer self) -> request_actor::behavior_type {
    return {[](const turn_prepared&) {},
            [](const turn_queued&) {},
            [](const turn_refused&) {},
            [](const images_wanted&) {},
            [this, id](const client_gone&) {
              std::lock_guard lock(mutex_);
              for (auto& t : turns_)
                if (t.request.turn == id) t.gone = true;
              changed_.notify_all();
            },
            [self](const turn_ended&) { self->quit(); }};
  });
  turn* t;
  {
    std::lock_guard lock(mutex_);
    turns_.push_back({std::move(request), std::move(sink), false, actor});
    t = &turns_.back();
    changed_.notify_all();
  }
  if (script) {
    script(*t);
    caf::anon_send(actor, turn_ended{});
  }
  return actor;
}

void scripted_engine::end(turn& t) { caf::anon_send(t.actor, turn_ended{}); }

scripted_engine::turn* scripted_engine::wait_turn(size_t n, std::chrono::milliseconds deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, deadline, [&] { return turns_.size() > n; }) ? &turns_[n] : nullptr;
}

bool scripted_engine::wait_gone(const turn& t, std::chrono::milliseconds deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, deadline, [&] { return t.gone; });
}

bool scripted_engine::wait_resumed(size_t n, std::chrono::milliseconds deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, deadline, [&] { return n_resumed_ >= n; });
}

turn_sink::state push_text(turn_sink& sink, std::string_view text, turn_delta::kind what, int32_t choice,
                           int32_t call) {
  turn_delta d;
  d.what = what;
  d.choice = choice;
  d.text = text;
  d.call_index = call;
  return sink.push({&d, 1});
}

turn_sink::state push_end(turn_sink& sink, finish_cause cause, int32_t choice, turn_usage usage,
                          std::string_view stop_string) {
  turn_delta d;
  d.what = turn_delta::kind::end;
  d.choice = choice;
  d.cause = cause;
  d.usage = usage;
  d.stop_string = stop_string;
  return sink.push({&d, 1});
}

} // namespace troupe
