// The desks of the ring without their actors, and a plain loop beside them: both over the shipped model, with drafts.
#pragma once

#include "actors/batch_policy.h"
#include "actors/kv_ledger.h"
#include "actors/rank_state.h"
#include "tests/actors/doubles.h"

#include <doctest/doctest.h>
#include <simdjson.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

namespace troupe::drafting {

inline const std::string folder = TROUPE_SOURCE_DIR "/etc/models/tiny";
inline constexpr int32_t block = 5;

struct item {
  std::string id, category;
  std::vector<int32_t> prompt, expected; // a picture's placeholder expanded
  std::vector<image_place> places;
  std::vector<planned_image> images; // by image_place::image
  int64_t max_tokens = 0;
};

inline std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE_MESSAGE(in.good(), path);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

// Each placeholder of a picture becomes the picture's span, as prompt_builder does it.
inline void expand(item& i, int32_t marker) {
  std::vector<int32_t> ids;
  for (const int32_t id : i.prompt) {
    const size_t next = i.places.size();
    if (id != marker || next == i.images.size()) {
      ids.push_back(id);
      continue;
    }
    const auto& image = i.images[next];
    i.places.push_back(
        {static_cast<int64_t>(ids.size()), image.grid_h, image.grid_w, static_cast<int32_t>(next), image.hash});
    ids.insert(ids.end(), static_cast<size_t>(image.n_tokens()), marker);
  }
  REQUIRE(i.places.size() == i.images.size());
  i.prompt = std::move(ids);
}

inline std::vector<image_span> spans_of(const std::vector<image_place>& places) {
  std::vector<image_span> out;
  for (const auto& p : places) out.push_back({p.start, p.grid_h, p.grid_w, p.image});
  return out;
}

// Stable items, at most `per_category` of each category.
inline std::vector<item> stable_items(size_t per_category, bool with_pictures = false) {
  const std::string data = TROUPE_SOURCE_DIR "/tests/golden/tiny/";
  const auto text = load_text_side(folder);
  const int32_t marker = read_model_info(folder).image_token;
  simdjson::dom::parser parser;
  std::vector<item> items;
  std::map<std::string, size_t> n_of;
  for (auto line : parser.load_many(data + "eval.jsonl", size_t{1} << 24)) {
    simdjson::dom::array images;
    const bool has_pictures = line["images"].get(images) == simdjson::SUCCESS;
    if (!bool(line["stable"].get_bool()) || (has_pictures && !with_pictures)) continue;
    item i;
    i.category = std::string_view(line["category"].get_string());
    if (++n_of[i.category] > per_category) continue;
    i.id = std::string_view(line["id"].get_string());
    i.prompt = text->words()->encode(std::string_view(line["prompt"].get_string()));
    if (has_pictures)
      for (auto name : images) {
        const auto file = bytes_of(data + std::string(std::string_view(name.get_string())));
        i.images.push_back(text->plan_image(std::as_bytes(std::span(file))));
      }
    expand(i, marker);
    for (auto t : line["expected_ids"].get_array()) i.expected.push_back(static_cast<int32_t>(int64_t(t.get_int64())));
    i.max_tokens = int64_t(line["max_tokens"].get_int64());
    items.push_back(std::move(i));
  }
  return items;
}

inline std::unique_ptr<model> load(backend& be, const batch_limits& l, bool with_drafts) {
  model_options o;
  o.folder = folder;
  o.max_sequences = l.max_running;
  o.n_blocks = l.n_blocks;
  o.max_rows = l.max_rows_and_drafts();
  o.load_draft = with_drafts;
  o.load_vision = true;
  return load_model(be, o, nullptr);
}

// Policy, ledger, tables, rank, one by one.
class desks {
public:
  struct outcome {
    std::vector<int32_t> ids;
    end_cause end = end_cause::none;
    std::string failure;
    int64_t n_rounds = 0, n_drafts = 0, n_accepted = 0; // rounds: steps that had drafts
  };

  explicit desks(int32_t n_drafts, int32_t max_running = 8, bool has_prefix_cache = true)
      : limits_(limits(n_drafts, max_running)), policy_(limits_), ledger_(prefix(limits_, has_prefix_cache)),
        device_(make_host_backend({.n_threads = 2})), model_(load(*device_, limits_, n_drafts > 0)),
        tables_(open_tables(folder, 0, 1, max_running)), rank_({suppressed(), 1}, true) {}
  static batch_limits limits(int32_t n_drafts, int32_t max_running) {
    batch_limits l;
    l.max_running = max_running;
    l.max_queue = 1024;
    l.chunk_tokens = 256;
    l.n_blocks = 512;
    l.block_tokens = 64;
    if (n_drafts > 0) l.drafts = {block, n_drafts, false};
    return l;
  }
  // One turn of n choices; the ids of its sequences.
  std::vector<sequence_id> admit(const std::vector<int32_t>& prompt, int64_t max_tokens, sampling_params sampling,
                                 int32_t n = 1, const std::vector<image_place>& places = {}) {
    turn_admit t{turn_id{++last_turn_}, {}};
    std::vector<sequence_id> ids;
    for (sampling.choice = 0; sampling.choice < n; ++sampling.choice) {
      auto& s = t.sequences.emplace_back();
      s.turn = t.turn;
      s.id = sequence_id{++last_sequence_};
      s.prompt = prompt;
      s.images = places;
      s.max_tokens = max_tokens;
      s.sampling = sampling;
      s.shares_prompt = sampling.choice > 0;
      ids.push_back(s.id);
    }
    REQUIRE(!policy_.admit(std::move(t), now_).has_value());
    return ids;
  }
  // The same for an item with what it shows, greedy.
  sequence_id admit(const item& i) {
    sampling_params sampling;
    sampling.temperature = 0;
    const auto id = admit(i.prompt, i.max_tokens, sampling, 1, i.places).front();
    spans_[id] = spans_of(i.places);
    for (size_t k = 0; k < i.images.size(); ++k) {
      const auto& p = i.images[k];
      image_piece piece{{id}, static_cast<int32_t>(k), p.hash, p.width, p.height, p.grid_h, p.grid_w, 0, p.rgb};
      REQUIRE(!rank_.take(std::move(piece)).has_value());
    }
    return id;
  }
  void run() {
    while (policy_.has_step(now_)) step();
    CHECK(policy_.is_idle());
    CHECK(ledger_.pool().n_held() == 0);
  }
  const outcome& of(sequence_id id) { return outcomes_[id]; }

private:
  static std::vector<int32_t> suppressed() {
    const auto ids = tiny_text()->suppressed_ids();
    return {ids.begin(), ids.end()};
  }
  static kv_cache_config prefix(const batch_limits& l, bool is_on) {
    kv_cache_config c;
    c.n_blocks = l.n_blocks;
    c.block_tokens = l.block_tokens;
    const auto bytes = plan_state(folder, host_caches);
    c.snapshot_bytes = bytes.per_snapshot;
    c.snapshot_memory_bytes = is_on ? 32 * bytes.per_snapshot : 0;
    c.snapshot_slack = l.drafts.block > 0 ? bytes.draft_slack : bytes.snapshot_slack;
    return c;
  }
  void step() {
    auto plan = policy_.plan(now_);
    plan.step = ++last_step_;
    const auto placed = ledger_.place(std::move(plan));
    std::vector<sequence_rows> rows;
    size_t n_rows = 0;
    for (const auto& r : placed.plan.rows) {
      auto& row = rows.emplace_back();
      row.slot = r.slot;
      row.start = r.start;
      row.tokens = r.tokens;
      if (const auto spans = spans_.find(r.id); spans != spans_.end()) row.images = spans->second;
      for (const auto& c : placed.cached)
        if (c.id == r.id) row.before = c.before;
      n_rows += r.tokens.size();
    }
    records_.resize(n_rows * static_cast<size_t>(tables_->record_bytes_per_token()));
    if (n_rows > 0) tables_->read(rows, records_);
    REQUIRE(rank_.begin(placed, model_.get()).empty());
    step_result result{1, last_step_, {}, 0, 0};
    if (n_rows > 0) {
      ready_records ready(records_);
      rank_.run(placed.plan, {}, ready, *model_);
      result.results = rank_.answer(placed.plan, {}, *model_, result.draft_us);
    }
    rank_.end(placed, {}, *model_);
    std::vector<accepted_tokens> accepted;
    policy_.accept(std::move(result), now_, accepted);
    for (const auto& a : accepted) {
      auto& o = outcomes_[a.id];
      for (const auto& t : a.tokens) o.ids.push_back(t.id);
      o.end = a.end;
      o.failure = a.failure;
      o.n_rounds += a.n_drafts > 0;
      o.n_drafts += a.n_drafts;
      o.n_accepted += a.n_accepted;
    }
  }

  batch_limits limits_;
  batch_policy policy_;
  kv_ledger ledger_;
  std::unique_ptr<backend> device_;
  std::unique_ptr<model> model_;
  std::unique_ptr<table_reader> tables_;
  rank_state rank_;
  std::vector<std::byte> records_;
  std::map<sequence_id, outcome> outcomes_;
  std::map<sequence_id, std::vector<image_span>> spans_; // of those that have pictures
  batch_policy::time now_{};
  uint64_t last_turn_ = 0, last_sequence_ = 0, last_step_ = 0;
};

// dspark.md sections 4 and 5 without any of the serving code: one sequence, greedy.
class plain_loop {
public:
  plain_loop() : be_(make_host_backend({.n_threads = 2})) {
    const auto l = desks::limits(block, 2);
    model_ = load(*be_, l, true);
    tables_ = open_tables(folder, 0, 1, l.max_running);
    for (int32_t i = 0; i < 160; ++i) blocks_.push_back(i);
  }
  struct result {
    std::vector<int32_t> tokens;
    std::vector<std::vector<float>> logits; // that gave each token
    int64_t n_rounds = 0;
  };
  result run(const item& i, int32_t n_drafts) {
    result out;
    spans_ = spans_of(i.places);
    for (const auto& image : i.images) handles_.push_back(model_->take_image(image));
    const auto n_prompt = static_cast<int64_t>(i.prompt.size());
    for (int64_t at = 0; at < n_prompt; at += 128)
      forward(std::span(i.prompt).subspan(static_cast<size_t>(at),
                                          static_cast<size_t>(std::min<int64_t>(128, n_prompt - at))),
              at, 1);
    take(out, 0);
    while (out.tokens.back() != model_->info().eos && static_cast<int64_t>(out.tokens.size()) < i.max_tokens) {
      const int64_t newest = n_prompt + static_cast<int64_t>(out.tokens.size()) - 1;
      std::vector<int32_t> rows{out.tokens.back()};
      if (n_drafts > 0) {
        const draft_request a{1, newest, out.tokens.back()};
        const auto d = model_->draft_next({&a, 1});
        const auto left = i.max_tokens - static_cast<int64_t>(out.tokens.size()) - 1;
        rows.insert(rows.end(), d.ids.begin(), d.ids.begin() + std::min<int64_t>(n_drafts, left));
      }
      forward(rows, newest, static_cast<int32_t>(rows.size()));
      ++out.n_rounds;
      for (size_t j = 0; j < rows.size(); ++j) {
        take(out, j);
        if (out.tokens.back() == model_->info().eos) break;
        if (j + 1 < rows.size() && out.tokens.back() != rows[j + 1]) break;
      }
    }
    for (const auto handle : std::exchange(handles_, {})) model_->drop_image(handle);
    return out;
  }

private:
  void forward(std::span<const int32_t> ids, int64_t start, int32_t n_logits) {
    sequence_rows s;
    s.slot = 1;
    s.start = start;
    s.tokens = ids;
    s.blocks = blocks_;
    s.images = spans_;
    s.image_handles = handles_;
    s.n_logits = n_logits;
    records_.resize(ids.size() * static_cast<size_t>(tables_->record_bytes_per_token()));
    tables_->read({&s, 1}, records_);
    logits_ = model_->forward({&s, 1}, records_);
  }
  void take(result& out, size_t row) const {
    const auto vocabulary = static_cast<size_t>(model_->info().vocabulary);
    const auto of = logits_.subspan(row * vocabulary, vocabulary);
    out.logits.emplace_back(of.begin(), of.end());
    out.tokens.push_back(static_cast<int32_t>(std::max_element(of.begin(), of.end()) - of.begin()));
  }

  std::unique_ptr<backend> be_;
  std::unique_ptr<model> model_;
  std::unique_ptr<table_reader> tables_;
  std::vector<int32_t> blocks_;
  std::vector<image_span> spans_;
  std::vector<int32_t> handles_; // of its pictures
  std::vector<std::byte> records_;
  std::span<const float> logits_;
};

inline sampling_params greedy() {
  sampling_params p;
  p.temperature = 0;
  return p;
}

} // namespace troupe::drafting
