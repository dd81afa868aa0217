// The warm-up turn and the sink that waits for its end.
#include "actors/warm_up.h"

#include <caf/all.hpp>

#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>

namespace troupe {

namespace {

class waiting_sink : public turn_sink {
public:
  explicit waiting_sink(int32_t n_sequences) : n_open_(n_sequences) {}
  std::future<std::string> answer() { return done_.get_future(); }
  void open(std::span<const int32_t>) override {}
  state push(std::span<const turn_delta> deltas) override {
    for (const auto& d : deltas)
      if (d.what == turn_delta::kind::end && --n_open_ == 0) finish({});
    return state::ok;
  }
  void fail(const api_error& why) override { finish(why.message); }

private:
  void finish(std::string why) {
    if (!is_done_.exchange(true)) done_.set_value(std::move(why));
  }
  std::promise<std::string> done_; // empty: it worked
  std::atomic<bool> is_done_{false};
  int32_t n_open_;
};

} // namespace

void run_warm_up(const ring& engine, const warm_up_turn& load, std::chrono::seconds deadline) {
  constexpr turn_id turn{0};                                    // turns of clients start at 1
  auto sink = std::make_shared<waiting_sink>(load.n_sequences); // lent like any sink
  auto answer = sink->answer();
  turn_open open;
  open.turn = turn;
  open.sink = sink;
  open.raw = true;
  turn_admit admit{turn, {}};
  for (int32_t i = 0; i < load.n_sequences; ++i) {
    const sequence_id id{static_cast<uint64_t>(i)};
    open.sequences.push_back({id, i, {}});
    auto& s = admit.sequences.emplace_back();
    s.turn = turn;
    s.id = id;
    s.prompt = load.prompt;
    s.max_tokens = load.n_tokens;
    s.sampling.temperature = 0;
    s.sampling.ignore_eos = true;
    s.cache_salt = std::string("\0warm-up", 8); // no JSON of a client comes to this
    s.shares_prompt = i > 0;
  }
  caf::anon_send(engine.journal, turn_begin{std::move(open), std::move(admit)});
  if (answer.wait_for(deadline) != std::future_status::ready)
    throw std::runtime_error("warm-up: no token came back in " + std::to_string(deadline.count()) + " s");
  if (const auto why = answer.get(); !why.empty()) throw std::runtime_error("warm-up: " + why);
}

} // namespace troupe
