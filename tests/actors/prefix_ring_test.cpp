// The prefix cache through the real ring with the shipped model: with a hit every token and log-probability is what it
// is without one.
#include "actors/request.h"
#include "tests/actors/world.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>
#include <sstream>

using namespace troupe;

namespace {

const std::string tiny = TROUPE_SOURCE_DIR "/etc/models/tiny";

struct settings_of_cache {
  int64_t memory_bytes = int64_t{64} << 20, interval = 64;
  prefill_mode mode = prefill_mode::exact;
  int64_t tail_tokens = 128;
  int32_t chunk = 64;
};

// Keeps what recording_sink leaves out.
class exact_sink : public recording_sink {
public:
  state push(std::span<const turn_delta> deltas) override {
    for (const auto& d : deltas)
      for (const auto& t : d.tokens) {
        auto& all = said[d.choice];
        all.push_back(t.id);
        all.push_back(std::bit_cast<int32_t>(t.logprob));
        for (const auto& b : t.best) all.insert(all.end(), {b.id, std::bit_cast<int32_t>(b.logprob)});
      }
    return recording_sink::push(deltas);
  }
  std::map<int32_t, std::vector<int32_t>> said; // ids and bits, by choice
};

struct tiny_ring {
  explicit tiny_ring(const settings_of_cache& s)
      : text(load_text_side(tiny)), r(w, limits(s), 1, [&](ring_config& c) { configure(c, s); }) {
    r.parts.info = read_model_info(tiny);
    r.parts.text = text;
    r.parts.prepare = w.own(spawn_prepare(w.system(), {r.parts.config, r.parts.info, r.parts.max_context}, text, 0));
  }
  static batch_limits limits(const settings_of_cache& s) {
    batch_limits l;
    l.max_running = 4;
    l.max_queue = 16;
    l.chunk_tokens = s.chunk;
    l.n_blocks = 200;
    l.block_tokens = 64;
    return l;
  }
  void configure(ring_config& c, const settings_of_cache& s) {
    const auto bytes = plan_state(tiny, 4);
    c.prefix.snapshot_bytes = bytes.per_snapshot;
    c.prefix.snapshot_slack = bytes.snapshot_slack;
    c.prefix.snapshot_memory_bytes = s.memory_bytes;
    c.prefix.snapshot_interval = s.interval;
    c.prefix.tail_tokens = s.mode == prefill_mode::tail ? s.tail_tokens : -1;
    c.make_rank = [this, s, l = c.limits](int32_t) {
      rank_parts p;
      p.device = make_host_backend({.n_threads = 1});
      model_options o;
      o.folder = tiny;
      o.max_sequences = l.max_running;
      o.n_blocks = l.n_blocks;
      o.max_rows = l.max_rows();
      o.prefill = s.mode;
      o.tail_tokens = s.tail_tokens;
      o.load_draft = false;
      p.weights = load_model(*p.device, o, nullptr);
      CHECK(p.weights->snapshot_bytes() <= plan_state(tiny, 4).per_snapshot);
      CHECK(p.weights->snapshot_slack() == plan_state(tiny, 4).snapshot_slack);
      return p;
    };
    c.open_tables = [](int32_t rank) { return open_tables(tiny, rank, 1, 4); };
  }
  std::shared_ptr<exact_sink> start(chat_request request) {
    request.turn = turn_id{++r.last_turn};
    request.sampling.n_logprobs = 3;
    auto sink = std::make_shared<exact_sink>();
    r.start(std::move(request), sink);
    return sink;
  }
  std::shared_ptr<exact_sink> ask(chat_request request) {
    auto sink = start(std::move(request));
    w.run();
    CHECK(sink->error.message == "");
    CHECK(sink->has_ended());
    CHECK(r.is_idle());
    return sink;
  }

  world w;
  std::shared_ptr<const text_side> text;
  scripted_ring r;
};

std::string words(int n, int seed) {
  static const char* const list[] = {" one", " of", " the", " plays", " began", " late", " in", " rain", " 17", "\n"};
  std::string out = "Once";
  for (int i = 0; i < n; ++i) out += list[(seed = (seed * 75 + 74) % 65537) % 10];
  return out;
}

chat_request completion(const std::string& prompt, int64_t max_tokens, int kind) {
  chat_request r;
  r.id = "t";
  r.is_chat = false;
  r.prompts = {prompt};
  r.max_tokens = max_tokens;
  r.sampling.temperature = 0;
  r.sampling.ignore_eos = true;
  if (kind == 0) return r;
  r.sampling.temperature = 1;
  r.sampling.seed = 99;
  if (kind == 1) return r;
  r.sampling.repetition_penalty = 1.4F;
  r.sampling.frequency_penalty = 0.3F;
  r.sampling.presence_penalty = 0.2F;
  return r;
}

std::string file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

chat_request with_images(const std::vector<std::string>& images, const std::string& question) {
  chat_request r;
  r.id = "i";
  r.chat.thinking = false;
  r.max_tokens = 6;
  r.sampling.temperature = 0;
  r.sampling.ignore_eos = true;
  auto& m = r.chat.messages.emplace_back();
  for (size_t i = 0; i < images.size(); ++i) m.parts.push_back({"", static_cast<int32_t>(i)});
  m.parts.push_back({question, -1});
  r.image_files = images;
  return r;
}

} // namespace

TEST_CASE("prefix: with a hit every token and log-probability is the same as without" * doctest::test_suite("slow")) {
  for (const int32_t chunk : {23, 512})
    for (const int64_t interval : {0, 64}) {
      CAPTURE(chunk);
      CAPTURE(interval);
      tiny_ring cached({.interval = interval, .chunk = chunk}), plain({.memory_bytes = 0, .chunk = 512});
      for (int kind = 0; kind < 3; ++kind) {
        CAPTURE(kind);
        const auto same = [&](const std::string& prompt, int64_t max_tokens) {
          const auto a = cached.ask(completion(prompt, max_tokens, kind));
          const auto b = plain.ask(completion(prompt, max_tokens, kind));
          CHECK(a->said == b->said);
          CHECK(a->choices.at(0).ids.size() == static_cast<size_t>(max_tokens));
          CHECK(b->usage.cached_tokens == 0);
          CHECK(a->usage.prompt_tokens == b->usage.prompt_tokens);
          return a;
        };
        const std::string prompt = words(150, 7 + kind);
        CHECK(same(prompt, 20)->usage.cached_tokens < 10);
        const auto second = same(prompt, 20);
        CHECK(second->usage.cached_tokens == second->usage.prompt_tokens - 1);
        const std::string longer = prompt + second->choices[0].content;
        CHECK(same(longer + words(5, 3), 8)->usage.cached_tokens >= second->usage.prompt_tokens - 1); // next turn
        const std::string fork = prompt.substr(0, prompt.size() / 2) + words(20, 5);
        const auto first_fork = same(fork, 5)->usage.cached_tokens;
        if (interval > 0) CHECK(first_fork >= 64);
        const std::string other = prompt.substr(0, prompt.size() / 2) + " ZZ" + words(20, 6);
        CHECK(same(other, 5)->usage.cached_tokens > first_fork);
      }
      CHECK(cached.r.numbers->cache_hits > 0);
      CHECK(cached.r.numbers->cache_queries == plain.r.numbers->cache_queries);
      CHECK(plain.r.numbers->cache_hits == 0);
    }
}

TEST_CASE("prefix: choices of one turn, beside others, are those of an empty cache" * doctest::test_suite("slow")) {
  tiny_ring cached({}), plain({.memory_bytes = 0});
  std::vector<std::shared_ptr<exact_sink>> a, b;
  for (auto* ring : {&cached, &plain}) {
    auto& sinks = ring == &cached ? a : b;
    for (const int n : {3, 1, 2}) {
      auto request = completion(words(120, n == 2 ? 1 : n), 12, 2);
      request.n = n;
      sinks.push_back(ring->start(request));
    }
    ring->w.run();
    CHECK(ring->r.is_idle());
  }
  for (size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i]->said.size() == (i == 0 ? 3 : i));
    CHECK(a[i]->said == b[i]->said);
    CHECK(a[i]->usage.cached_tokens < a[i]->usage.prompt_tokens); // a prompt counts once, however many choices
  }
  CHECK(cached.r.numbers->rows < plain.r.numbers->rows - 2 * 100);
}

TEST_CASE("prefix: images are part of it, and the rows after them are the same" * doctest::test_suite("slow")) {
  std::vector<std::string> images;
  for (const auto& e : std::filesystem::directory_iterator(TROUPE_SOURCE_DIR "/tests/golden/tiny/images"))
    images.push_back(e.path().string());
  std::sort(images.begin(), images.end());
  REQUIRE(images.size() >= 2);
  for (auto& i : images) i = file(i);
  tiny_ring cached({.interval = 32, .chunk = 50}), plain({.memory_bytes = 0, .chunk = 512});
  const auto same = [&](const std::vector<std::string>& files, const std::string& question) {
    const auto a = cached.ask(with_images(files, question));
    CHECK(a->said == plain.ask(with_images(files, question))->said);
    return a->usage;
  };
  same({images[0], images[1]}, "What is it?" + words(30, 2));
  const auto again = same({images[0], images[1]}, "What is it?" + words(30, 2));
  CHECK(again.cached_tokens == again.prompt_tokens - 1);
  const auto asked = same({images[0], images[1]}, "What is it?" + words(30, 2) + " And now?");
  CHECK(asked.cached_tokens > again.prompt_tokens / 2);
  const auto swapped = same({images[1], images[0]}, "What is it?" + words(30, 2));
  CHECK(swapped.cached_tokens < again.prompt_tokens / 2);
  const auto inside = same({images[0], images.back()}, "What is it?" + words(30, 2));
  CHECK(inside.cached_tokens < again.prompt_tokens - 1);
}

TEST_CASE("prefix: in tail mode an identical prompt gives the same" * doctest::test_suite("slow")) {
  tiny_ring cached({.mode = prefill_mode::tail, .tail_tokens = 50}),
      plain({.memory_bytes = 0, .mode = prefill_mode::tail, .tail_tokens = 50});
  for (int seed = 1; seed < 4; ++seed) {
    const auto request = completion(words(160, seed), 16, 2);
    const auto want = plain.ask(request);
    CHECK(cached.ask(request)->said == want->said);
    const auto second = cached.ask(request);
    CHECK(second->said == want->said);
    CHECK(second->usage.cached_tokens == second->usage.prompt_tokens - 1);
  }
}

TEST_CASE("prefix: a tiny budget evicts and stays exact; the console is told what is missing" *
          doctest::test_suite("slow")) {
  const auto one = plan_state(tiny, 4).per_snapshot;
  tiny_ring cached({.memory_bytes = 3 * one, .interval = 64}), plain({.memory_bytes = 0});
  for (int i = 0; i < 8; ++i) {
    const auto request = completion(words(130, i % 4 + 1), 4, 0);
    CHECK(cached.ask(request)->said == plain.ask(request)->said);
    CHECK(cached.r.numbers->snapshots <= 3);
  }
  miss_question q;
  q.prompt = cached.text->words()->encode(words(130, 1));
  auto answer = cached.w.ask<miss_answer>(cached.r.engine.kv_cache, q);
  REQUIRE(answer);
  CHECK(answer->n_tokens == static_cast<int64_t>(q.prompt.size()));
  CHECK(answer->missing != "nothing");
  CHECK(answer->n_cached <= answer->first_differing);
}

TEST_CASE("prefix: a client that leaves in its prefill leaves a prefix behind" * doctest::test_suite("slow")) {
  tiny_ring cached({.interval = 0, .chunk = 40}), plain({.memory_bytes = 0});
  const auto request = completion(words(170, 9), 8, 1);
  auto sink = std::make_shared<exact_sink>();
  auto leaving = request;
  leaving.turn = turn_id{++cached.r.last_turn};
  const auto turn = leaving.turn;
  const auto actor = cached.r.start(leaving, sink);
  REQUIRE(cached.w.run_until([&] { return cached.w.count<step_ready>("rank") == 2; }));
  caf::anon_send(actor, client_gone{turn});
  cached.w.run();
  CHECK(cached.r.is_idle());
  const auto next = cached.ask(request);
  CHECK(next->usage.cached_tokens >= 80);
  CHECK(next->said == plain.ask(request)->said);
}
