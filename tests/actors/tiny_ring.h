// The shipped model through the whole ring under the testing scheduler, and prompts for it.
#pragma once

#include "actors/request.h"
#include "tests/actors/world.h"
#include "tests/ahead_device.h"

#include <doctest/doctest.h>

#include <bit>
#include <fstream>
#include <sstream>

namespace troupe {

inline const std::string tiny_folder = TROUPE_SOURCE_DIR "/etc/models/tiny";

struct tiny_options {
  int64_t n_blocks = 200;
  int32_t max_running = 4, chunk = 64;
  int32_t n_drafts = 0; // 0: no drafter is loaded
  bool is_adaptive = false, overcommit = false;
  int64_t snapshot_bytes = int64_t{64} << 20, interval = 64; // of the prefix cache; 0 bytes: there is none
  prefill_mode mode = prefill_mode::exact;
  int64_t tail_tokens = 128;
  bool runs_ahead = false; // steps are replayed, and wait for their records on the way
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
  const std::vector<int32_t>& ids() const { return choices.at(0).ids; } // of the first choice
  std::map<int32_t, std::vector<int32_t>> said;                         // ids and bits, by choice
};

struct tiny_ring {
  // `change`: what a test adds to the ring's plan.
  explicit tiny_ring(
      const tiny_options& o, const std::function<void(ring_config&)>& change = [](ring_config&) {})
      : r(w, limits(o), 1,
          [&](ring_config& c) {
            configure(c, o);
            change(c);
          }),
        text(load_text_side(tiny_folder)) {
    r.parts.info = read_model_info(tiny_folder);
    r.parts.max_context = std::min(r.parts.info.context, o.n_blocks * 64);
    r.parts.text = text;
    r.parts.prepare = w.own(spawn_prepare(w.system(), {r.parts.config, r.parts.info, r.parts.max_context}, text, 0));
  }
  static batch_limits limits(const tiny_options& o) {
    batch_limits l;
    l.max_running = o.max_running;
    l.max_queue = 64;
    l.chunk_tokens = o.chunk;
    l.n_blocks = o.n_blocks;
    l.block_tokens = 64;
    l.overcommit = o.overcommit;
    if (o.n_drafts > 0) l.drafts = {5, o.n_drafts, o.is_adaptive};
    return l;
  }
  static void configure(ring_config& c, const tiny_options& o) {
    const auto bytes = plan_state(tiny_folder, host_caches);
    c.prefix.snapshot_bytes = bytes.per_snapshot;
    c.prefix.snapshot_slack = o.n_drafts > 0 ? bytes.draft_slack : bytes.snapshot_slack;
    c.prefix.snapshot_memory_bytes = o.snapshot_bytes;
    c.prefix.snapshot_interval = o.interval;
    c.prefix.tail_tokens = o.mode == prefill_mode::tail ? o.tail_tokens : -1;
    const auto suppressed = tiny_text()->suppressed_ids();
    c.suppressed.assign(suppressed.begin(), suppressed.end());
    c.make_rank = [o, l = c.limits](int32_t) {
      rank_parts p;
      p.device = o.runs_ahead ? test::make_ahead_device() : make_host_backend({.n_threads = 1});
      model_options m;
      m.folder = tiny_folder;
      m.max_sequences = l.max_running;
      m.n_blocks = l.n_blocks;
      m.max_rows = l.max_rows_and_drafts();
      m.prefill = o.mode;
      m.tail_tokens = o.tail_tokens;
      m.load_draft = o.n_drafts > 0;
      p.weights = load_model(*p.device, m, nullptr);
      if (o.runs_ahead) p.weights->capture_steps(16);
      const auto planned = plan_state(tiny_folder, host_caches);
      CHECK(p.weights->block_bytes() == planned.per_block);
      CHECK(p.weights->snapshot_bytes() <= planned.per_snapshot);
      CHECK(p.weights->snapshot_slack() == (m.load_draft ? planned.draft_slack : planned.snapshot_slack));
      return p;
    };
    c.open_tables = [l = c.limits](int32_t rank) { return open_tables(tiny_folder, rank, 1, l.max_running); };
  }
  // The turn's number is filled in; every token comes with three log-probabilities.
  std::shared_ptr<exact_sink> start(chat_request request) {
    request.turn = turn_id{++r.last_turn};
    request.sampling.n_logprobs = 3;
    auto sink = std::make_shared<exact_sink>();
    r.start(std::move(request), sink);
    return sink;
  }
  // All at once; runs to the end.
  std::vector<std::shared_ptr<exact_sink>> ask_all(const std::vector<chat_request>& requests) {
    std::vector<std::shared_ptr<exact_sink>> sinks;
    for (const auto& request : requests) sinks.push_back(start(request));
    w.run();
    for (const auto& s : sinks) {
      CHECK(s->error.message == "");
      CHECK(s->has_ended());
    }
    CHECK(r.is_idle());
    return sinks;
  }
  std::shared_ptr<exact_sink> ask(const chat_request& request) { return ask_all({request}).front(); }

  world w;
  scripted_ring r;
  std::shared_ptr<const text_side> text;
};

// `n` words that follow from the seed.
inline std::string tiny_words(int n, int seed) {
  static const char* const list[] = {" one", " of", " the", " plays", " began", " late", " in", " rain", " 17", "\n"};
  std::string out = "Once";
  for (int i = 0; i < n; ++i) out += list[(seed = (seed * 75 + 74) % 65537) % 10];
  return out;
}

enum class draw : uint8_t { greedy, seeded, penalised };

// A completion that never ends by itself.
inline chat_request tiny_completion(const std::string& prompt, int64_t max_tokens, draw how = draw::greedy) {
  chat_request r;
  r.id = "t";
  r.is_chat = false;
  r.prompts = {prompt};
  r.max_tokens = max_tokens;
  r.sampling.temperature = 0;
  r.sampling.ignore_eos = true;
  if (how == draw::greedy) return r;
  r.sampling.temperature = 1;
  r.sampling.seed = 99;
  if (how == draw::seeded) return r;
  r.sampling.repetition_penalty = 1.4F;
  r.sampling.frequency_penalty = 0.3F;
  r.sampling.presence_penalty = 0.2F;
  return r;
}

inline std::string file_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

// A chat whose message begins with images (encoded files).
inline chat_request tiny_image_chat(const std::vector<std::string>& images, const std::string& question,
                                    int64_t max_tokens) {
  chat_request r = tiny_completion("", max_tokens);
  r.is_chat = true;
  r.prompts.clear();
  r.chat.thinking = false;
  auto& m = r.chat.messages.emplace_back();
  for (size_t i = 0; i < images.size(); ++i) m.parts.push_back({"", static_cast<int32_t>(i)});
  m.parts.push_back({question, -1});
  r.image_files = images;
  return r;
}

} // namespace troupe
