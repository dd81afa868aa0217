// Prompts of every length and at every edge: what the second one finds.                     bugs/ops.md, group E
#include "tests/actors/tiny_ring.h"

using namespace troupe;

namespace {

std::vector<int32_t> numbered(int64_t n, uint32_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i)
    ids.push_back(300 + static_cast<int32_t>((seed = seed * 1664525U + 1013904223U) >> 24));
  return ids;
}

chat_request of_ids(std::vector<int32_t> ids, int64_t max_tokens) {
  auto r = tiny_completion("", max_tokens);
  r.prompts.clear();
  r.prompt_ids = {std::move(ids)};
  return r;
}

constexpr int64_t context = 16384;

// Scripted models with a prefix cache: everything of the ring but arithmetic.
struct cached_ring {
  explicit cached_ring(int32_t n_drafts, int32_t chunk)
      : r(w, limits(n_drafts, chunk), 1, [&](ring_config& c) {
          c.prefix.snapshot_bytes = 1;
          c.prefix.snapshot_memory_bytes = 64;
          c.prefix.snapshot_slack = 0;
          c.make_rank = [this, n_drafts](int32_t rank) {
            r.scripts[static_cast<size_t>(rank)]->draft_block = n_drafts;
            rank_parts p;
            p.weights = std::make_unique<scripted_model>(r.scripts[0], r.text->words()->size());
            return p;
          };
        }) {
    r.say(" a b c d e f g h");
    r.parts.max_context = context;
    r.parts.info.context = context;
    r.parts.prepare = w.own(spawn_prepare(w.system(), {r.parts.config, r.parts.info, context}, r.text, 0));
  }
  static batch_limits limits(int32_t n_drafts, int32_t chunk) {
    auto l = scripted_ring::small_limits();
    l.chunk_tokens = chunk;
    l.n_blocks = 2 * context / l.block_tokens;
    if (n_drafts > 0) l.drafts = {n_drafts, n_drafts, false};
    return l;
  }
  int64_t cached(const chat_request& request) {
    auto r2 = request;
    r2.turn = turn_id{++r.last_turn};
    const auto sink = std::make_shared<recording_sink>();
    r.start(std::move(r2), sink);
    w.run();
    CHECK(sink->error.message == "");
    CHECK(sink->has_ended());
    r.scripts[0]->steps.clear();
    return sink->usage.cached_tokens;
  }

  world w;
  scripted_ring r;
};

} // namespace

TEST_CASE("O35: the second of two prompts of any length finds all but its last token, with and without drafts" *
          doctest::test_suite("slow")) {
  for (const int32_t n_drafts : {0, 5}) {
    CAPTURE(n_drafts);
    cached_ring ring(n_drafts, 4096);
    for (int64_t n = 100; n <= 20'000; n += 37) {
      if (n + 4 > context) break; // longer ones are refused: the context ends there
      CAPTURE(n);
      auto request = of_ids(numbered(n, static_cast<uint32_t>(n)), 4);
      request.cache_salt = std::to_string(n); // no two lengths share a first token
      CHECK(ring.cached(request) == 0);
      CHECK(ring.cached(request) == n - 1);
    }
  }
}

TEST_CASE("O35: the same over the shipped model, with the same text" * doctest::test_suite("slow")) {
  for (const int32_t n_drafts : {0, 5}) {
    CAPTURE(n_drafts);
    tiny_ring ring({.n_blocks = 256, .chunk = 512, .n_drafts = n_drafts, .interval = 4096});
    for (const int64_t n : {100, 137, 1025, 2061}) {
      CAPTURE(n);
      auto request = of_ids(numbered(n, static_cast<uint32_t>(n)), 4);
      request.cache_salt = std::to_string(n); // no two lengths share a first token
      const auto first = ring.ask(request), second = ring.ask(request);
      CHECK(first->usage.cached_tokens == 0);
      CHECK(second->usage.cached_tokens == n - 1);
      CHECK(second->said == first->said);
    }
  }
}

TEST_CASE(
    "O52: prompts that end at, before and behind edges of blocks and chunks hit as predicted, with the same text" *
    doctest::test_suite("slow")) {
  constexpr int32_t chunk = 96;
  for (const int32_t n_drafts : {0, 5}) {
    CAPTURE(n_drafts);
    tiny_ring ring({.chunk = chunk, .n_drafts = n_drafts, .interval = 0}), cold({.chunk = 512, .snapshot_bytes = 0});
    for (const int64_t n : {1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 95, 96, 97, 287, 288, 289}) {
      CAPTURE(n);
      auto ids = numbered(n, static_cast<uint32_t>(1000 + n));
      const auto want = cold.ask(of_ids(ids, 6))->said;
      CHECK(ring.ask(of_ids(ids, 6))->said == want);
      const auto second = ring.ask(of_ids(ids, 6));
      CHECK(second->said == want);
      CHECK(second->usage.cached_tokens == n - 1);
      ids.push_back(299);
      const auto longer = ring.ask(of_ids(ids, 6));
      CHECK(longer->said == cold.ask(of_ids(ids, 6))->said);
      CHECK(longer->usage.cached_tokens == n); // the second one left a snapshot where it joined the first one's path
    }
  }
}

namespace {

chat_request turn_of(const std::vector<chat_message>& messages, bool thinking, int64_t max_tokens) {
  auto r = tiny_completion("", max_tokens);
  r.is_chat = true;
  r.prompts.clear();
  r.chat.messages = messages;
  r.chat.thinking = thinking;
  r.sampling.ignore_eos = false;
  return r;
}

chat_message says(chat_role role, const std::string& text) {
  chat_message m;
  m.role = role;
  m.parts.push_back({text, -1});
  return m;
}

} // namespace

TEST_CASE("O36: each of 10 turns of a conversation computes less than a block and its new tokens" *
          doctest::test_suite("slow")) {
  for (const int32_t n_drafts : {0, 5}) {
    CAPTURE(n_drafts);
    tiny_ring ring({.n_drafts = n_drafts, .interval = 4096});
    std::vector<chat_message> messages;
    int64_t n_before = 0; // tokens of the conversation so far
    for (int turn = 0; turn < 10; ++turn) {
      CAPTURE(turn);
      messages.push_back(says(chat_role::user, "Tell me" + tiny_words(12, turn + 1)));
      const auto sink = ring.ask(turn_of(messages, false, 24));
      const int64_t n_new = sink->usage.prompt_tokens - n_before;
      CHECK(sink->usage.prompt_tokens - sink->usage.cached_tokens < 64 + n_new);
      if (turn > 0) CHECK(sink->usage.cached_tokens > 0);
      n_before = sink->usage.prompt_tokens + sink->usage.completion_tokens;
      messages.push_back(says(chat_role::assistant, sink->choices.at(0).content));
    }
  }
}

TEST_CASE("O37: a conversation resent without its reasoning reuses everything up to the last user message" *
          doctest::test_suite("slow")) {
  tiny_ring ring({.n_drafts = 5, .interval = 4096});
  std::vector<chat_message> messages;
  int64_t n_last = 0; // the prompt before: it ends behind the user's message
  for (int turn = 0; turn < 5; ++turn) {
    CAPTURE(turn);
    messages.push_back(says(chat_role::user, "What is" + tiny_words(15, turn + 20)));
    const auto sink = ring.ask(turn_of(messages, true, 60));
    if (turn > 0) CHECK(sink->usage.cached_tokens >= n_last - 2); // <think> and </think> differ
    n_last = sink->usage.prompt_tokens;
    messages.push_back(says(chat_role::assistant, sink->choices.at(0).content));
  }
}

TEST_CASE("6.9: 12 contexts within the budget all hit, in any order" * doctest::test_suite("slow")) {
  tiny_ring ring({.n_blocks = 256, .chunk = 512, .interval = 4096});
  std::vector<chat_request> contexts;
  for (uint32_t i = 0; i < 12; ++i) contexts.push_back(of_ids(numbered(600 + 50 * i, i + 1), 3));
  for (const auto& c : contexts) CHECK(ring.ask(c)->usage.cached_tokens <= 1); // a first token may be shared
  for (const size_t step : {1, 5, 7})
    for (size_t i = 0; i < contexts.size(); ++i) {
      const auto sink = ring.ask(contexts[i * step % contexts.size()]);
      CHECK(sink->usage.cached_tokens == sink->usage.prompt_tokens - 1);
    }
}
