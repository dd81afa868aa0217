// Drafts in the ring over a scripted model: what is planned, accepted, counted and cut.
#include "actors/request.h"
#include "tests/actors/world.h"

#include <doctest/doctest.h>

using namespace troupe;

namespace {

// Drafts of five, always verified to the full depth.
struct draft_ring {
  explicit draft_ring(int32_t wrong_every = 0, int32_t block = 5, int32_t n_ranks = 1, bool adaptive = false)
      : r(w, limits(block, adaptive), n_ranks, [&](ring_config& config) {
          config.make_rank = [this, block, wrong_every](int32_t rank) {
            auto& s = r.scripts[static_cast<size_t>(rank)];
            s->draft_block = block;
            s->wrong_every = wrong_every;
            rank_parts p;
            p.weights = std::make_unique<scripted_model>(s, r.text->words()->size());
            return p;
          };
        }) {}
  static batch_limits limits(int32_t block, bool adaptive) {
    auto l = scripted_ring::small_limits();
    l.drafts = {block, block, adaptive};
    return l;
  }
  std::shared_ptr<recording_sink> run(const chat_request& request) {
    const auto out = std::make_shared<recording_sink>();
    r.start(request, out);
    w.run();
    return out;
  }
  size_t n_steps() const { return r.rank().steps.size(); }
  int64_t total(const std::array<std::atomic<int64_t>, counters::n_draft_places>& places) const {
    int64_t sum = 0;
    for (const auto& n : places) sum += n;
    return sum;
  }

  world w;
  scripted_ring r;
};

} // namespace

TEST_CASE("drafts: right guesses give six tokens a step, wrong ones cost nothing but their rows") {
  const std::string answer = " one two three four five six seven eight nine ten eleven twelve";
  draft_ring none(0, 0);
  none.r.say(answer);
  const auto want = none.run(none.r.completion("Go", 100));
  const auto n_tokens = want->usage.completion_tokens;
  CHECK(want->usage.accepted_drafts + want->usage.rejected_drafts == 0);

  draft_ring right;
  right.r.say(answer);
  const auto all = right.run(right.r.completion("Go", 100));
  CHECK(all->choices.at(0).content == answer);
  CHECK(all->choices[0].ids == want->choices.at(0).ids);
  CHECK(all->usage.completion_tokens == n_tokens);
  CHECK(static_cast<int64_t>(right.n_steps()) == 1 + (n_tokens - 1 + 5) / 6); // the prompt's step gives one

  for (const int32_t every : {1, 2, 3, 7}) {
    CAPTURE(every);
    draft_ring wrong(every);
    wrong.r.say(answer);
    const auto got = wrong.run(wrong.r.completion("Go", 100));
    CHECK(got->choices.at(0).ids == want->choices[0].ids);
    CHECK(got->choices[0].cause == finish_cause::stop);
    CHECK(got->usage.completion_tokens == n_tokens);
    CHECK(got->usage.rejected_drafts > 0);
    CHECK(wrong.r.tables->n_rows == wrong.r.numbers->rows);
    CHECK(wrong.total(wrong.r.numbers->accepted_drafts_at) == got->usage.accepted_drafts);
    CHECK(wrong.total(wrong.r.numbers->drafts_at) == got->usage.accepted_drafts + got->usage.rejected_drafts);
    CHECK(wrong.r.is_idle());
  }
}

TEST_CASE("drafts: every token rides once, with its log-probability where asked for") {
  draft_ring d(4);
  d.r.say(" a b c d e f g h i j k");
  auto request = d.r.completion("Go", 100);
  request.sampling.n_logprobs = 2;
  struct counting_sink : recording_sink {
    state push(std::span<const turn_delta> deltas) override {
      for (const auto& delta : deltas)
        for (const auto& t : delta.tokens) n_with_logprobs += t.best.size() == 2 && t.best[0].id == t.id;
      return recording_sink::push(deltas);
    }
    int64_t n_with_logprobs = 0;
  };
  const auto out = std::make_shared<counting_sink>();
  d.r.start(request, out);
  d.w.run();
  CHECK(out->n_with_logprobs == out->usage.completion_tokens);
  CHECK(static_cast<int64_t>(out->choices.at(0).ids.size()) == out->usage.completion_tokens);
}

TEST_CASE("drafts: max_tokens cuts inside a run, and the reserved blocks are enough") {
  for (int64_t max_tokens = 1; max_tokens <= 20; ++max_tokens) {
    CAPTURE(max_tokens);
    draft_ring d;
    d.r.say(std::string(60, 'x'));
    const auto out = d.run(d.r.completion("Go", max_tokens));
    CHECK(out->usage.completion_tokens == max_tokens);
    CHECK(static_cast<int64_t>(out->choices.at(0).ids.size()) == max_tokens);
    CHECK(out->choices[0].cause == finish_cause::length);
    for (const auto& step : d.r.rank().steps) // no row that could not become a token
      for (const auto& row : step) CHECK(row.n_logits <= max_tokens);
    CHECK(d.r.is_idle());
  }
}

TEST_CASE("drafts: what follows a stop string in an accepted run is dropped and not counted") {
  const std::string answer = " red green blue white black";
  for (const int32_t block : {0, 5}) {
    CAPTURE(block);
    draft_ring d(0, block);
    d.r.say(answer);
    auto request = d.r.completion("Go", 100);
    request.stop = {"blue"};
    const auto out = d.run(request);
    CHECK(out->choices.at(0).content == " red green ");
    CHECK(out->choices[0].stop_string == "blue");
    const auto n = static_cast<int64_t>(d.r.text->words()->encode(" red green blue").size());
    CHECK(out->usage.completion_tokens == n);
    CHECK(d.r.numbers->generated_tokens == n);
    CHECK(static_cast<int64_t>(out->choices[0].ids.size()) == n);
    CHECK(out->usage.accepted_drafts <= n);
    CHECK(d.r.is_idle());
  }
}

TEST_CASE("drafts: an end token or stop id inside a run ends it; ignore_eos goes on") {
  draft_ring d;
  d.r.say(" one two");
  const auto n = static_cast<int64_t>(d.r.rank().answer.size());
  const auto stopped = d.run(d.r.completion("Go", 50));
  CHECK(stopped->usage.completion_tokens == n + 1);
  CHECK(stopped->choices.at(0).cause == finish_cause::stop);
  auto request = d.r.completion("Go", 50);
  request.sampling.ignore_eos = true;
  CHECK(d.run(request)->usage.completion_tokens == 50);
  request = d.r.completion("Go", 50);
  request.sampling.stop_ids = {d.r.rank().answer[1]};
  const auto by_id = d.run(request);
  CHECK(by_id->usage.completion_tokens == 2);
  CHECK(by_id->choices.at(0).stop_token == d.r.rank().answer[1]);
}

TEST_CASE("drafts: choices and neighbours decode together, every rank in step") {
  draft_ring d(3, 5, 2);
  d.r.say(" a b c d e f g h i j k l m n");
  const auto one = std::make_shared<recording_sink>(), two = std::make_shared<recording_sink>();
  d.r.start(d.r.completion("First", 100, 2), one);
  d.r.start(d.r.completion("Second", 100), two);
  d.w.run();
  CHECK(one->choices.at(0).ids == one->choices.at(1).ids);
  CHECK(one->choices[0].ids == two->choices.at(0).ids);
  REQUIRE(d.r.rank(0).steps.size() == d.r.rank(1).steps.size());
  for (size_t i = 0; i < d.n_steps(); ++i)
    for (size_t k = 0; k < d.r.rank(0).steps[i].size(); ++k)
      CHECK(d.r.rank(0).steps[i][k].n_tokens == d.r.rank(1).steps[i][k].n_tokens);
  CHECK(d.r.is_idle());
}

TEST_CASE("drafts: a broken logit behind accepted drafts fails the turn after them") {
  for (const int32_t block : {0, 5}) {
    CAPTURE(block);
    draft_ring d(0, block);
    d.r.say(" a b c d e f g h i j");
    d.r.scripts[0]->nan_at = 4;
    const auto out = d.run(d.r.completion("Go", 50));
    CHECK(out->n_failures == 1);
    CHECK(out->error.status == 500);
    CHECK(out->choices.at(0).ids.size() == 4);
    CHECK(d.r.is_idle());
  }
}

TEST_CASE("drafts: the limit is switched while a turn runs") {
  draft_ring d;
  d.r.say(std::string(120, 'z'));
  const auto out = std::make_shared<recording_sink>();
  d.r.start(d.r.completion("Go", 300), out);
  const auto newest = [&] { return d.r.rank().steps.back().back().n_logits; };
  d.w.run_until([&] { return d.n_steps() == 4; });
  CHECK(newest() == 6);
  caf::anon_send(d.r.engine.scheduler, draft_limit{0});
  d.w.run_until([&] { return d.n_steps() == 8; });
  CHECK(newest() == 1);
  caf::anon_send(d.r.engine.scheduler, draft_limit{2});
  d.w.run_until([&] { return d.n_steps() == 12; });
  CHECK(newest() == 3);
  d.w.run();
  CHECK(out->choices.at(0).content == std::string(120, 'z'));
}

TEST_CASE("drafts: rows of drafts never take one from a prompt's chunk") {
  draft_ring d;
  d.r.say(std::string(100, 'q'));
  const auto one = std::make_shared<recording_sink>(), two = std::make_shared<recording_sink>();
  d.r.start(d.r.completion("Go", 200), one);
  d.w.run_until([&] { return d.n_steps() == 3; });
  std::string prompt;
  for (int i = 0; i < 30; ++i) prompt += " word" + std::to_string(i);
  d.r.start(d.r.completion(prompt, 1), two);
  d.w.run_until([&] { return d.r.rank().steps.back().size() == 2; }); // the first that has both
  const auto& step = d.r.rank().steps.back();
  REQUIRE(step.size() == 2);
  CHECK(step[0].n_logits == 6);
  CHECK(step[1].n_tokens == 15); // 16 rows less the one that decodes
  d.w.run();
  CHECK(two->has_ended());
}
